"""An error of our own code is a bug of the step; the user is not blamed for it.

Each door is entered with good input while a function of ours behind it raises what a bug raises.
"""

import ast
import io
import json
import pickle
import zipfile
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from kfp_tfjob.common.errors import ObjectNotFoundError, StepError
from kfp_tfjob.components import step
from kfp_tfjob.components.prepare_data import columns_to_rows, sample, tasks
from kfp_tfjob.components.prepare_data.executors import distributed
from kfp_tfjob.components.prepare_data.executors.executor import answer, result_of
from kfp_tfjob.components.prepare_data.source.readers import arrow_table, parquet_table
from kfp_tfjob.components.sync_output import sync
from kfp_tfjob.jobs import attempt_record
from kfp_tfjob.judging import rows
from kfp_tfjob.registry import prune_runs, prune_versions, run_folder
from kfp_tfjob.registry.champion import read_record
from kfp_tfjob.registry.verdict_record import ModelVerdict
from kfp_tfjob.serving import requests_sample
from kfp_tfjob.storage import documents
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.manifest import Manifest
from kfp_tfjob.trainer import checkpoint_folder, checkpoint_format, encoded_rows
from kfp_tfjob.trainer.dataset import Dataset, RowWeights
from kfp_tfjob.user_code import code_files
from tests.conftest import PACKAGES
from tests.local import tiny_dataset
from tests.unit import test_evaluate_rows as evaluate_rows
from tests.unit import test_requests_sample as samples
from tests.unit import test_trainer_checkpoint as checkpoints
from tests.unit.prepared_files import read, write_table
from tests.unit.test_stored_records import LAYOUT

ROOT = Path(__file__).parents[2]
BUGS = (ValueError, TypeError, KeyError, AttributeError, IndexError, RuntimeError)
MODEL = Layout.parse("s3://bucket").model("m")


def _table(folder: Path, ending: str) -> None:
    read(write_table(folder / f"t.{ending}", {"a": range(60), "y": ["no", "yes", "no"] * 20}))


def _test_rows(folder: Path) -> None:
    list(evaluate_rows._split([evaluate_rows._zeros(folder)], 9, 2, False).batches())


def _opened(path: Path, offset: int) -> Any:
    stream = path.open("rb")
    stream.seek(offset)
    return stream


def _first_rows(folder: Path) -> None:
    path = evaluate_rows._zeros(folder)
    schema = evaluate_rows.typed(
        {
            "features": dict.fromkeys(evaluate_rows.COLUMNS, "float32"),
            "label": {"name": "label", "classes": ["c0", "c1"]},
            "splits": {"test": {"rows": 9, "shards": ["t"]}},
        }
    )
    store: Any = SimpleNamespace(
        head=lambda address: {"ContentLength": path.stat().st_size, "ETag": "e"},
        open=lambda address, offset, etag: _opened(path, offset),
        patience=SimpleNamespace(run=lambda what, call, transient: call()),
    )
    sample.read(store, LAYOUT.dataset("d"), schema, "test")


def _dataset(folder: Path) -> None:
    Dataset.load(tiny_dataset.write(folder / "dataset"))


def _checkpoint(folder: Path) -> None:
    checkpoints._content(1).write(folder)
    try:
        checkpoint_folder.read_newest(folder)
    finally:
        assert checkpoint_folder.stored_steps(folder) == [1]  # it is not damaged


def _zip(folder: Path) -> None:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("model.py", "x = 1\n")
    assert code_files.unzip(stream.getvalue(), "code.zip")


def _in_process(folder: Path) -> None:
    result_of(answer(Mock(), f"{tasks.__name__}:rows", pickle.dumps(None), None))


def _on_dask(folder: Path) -> None:
    body = pickle.dumps(None)
    (folder / "common").write_bytes(body)
    given = (str(folder), "", ""), "builtins:max", ("common", sha256(body).hexdigest()), None
    result_of(distributed.remote_task(distributed.code_version(), *given))


def _end(folder: Path) -> None:
    end = {"code": 1, "reason": "", "time": "", "seconds": 1.0, "step": 1, "stop_within": None}
    body = json.dumps(end).encode()
    files = {"0001.chief.json": body}
    attempt_record.read_ends(_store(files), LAYOUT.run("r"), [1])


def _store(files: dict[str, bytes]) -> Any:
    def body(address: Any, *_: object) -> bytes:
        if found := files.get(address.name):
            return found
        raise ObjectNotFoundError(f"no {address}")

    return SimpleNamespace(read=body)


def _holding(body: bytes) -> Any:
    return SimpleNamespace(read=lambda address: body)


def _record(read: Callable[[Any], object]) -> Callable[[Path], None]:
    return lambda folder: read(_holding(b"{}")) and None


def _completion(store: Any) -> object:
    return sync._completion_problems(Mock(store=store, run=LAYOUT.run("r")), Mock(objects=()))


# What reads a stored document, whose damage is reported with its address.
DOCUMENTS: dict[str, Callable[[Any], object]] = {
    "champion": lambda store: read_record(store, LAYOUT, "m", 1),
    "run folder": lambda store: run_folder.find(store, LAYOUT, "r"),
    "note": lambda store: run_folder.note(store, LAYOUT.run("r").unchanged),
    "verdict": lambda store: ModelVerdict.read(store, LAYOUT.run("r").verdict),
    "manifest": lambda store: Manifest.from_bytes(store.read(LAYOUT.run("r").manifest)),
    "tombstone": lambda store: prune_versions.read_tombstone(store, MODEL, 1),
    "pruned run": lambda store: prune_runs._read_json(store, LAYOUT.run("r").verdict),
    "completion": _completion,
}
# What is entered, and the function behind it that has the bug.
DOORS: dict[str, tuple[Callable[[Path], None], Any, str]] = {
    "columns of Parquet": (lambda it: _table(it, "parquet"), arrow_table, "NumberBlock"),
    "labels of Parquet": (lambda it: _table(it, "parquet"), columns_to_rows, "as_texts"),
    "chunks of Parquet": (lambda it: _table(it, "parquet"), parquet_table, "BlockFaults"),
    "header of Parquet": (lambda it: _table(it, "parquet"), arrow_table, "Counter"),
    "columns of CSV": (lambda it: _table(it, "csv"), columns_to_rows.Converter, "column"),
    "header of CSV": (lambda it: _table(it, "csv"), arrow_table.pa, "schema"),
    "test rows": (_test_rows, rows.TestData, "_labels_of"),
    "train rows": (_dataset, encoded_rows.Packing, "pack"),
    "sampled rows": (_first_rows, sample, "_labels"),
    "dataset": (_dataset, RowWeights, "of"),
    "checkpoint": (_checkpoint, checkpoint_format, "_numpy_dtype"),
    "code": (_zip, code_files, "_check"),
    "task of a process": (_in_process, tasks, "_PartWriter"),
    "task on Dask": (_on_dask, distributed, "Context"),
    "end of an attempt": (_end, attempt_record, "judge_chief"),
    "sampled requests": (lambda _: samples.opened(samples.file()), requests_sample, "_digest"),
    "about requests": (
        lambda _: samples.opened(samples.file()),
        requests_sample.About,
        "from_bytes",
    ),
    **{f"stored {name}": (_record(it), documents, "_check_size") for name, it in DOCUMENTS.items()},
}


@pytest.mark.parametrize("door", DOORS)
def test_a_bug_is_not_the_users_fault(
    door: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enter, place, name = DOORS[door]
    for kind in (*BUGS, MemoryError):

        def fail(*_: object, kind: type[Exception] = kind, **__: object) -> None:
            raise kind("planted")

        with monkeypatch.context() as patch, pytest.raises(Exception) as caught:
            patch.setattr(place, name, fail)
            enter(tmp_path)
        failure = step.failure_of("prepare_data", caught.value)
        verdict = "out_of_memory" if kind is MemoryError else "failed"
        assert "planted" in failure.message, kind
        assert (failure.code, failure.verdict) == (1, verdict), kind
        assert bool(failure.problems) is (kind is MemoryError)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_damaged_document_is_not_a_bug(name: str) -> None:
    store = _holding(b"{")
    if name == "completion":
        assert DOCUMENTS[name](store)
        return
    with pytest.raises(StepError) as caught:
        DOCUMENTS[name](store)
    (problem,) = caught.value.problems
    assert problem.received and problem.fix


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("prepare_data", "pod.prepare.memory"),
        ("evaluate", "pod.evaluate.memory"),
        ("publish", "pod.evaluate.memory"),
        ("preflight", ""),
    ],
)
def test_lack_of_memory_names_what_gives_more(
    name: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    failure = step.failure_of(name, MemoryError())
    (problem,) = failure.problems
    assert (failure.code, failure.verdict, problem.path) == (1, "out_of_memory", path)
    assert f"--step-resources {name}.memory=" in problem.fix
    monkeypatch.setenv("KFP_TFJOB_BACKEND", "local")
    (problem,) = step.failure_of(name, MemoryError()).problems
    assert not problem.path and "--step-resources" not in problem.fix


# Handlers of builtins around our own code that blame nobody, by file and function called.
WIDE = {
    ("components/prepare_data/executors/executor.py", "call"): "the answer has the traceback",
    ("kfp_tfjob/features/image_header.py", "_jpeg"): "bytes that end early are an IndexError",
    ("kfp_tfjob/features/image_header.py", "_png"): "as _jpeg",
    ("components/prepare_data/source/readers/own_reader.py", "call"): "the user's function",
    ("components/step.py", "outcome_of"): "a step has failed, and the record of that is stored",
    ("kfp_tfjob/cluster/run_watch.py", "_part"): "any text may stand for a time",
    ("kfp_tfjob/cluster/run_watch.py", "_part(workflow, 'status').get"): "as _part",
    ("kfp_tfjob/features/served_model.py", "self._call"): "the model's own graph",
    ("kfp_tfjob/judging/own_metrics.py", "call"): "the user's function",
    (
        "kfp_tfjob/registry/mirror.py",
        "_mirror_content",
    ): "it logs the traceback; no mirror fails a run",
    ("kfp_tfjob/registry/versions.py", "_claim_of"): "a claim of any version; nobody is blamed",
    ("kfp_tfjob/serving/batcher.py", "Rows"): "it is the answer to a request",
    ("kfp_tfjob/serving/follower.py", "LoadedModel.of"): "only MemoryError",
    ("kfp_tfjob/serving/follower.py", "self._switch_to"): "only MemoryError",
    ("kfp_tfjob/storage/retry.py", "call"): "only what `transient` accepts becomes a problem",
    ("kfp_tfjob/supervisor/tf_config.py", "cls"): "a dataclass",
    **dict.fromkeys(
        [
            ("trainer/mlflow_run.py", call)
            for call in ("self.connect", "self._run.log_epochs", "self.pending.clear", "end")
        ],
        "a process beside the trainer: it names the error, and fails no run",
    ),
    ("pipelines/commands/monitor.py", "compare"): "it says that it is a bug",
    ("pipelines/commands/parameters.py", "_parse_json"): "it only looks whether a text is JSON",
    ("pipelines/commands/parameters.py", "_read_json"): "it only parses a text",
    ("pipelines/commands/parameters.py", "_read_yaml"): "as _read_json",
    ("pipelines/doctor.py", "findings"): "it says that it is a bug",
    ("pipelines/kubeflow/connection.py", "Client"): "the client of kfp",
    ("pipelines/kubeflow/connection.py", "call"): "only errors about a reply become a problem",
    ("trainer/__main__.py", "Config.from_environment"): "it prints the traceback",
    ("trainer/__main__.py", "_with_flags"): "it prints the traceback",
    ("trainer/__main__.py", "train"): "it prints the traceback",
    ("trainer/callback_state.py", "_check_keys"): "it raises TypeError about the user's keys",
    ("trainer/callback_state.py", "_has_state_methods"): "it looks for the user's methods",
    ("trainer/export_test.py", "readable_alone"): "it looks for variables in the user's layers",
    ("trainer/export_test.py", "with_signatures"): "it looks at the user's model, as export does",
    ("trainer/self_test.py", "_loss"): "the user's loss",
    ("trainer/self_test.py", "_weight_problems"): "the user's loss",
    ("trainer/user_model.py", "_example"): "an example of the rows",
    ("trainer/user_model.py", "_keep_statistics"): "it builds the user's layers",
    ("trainer/user_model.py", "output_spec"): "it calls the user's model",
    ("uploader/barrier.py", "Request"): "a dataclass",
    ("uploader/ownership.py", "self._path.read_bytes"): "a path",
    ("uploader/parallel.py", "CallOutcome"): "a dataclass",
    ("uploader/parallel.py", "call"): "the caller gets the error",
}
_BUILTINS = {kind.__name__ for kind in (*BUGS, MemoryError, Exception, BaseException, LookupError)}
_BUILTINS |= {"ArithmeticError", "OverflowError", "AssertionError"}


def _sources() -> Iterator[Path]:
    for package in PACKAGES:
        yield from sorted((ROOT / "kfp_tfjob" / package).resolve().rglob("*.py"))


def _ours(tree: ast.Module) -> set[str]:
    """Return the names that a module defines, or imports from this project."""
    found = {"self", "cls", "call"}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            if node.level or (node.module or "").startswith("kfp_tfjob"):
                found |= {it.asname or it.name for it in node.names}
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
    return found


def _root(node: ast.AST) -> str:
    while not isinstance(node, ast.Name):
        inner = getattr(node, "value", None) or getattr(node, "func", None)
        if inner is None:
            return ""
        node = inner
    return node.id


def _answers(handler: ast.ExceptHandler) -> bool:
    """Return whether a handler raises another error, or returns."""
    body = [node for part in handler.body for node in ast.walk(part)]
    return any(isinstance(it, ast.Return) or (isinstance(it, ast.Raise) and it.exc) for it in body)


def test_no_handler_of_a_builtin_is_around_our_own_code() -> None:
    wide = set()
    for path in _sources():
        tree = ast.parse(path.read_bytes())
        ours = _ours(tree)
        for node in (it for it in ast.walk(tree) if isinstance(it, ast.Try)):
            caught = {
                it.id
                for handler in filter(_answers, node.handlers)
                for it in ast.walk(handler.type or ast.Name("BaseException"))
                if isinstance(it, ast.Name)
            }
            if not caught & _BUILTINS:
                continue
            calls = (
                it.func for part in node.body for it in ast.walk(part) if isinstance(it, ast.Call)
            )
            name = str(path.relative_to(ROOT))
            wide |= {(name, ast.unparse(it)) for it in calls if _root(it) in ours}
    assert wide - WIDE.keys() == set(), "wrap only the call that can fail for the user's reason"
    assert WIDE.keys() - wide == set()
