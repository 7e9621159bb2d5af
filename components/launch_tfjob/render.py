"""Renders a job manifest as YAML for people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import yaml

from kfp_tfjob.jobs.manifest import Identity, build_job
from kfp_tfjob.jobs.spec import JobSpec
from kfp_tfjob.options import fields
from kfp_tfjob.options.secret_values import masked_job
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.user_code.model_code import ModelCode


class _Dumper(yaml.SafeDumper):
    """Repeats equal values, because anchors are hard to read."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def to_yaml(manifest: Mapping[str, Any]) -> str:
    """Return a manifest as YAML with masked secrets; equal manifests give equal bytes."""
    return yaml.dump(
        masked_job(manifest), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100
    )


def render(values: Mapping[str, Any], run_id: str) -> str:
    """Return the first attempt of a run as YAML.

    Args:
        values: Every run parameter by name; those of other steps are ignored.
        run_id: The id of the run, as KFP would give it.

    Raises:
        ConfigurationError: Parameters are wrong; it lists every problem.
    """
    groups = ("output_uri", "storage_", "model_name", "model_hyperparameters", "train_", "pod")
    given = {name: value for name, value in values.items() if name.startswith(groups)}
    code = ModelCode.parse(values["model_code"])
    layout = Layout.parse(values["output_uri"])
    spec = JobSpec.parse(
        model_entry=f"{code.module}:{code.function}",
        dataset_uri=str(layout.dataset("DATASET-DIGEST")),
        **given,
    )
    # The tick of the run is not known here: its fields stay.
    folder = fields.folder(layout.template, None, spec.model_name, spec.gpus, spec.pod)
    run = layout.run(run_id, folder)
    spec = replace(spec, code_uri="" if code.in_image else str(run.code))
    return to_yaml(build_job(spec, Identity(run_id, 1, run_uri=str(run.base))))
