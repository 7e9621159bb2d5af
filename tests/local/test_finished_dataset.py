"""A finished dataset as data_uri: proven, used as it is, never changed by options."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from kfp_tfjob.components.prepare_data.engine import run
from kfp_tfjob.components.prepare_data.source.resolve import (
    check_header,
    first_kinds,
    list_source,
    source_digest,
)
from kfp_tfjob.components.step import Step
from kfp_tfjob.options.data import DataOptions
from kfp_tfjob.options.parse import parse
from kfp_tfjob.pipelines.local.s3_server import Server
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.errors import DataError
from kfp_tfjob.storage.layout import MANIFEST, Layout
from kfp_tfjob.storage.manifest import Manifest
from kfp_tfjob.storage.store import Store
from tests.local.local_run import Run


def rows(count: int = 200) -> bytes:
    """Return a table with a column of every kind that is inferred, and with gaps."""
    lines = [
        f"{i / 7 if i % 9 else ''},{'uvw'[i % 3]},2024-01-{i % 28 + 1:02},{'yn'[i % 2]}\n"
        for i in range(count)
    ]
    return ("a,b,d,y\n" + "".join(lines)).encode()


@pytest.fixture
def step(store: Store, base: S3Address) -> Step:
    return Step("prepare_data", "r1", Layout(base / "out"), store)


@pytest.fixture(scope="module")
def objects(s3: Server) -> dict[str, bytes]:
    """The objects of a dataset by their names, and its digest as the empty name."""
    store, base = s3.store(), S3Address("test", "finished dataset")
    store.write(base / "t.csv", rows())
    prepared = run(Step("prepare_data", "r0", Layout(base), store), f"{base}/t.csv", "y", {})
    folder = S3Address.parse(prepared.dataset_uri)
    found = {item.address.name: store.read(item.address) for item in store.list(folder)}
    return found | {"": folder.name.encode()}


@pytest.fixture
def dataset(step: Step, base: S3Address, objects: dict[str, bytes]) -> S3Address:
    """A dataset outside the run's output."""
    folder = base / "other team/datasets" / objects[""].decode()
    for name, data in objects.items():
        if name:
            step.store.write(folder / name, data)
    return folder


def test_it_is_used_where_it_is(step: Step, base: S3Address, dataset: S3Address) -> None:
    done = run(step, f"{dataset}/", "y", {"task": "classification", "columns": ["a", "b", "d"]})
    assert (done.dataset_uri, done.dataset_digest) == (str(dataset), dataset.name)
    assert done.reused and sum(done.rows.values()) == 200
    assert not list(step.store.list(base / "out"))  # nothing was copied

    source = list_source(step.store, str(dataset))
    assert not check_header(source, "y", DataOptions())
    kinds = first_kinds(source, "y", DataOptions()).features
    assert {item.name: item.kind for item in kinds} == {"a": "number", "b": "category", "d": "date"}
    assert run(step, str(dataset), "y", {}, source_digest(source)).reused


def test_the_same_name_on_another_day_is_another_dataset(
    step: Step, base: S3Address, objects: dict[str, bytes]
) -> None:
    digests = []
    for day in ("23", "24"):
        folder = base / f"daily/2026-11-{day}/dataset"
        for name in filter(None, objects):
            step.store.write(folder / name, objects[name])
        known = step.store.read_manifest(folder / MANIFEST)
        changed = Manifest.of("dataset", list(known.objects), details={"day": day})
        step.store.write(folder / MANIFEST, changed.to_bytes())
        done = run(step, str(folder), "y", {})
        digests.append(changed.digest[:32])
        assert (done.dataset_uri, done.dataset_digest) == (str(folder), digests[-1])
    assert digests[0] != digests[1]


@pytest.mark.parametrize(
    ("label", "options", "received", "path"),
    [
        ("b", {}, "data_label 'b'", "data_label"),
        ("y", {"drop": ["a"], "min_count": 3}, "drop, min_count", "data_options.drop"),
        ("y", {"task": "regression"}, "task", "data_options.task"),
        ("y", {"columns": ["b", "a", "d"]}, "columns", "data_options.columns"),
        ("y", {"split": {"salt": "1"}}, "split", "data_options.split"),
        ("y", {"delimiter": "tab"}, "delimiter", "data_options.delimiter"),
    ],
)
def test_what_would_change_it_is_refused(
    step: Step, dataset: S3Address, label: str, options: dict[str, Any], received: str, path: str
) -> None:
    with pytest.raises(DataError) as caught:
        run(step, str(dataset), label, options)
    (problem,) = caught.value.problems
    assert (problem.received, problem.path) == (received, path)
    if label == "b":
        assert problem.expected == f"'y', the label of {dataset}" and problem.suggestion == "y"
    source = list_source(step.store, str(dataset))
    assert check_header(source, label, parse(DataOptions, "data_options", options)) == [problem]


def _swap(step: Step, dataset: S3Address, name: str) -> None:
    data = step.store.read(dataset / name)
    step.store.write(dataset / name, data[:-9] + bytes(8) + data[-1:])


@pytest.mark.parametrize(
    ("damage", "what", "received"),
    [
        (lambda s, d: s.store.delete(d / "manifest.json"), "not complete", "without manifest.json"),
        (
            lambda s, d: s.store.delete(d / "test-00000.parquet"),
            "test-00000.parquet",
            "",
        ),
        (
            lambda s, d: s.store.write(d / "test-00000.parquet", b"x"),
            "does not match",
            "1 bytes",
        ),
        (lambda s, d: s.store.write(d / "manifest.json", b"{"), "not a manifest", "Error"),
        (lambda s, d: _swap(s, d, "train-00000.tfrecord"), "does not match", "CRC64NVME"),
        (lambda s, d: _swap(s, d, "statistics.json"), "does not match", "CRC64NVME"),
    ],
)
def test_what_is_nearly_a_dataset_is_named(
    step: Step, dataset: S3Address, damage: Any, what: str, received: str
) -> None:
    """Never are its shards read as if they were a user's own TFRecord files."""
    damage(step, dataset)
    with pytest.raises(DataError) as caught:
        run(step, str(dataset), "y", {})
    (problem,) = caught.value.problems
    assert what in problem.what and received in (problem.received or "") and problem.fix


def test_other_records_of_these_names_are_data(step: Step, base: S3Address) -> None:
    """A folder with such names is data unless a schema or a manifest of this project is in it."""
    for name in ("train-00000.tfrecord", "manifest.json", "schema.json"):
        step.store.write(base / "in" / name, b'{"format": "other"}')
    assert list_source(step.store, f"{base}/in").dataset is None


def test_a_folder_of_this_machine_is_refused(
    step: Step, dataset: S3Address, tmp_path: Path
) -> None:
    for item in step.store.list(dataset):
        (tmp_path / item.address.name).write_bytes(step.store.read(item.address))
    with pytest.raises(DataError) as caught:
        run(step, str(tmp_path), "y", {})
    (problem,) = caught.value.problems
    assert problem.path == "data_uri" and "store" in problem.fix


@pytest.mark.slow
def test_a_run_on_a_finished_dataset_publishes(tmp_path: Path) -> None:
    """From preflight to the card, with the dataset of an earlier run in the same home."""
    (tmp_path / "t.csv").write_bytes(rows(1500))
    home = tmp_path / "home"
    first = Run(home, "--data", str(tmp_path / "t.csv"), "--label", "y", "--name", "one")
    assert first.wait() == 0, first.text
    (dataset,) = set(re.findall("s3://[^ ]+/datasets/[0-9a-f]{32}", first.text))
    second = Run(home, "--data", dataset, "--label", "y", "--name", "two")
    assert second.wait() == 0, second.text
    assert "finished dataset" in second.text
    card = json.loads((home / "models/two/1/verdict.json").read_text())
    assert card["dataset_uri"] == dataset
    second.assert_nothing_left()
