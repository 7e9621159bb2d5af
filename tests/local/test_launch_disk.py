"""A replica's disk grows with the data, unless the run sets it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kfp_tfjob.components.launch_tfjob.disk import with_disk
from kfp_tfjob.components.step import Step
from kfp_tfjob.jobs.spec import JobSpec
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import MANIFEST
from kfp_tfjob.storage.manifest import Manifest
from kfp_tfjob.uploader import push
from tests.local import tiny_dataset
from tests.unit.launch_parameters import DEFAULTS

GB = 10**9
COMMAND = {"command": ["python3", "train.py"]}


def disk_of(step: Step, base: S3Address, **parameters: Any) -> str | None:
    given = {**DEFAULTS, "dataset_uri": str(base), "output_uri": "s3://test/out", **parameters}
    if "command" in given.get("train_options", {}):
        given["model_entry"] = ""
    return with_disk(step, JobSpec.parse(**given)).pod.of("chief").ephemeral_storage


@pytest.mark.parametrize(
    ("stored", "rows", "parameters", "expected"),
    [
        (1000, 2000, {}, "20Gi"),
        (9 * GB, 2000, {}, "20Gi"),
        (12 * GB, 2000, {}, "22Gi"),
        (GB, 10**9, {}, "45Gi"),  # 6 columns of 4 bytes, and 12 bytes of label and weight
        (GB, 10**9, {"pod": {"all": {"ephemeral_storage": "5Gi"}}}, "5Gi"),
        (12 * GB, 10**9, {"train_options": COMMAND}, "22Gi"),
        (GB, 10**9, {"train_options": COMMAND | {"stage_data": "npy"}}, "64Gi"),
        (12 * GB, 10**9, {"train_options": COMMAND | {"stage_data": False}}, "20Gi"),
    ],
)
def test_the_disk_has_space_for_the_data(
    step: Step,
    base: S3Address,
    tmp_path: Path,
    stored: int,
    rows: int,
    parameters: dict[str, Any],
    expected: str,
) -> None:
    push(step.store, tiny_dataset.write(tmp_path / "data"), base, "dataset")
    manifest = step.store.read_manifest(base / MANIFEST)
    objects = [
        replace(item, size=stored) if item.key == "train/00000.parquet" else item
        for item in manifest.objects
    ]
    details = {"rows": {"train": rows, "validation": 0, "test": rows}, "features": 6}
    written = Manifest.of(manifest.kind, objects, details=details)
    step.store.write(base / MANIFEST, written.to_bytes())
    assert disk_of(step, base, **parameters) == expected


def test_a_folder_without_a_manifest_is_the_programs_own(step: Step, base: S3Address) -> None:
    assert disk_of(step, base, train_options=COMMAND) == "20Gi"
