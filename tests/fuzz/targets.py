"""The doors through which input from elsewhere comes, each with what may come through it.

A target is handed an example and a folder of its own. Only a StepError may come out, and nothing
may be written outside of the folder.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from kfp_tfjob.common import names
from kfp_tfjob.common.errors import ConfigurationError, StepError
from kfp_tfjob.components.preflight import parameters as run_parameters
from kfp_tfjob.components.preflight.parameters import defaults
from kfp_tfjob.components.preflight.plan import RunPlan
from kfp_tfjob.components.prepare_data import dataset, report, row_requirements, scan
from kfp_tfjob.components.prepare_data.data_validation import Validation
from kfp_tfjob.components.prepare_data.executors.executor import Context, Executor
from kfp_tfjob.components.prepare_data.source.resolve import check_header, list_source
from kfp_tfjob.jobs.job_identity import Identity
from kfp_tfjob.jobs.manifest import build_job, to_yaml
from kfp_tfjob.options.data import DataOptions
from kfp_tfjob.options.gate import parse_gate
from kfp_tfjob.options.parse import parse
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.manifest import Manifest, ManifestObject
from kfp_tfjob.storage.store import Listed
from kfp_tfjob.uploader import pull
from kfp_tfjob.user_code import code_files
from kfp_tfjob.user_code.model_code import Code, ModelCode
from tests.fuzz import strategies
from tests.unit.launch_parameters import EVERYTHING


@dataclass(frozen=True)
class Target:
    examples: st.SearchStrategy[Any]
    enter: Callable[[Any, Path], object]


class FolderStore:
    """As much of a store as the targets need, at a thousand times the speed."""

    def __init__(self, objects: dict[str, bytes]) -> None:
        self._objects = objects

    def list(self, prefix: S3Address) -> Iterator[Listed]:
        for key, data in self._objects.items():
            yield Listed(prefix / key, len(data), "tag", datetime.now(UTC))

    def has(self, address: S3Address) -> bool:
        return address.key.partition("/")[2] in self._objects

    def read(self, address: S3Address, limit: int = 0) -> bytes:
        return self._objects[address.key.partition("/")[2]]

    def read_manifest(self, address: S3Address) -> Manifest:
        return Manifest.from_bytes(self._objects["manifest.json"], address)

    def fetch(self, address: S3Address, folder: Path, expected: ManifestObject) -> None:
        _write(folder, {expected.key: b""})

    def probe(self, address: S3Address) -> None:
        return None

    def write(self, address: S3Address, data: bytes, content_type: str = "") -> str:
        return "AAAAAAAAAAA="

    def send(self, path: Path, address: S3Address, key: str) -> ManifestObject:
        return ManifestObject(key, path.stat().st_size, "AAAAAAAAAAA=")


def _write(folder: Path, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        path = names.below(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def _table(example: tuple[bytes, str, dict[str, Any]], folder: Path, name: str) -> None:
    data, label, given = example
    (folder / name).write_bytes(data)
    store: Any = FolderStore({})
    options = parse(DataOptions, "data_options", given)
    source = list_source(store, str(folder / name))
    for problem in check_header(source, label, options):
        str(problem).encode()
    (folder / "spill").mkdir()
    executor = Executor(Context(str(folder / "spill"), opened=store))
    found = scan.read(source, label, options, executor, 1 << 20)
    decided = row_requirements.decide(found)
    done = dataset.write(S3Address("bucket", "d"), found, decided)
    report.render(done.schema, done.statistics, False, Validation()).encode()


def _code(files: dict[str, bytes], folder: Path) -> None:
    _write(folder / "code", files)


def _zip(data: bytes, folder: Path) -> None:
    (folder / "model.zip").write_bytes(data)
    code = ModelCode(str(folder / "model.zip"), "build_model").read(None)  # type: ignore[arg-type]
    _code(code.files, folder)
    ConfigurationError.raise_if(code.problems("build_model", {"units": 1}))


def _keys(keys: list[str], folder: Path) -> None:
    store: Any = FolderStore(dict.fromkeys(keys, b"x"))
    _code(code_files.stored(store, S3Address("bucket", "code")), folder)


def _module(text: str, folder: Path) -> None:
    data = text.encode(errors="surrogatepass")
    ConfigurationError.raise_if(Code("m", {"m.py": data}).problems("f", {"x": 1}))


def _manifest(data: bytes, folder: Path) -> None:
    store: Any = FolderStore({"manifest.json": data})
    manifest = pull(store, S3Address("bucket", "code"), folder / "code")
    assert Manifest.from_bytes(manifest.to_bytes()) == manifest


def _options(values: dict[str, Any], folder: Path) -> None:
    spec = RunPlan.parse(values).job
    run_parameters.table(values, spec).encode()
    to_yaml(build_job(spec, Identity("run", 1))).encode()
    parse(DataOptions, "data_options", values["data_options"]).dataset_digest("d", "label")
    parse_gate(values["gate"])
    json.dumps(spec.options.for_trainer, allow_nan=False).encode()


_GATE = {
    "primary_metric": "accuracy",
    "mode": "non_inferior",
    "margin": 0.1,
    "confidence": 0.9,
    "first_model": "accept",
    "incompatible_champion": "fail",
    "thresholds": {"accuracy": {"min": 0.5, "max": 1}},
}
_DATA = {
    "task": "auto",
    "columns": ["a", "b"],
    "drop": ["c"],
    "split": {"train": 0.5, "validation": 0.25, "test": 0.25, "salt": "1"},
    "on_bad_row": "drop",
    "max_bad_fraction": 0.5,
    "delimiter": "tab",
    "format": "csv",
    "encoding": "latin-1",
    "null_values": ["-"],
    "names": ["a", "b", "c", "y"],
    "header": False,
}


@st.composite
def _values(draw: st.DrawFn) -> dict[str, Any]:
    """Every run parameter; some dicts are not what they should be."""
    dicts = {
        "train_options": EVERYTHING["train_options"],
        "pod": EVERYTHING["pod"],
        "model_hyperparameters": EVERYTHING["model_hyperparameters"],
        "gate": _GATE,
        "data_options": _DATA,
    }
    values = defaults() | {
        "data_uri": "x.csv",
        "data_label": "y",
        "model_name": "m",
        "output_uri": "s3://bucket/prefix",
    }
    for name in draw(st.sets(st.sampled_from(sorted(dicts)), min_size=1, max_size=2)):
        values[name] = draw(strategies.option_dicts(dicts[name]))
    if draw(st.integers(0, 3)) == 0:
        values[draw(st.sampled_from(sorted(values)))] = draw(strategies.anything)
    return values


TARGETS = {
    "csv": Target(strategies.csvs(), lambda example, to: _table(example, to, "x.csv")),
    "parquet": Target(strategies.parquets(), lambda example, to: _table(example, to, "x.parquet")),
    "jsonl": Target(strategies.jsons(), lambda example, to: _table(example, to, "x.jsonl")),
    "arrow": Target(strategies.arrows(), lambda example, to: _table(example, to, "x.arrow")),
    "excel": Target(strategies.excels(), lambda example, to: _table(example, to, "x.xlsx")),
    "tfrecord": Target(
        strategies.tfrecords(), lambda example, to: _table(example, to, "x.tfrecord")
    ),
    "zip": Target(strategies.zips(), _zip),
    "keys": Target(st.lists(strategies.names, max_size=5), _keys),
    "module": Target(strategies.code, _module),
    "manifest": Target(strategies.manifests(), _manifest),
    "options": Target(_values(), _options),
}


def enter(target: Target, example: Any, scratch: Path) -> bool:
    """Let an example in, and return whether it was accepted and not refused with a message."""
    inside = scratch / "a" / "b" / "inside"
    inside.mkdir(parents=True)
    try:
        target.enter(example, inside)
    except StepError as error:
        str(error)
        return False
    finally:
        outside = [path for path in scratch.rglob("*") if inside not in (path, *path.parents)]
        assert outside == [scratch / "a", scratch / "a" / "b"], f"outside: {outside}"
    return True
