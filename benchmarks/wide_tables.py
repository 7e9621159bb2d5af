"""Measures the exported model of a wide table: number columns with missing values.

    python -m benchmarks.wide_tables [--columns N ...] [--rows N]

For each number of columns, prepare_data reads a CSV with 5% missing values, an untrained model of
the default kind is exported, loaded and asked for one row, and evaluate judges it on the test rows.
Everything runs in one new process, against the S3 server of a local run. It prints a table of CPU
seconds, which a busy machine hardly changes, and, as the last line, one JSON object with both.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from benchmarks.resources import measured

COLUMNS = (200, 1000, 5000)
ROWS = 330  # of the table; a tenth of them are the test rows
PARTS = ("prepare", "build", "export", "load", "request", "again", "evaluate")


def one(columns: int, rows: int, folder: Path) -> dict[str, float]:
    """Return the seconds of each part for a table."""
    import tensorflow as tf

    from kfp_tfjob.components.evaluate import engine as evaluate
    from kfp_tfjob.components.prepare_data import engine as prepare
    from kfp_tfjob.components.step import Step
    from kfp_tfjob.features.served_model import ServedModel
    from kfp_tfjob.options.gate import DEFAULT_GATE
    from kfp_tfjob.pipelines.local.s3_server import Server
    from kfp_tfjob.storage.address import S3Address
    from kfp_tfjob.storage.layout import MODEL, Layout
    from kfp_tfjob.trainer import models
    from kfp_tfjob.trainer.dataset import Dataset
    from kfp_tfjob.trainer.export import export
    from kfp_tfjob.uploader import pull, push

    found: dict[str, float] = {"columns": columns}

    @contextmanager
    def timed(part: str) -> Iterator[None]:
        began, cpu = time.perf_counter(), time.process_time()
        yield
        found[part] = round(time.process_time() - cpu, 2)
        found[f"{part}_wall"] = round(time.perf_counter() - began, 2)

    table = folder / "table.csv"
    _write(table, columns, rows)
    with Server.start(folder / "s3") as s3:
        store, layout = s3.store(), Layout(S3Address("test", "wide"))
        store.make_bucket("test")
        step = Step("benchmark", "run-1", layout, store)
        split = {"split": {"train": 0.8, "validation": 0.1, "test": 0.1}}
        with timed("prepare"):
            prepared = prepare.run(step, str(table), "label", split)
        data, schema = folder / "data", prepared.schema
        pull(store, S3Address.parse(prepared.dataset_uri), data)
        dataset = Dataset.load(data)
        found["test_rows"] = dataset.rows["test"]
        with timed("build"):
            model = models.mlp(dataset)
        output = folder / "run" / "output"
        with timed("export"):
            export(model, dataset, output, logits=True)
        with timed("load"):
            served = ServedModel(output / MODEL, schema, "the model")
        row = served.example(1)
        with timed("request"):
            served.predict(row)
        with timed("again"):
            served.predict(row)
        graph = tf.saved_model.load(str(output / MODEL)).signatures["serve"].graph
        found["nodes"] = len(graph.as_graph_def().node) + sum(
            len(function.node_def) for function in graph.as_graph_def().library.function
        )
        found["megabytes"] = round((output / MODEL / "saved_model.pb").stat().st_size / 1e6, 2)
        run = layout.run("run-1")
        push(store, folder / "run", run.base, "output", "run-1", 1)
        with timed("evaluate"):
            evaluate.run(step, prepared.dataset_uri, "wide", str(run.model), DEFAULT_GATE)
    return found


def _write(path: Path, columns: int, rows: int) -> None:
    """Write a CSV with two classes; each column has missing values."""
    random = np.random.default_rng(5)
    values = random.normal(size=(rows, columns))
    labels = np.where(values[:, 0] + random.normal(size=rows) > 0, "yes", "no")
    gaps = random.random(values.shape) < 0.05
    gaps[np.arange(columns) % rows, np.arange(columns)] = True
    with path.open("w") as file:
        file.write(",".join([*(f"x{at}" for at in range(columns)), "label"]) + "\n")
        for row, empty, label in zip(values, gaps, labels, strict=True):
            texts = ["" if gap else f"{value:.4f}" for value, gap in zip(row, empty, strict=True)]
            file.write(",".join([*texts, label]) + "\n")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--columns", type=int, nargs="+", default=COLUMNS)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        with tempfile.TemporaryDirectory() as scratch:
            print(json.dumps(one(given.one, given.rows, Path(scratch))))
        return
    print(f"{'columns':>8}{'nodes':>9}{'MiB':>7}" + "".join(f"{part:>10}" for part in PARTS))
    result = []
    for columns in given.columns:
        line = ["-m", "benchmarks.wide_tables", "--one", str(columns), "--rows", str(given.rows)]
        usage = measured([sys.executable, *line])
        found = usage.said | {"memory": usage.peaks[0]}
        result.append(found)
        seconds = "".join(f"{found[part]:>10.2f}" for part in PARTS)
        print(f"{columns:>8}{found['nodes']:>9}{found['memory']:>7.0f}{seconds}", flush=True)
    print(json.dumps({"benchmark": "wide_tables", "rows": given.rows, "tables": result}))


if __name__ == "__main__":
    main()
