"""Renders the pages of a training: its curves and its job. Each page is one HTML file."""

from __future__ import annotations

from kfp_tfjob.components.launch_tfjob.report.progress import TrainingHistory
from kfp_tfjob.jobs.job_yaml import to_yaml
from kfp_tfjob.jobs.objects import Object
from kfp_tfjob.pages import charts
from kfp_tfjob.pages.template import render


def curves_html(progress: TrainingHistory, title: str) -> str:
    """Return a page with a chart for each metric, the final values and the time by activity."""
    series: dict[str, dict[str, list[charts.Point]]] = {}
    for epoch in progress.epochs:
        for name, value in epoch.metrics.items():
            kind = "validation" if name.startswith("val_") else "training"
            points = series.setdefault(name.removeprefix("val_"), {}).setdefault(kind, [])
            points.append((epoch.number, value))
    names = sorted(series, key=lambda name: (name != "loss", name))
    return render(
        "components/launch_tfjob/report/training.html.j2",
        title=title,
        plots={name: charts.by_epoch(name, dict(sorted(series[name].items()))) for name in names},
        final={name: f"{value:.4g}" for name, value in progress.final.items()},
        seconds={name: f"{seconds:.1f} s" for name, seconds in progress.seconds.items()},
        dropped=progress.dropped,
    )


def job_html(manifest: Object, tensorboard: str) -> str:
    """Return a page with the TensorBoard command and the TFJob as YAML."""
    return render(
        "components/launch_tfjob/report/tfjob.html.j2",
        title=f"{manifest['kind']} {manifest['metadata']['name']}",
        tensorboard=tensorboard,
        lines=to_yaml(manifest).splitlines(),
    )
