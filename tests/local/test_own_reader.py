"""A reader of the user's own: any format, with named failures."""

import pickle
from pathlib import Path

import pytest

from examples import own_reader as example
from kfp_tfjob.common.errors import DataError, StoreUnavailableError
from kfp_tfjob.components.prepare_data.engine import run
from kfp_tfjob.components.prepare_data.source.column_names import Columns
from kfp_tfjob.components.prepare_data.source.digest import source_digest
from kfp_tfjob.components.prepare_data.source.files import Source
from kfp_tfjob.components.prepare_data.source.readers import own_reader
from kfp_tfjob.components.prepare_data.source.readers.arrow_table import Chunk
from kfp_tfjob.components.prepare_data.source.readers.open_table import open_table
from kfp_tfjob.components.prepare_data.source.resolve import check_header, list_source
from kfp_tfjob.components.step import Step
from kfp_tfjob.options.data import DataOptions
from kfp_tfjob.options.parse import parse
from kfp_tfjob.storage.address import S3Address
from tests.problems import problem_of

EXAMPLE = Path(example.__file__)
HEAD = "import os, sys, time\nimport pyarrow as pa\n"
BATCH = "pa.RecordBatch.from_pydict({'a': [1.5, 2.5], 'y': ['u', 'v']})"


def options(code: Path | S3Address, function: str = "read", **more: object) -> DataOptions:
    return parse(DataOptions, "data_options", {"reader": f"{code}:{function}", **more})


def source_of(folder: Path, body: str, data: bytes = b"1,2\n") -> tuple[Source, DataOptions]:
    """Return a source of one file, and options with a reader whose body is given."""
    code = folder / "mine.py"
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    code.write_text(f"{HEAD}def read(stream, name):\n{lines}")
    (folder / "data.bin").write_bytes(data)
    chosen = options(code)
    return list_source(None, str(folder / "data.bin"), chosen), chosen


def rows(source: Source, chosen: DataOptions, *names: str) -> list[Chunk]:
    """Return these columns of all rows of the first file."""
    with open_table(source, source.files[0], chosen) as table:
        return list(table.chunks(Columns(names, "y")))


def test_text_of_fixed_width_becomes_a_dataset(step: Step, base: S3Address, tmp_path: Path) -> None:
    """The files may have any ending, and code in the store is the same as code of this machine."""
    example.write(str(tmp_path / "a.dat"), rows=300)
    step.store.write(base / "in/a.dat", (tmp_path / "a.dat").read_bytes())
    step.store.write(base / "other/own_reader.py", EXAMPLE.read_bytes())
    given = {"reader": f"{base}/other/own_reader.py:read"}
    source = list_source(step.store, f"{base}/in", options(EXAMPLE))
    done = run(step, f"{base}/in", "frost", given, source_digest(source))
    kinds = {item.name: item.type for item in done.schema.features}
    assert kinds == {
        "station": "category",
        "day": "date",
        "temperature": "float32",
        "humidity": "float32",
    }
    assert sum(done.rows.values()) == 300
    assert done.statistics.features["temperature"].missing > 0
    assert not check_header(source, "frost", options(EXAMPLE))


def test_the_code_is_part_of_the_digest(tmp_path: Path) -> None:
    source, _ = source_of(tmp_path, f"yield {BATCH}")
    again, _ = source_of(tmp_path, f"yield {BATCH}")
    other, _ = source_of(tmp_path, f"yield {BATCH}  # the same rows")
    first = source_digest(source).encode()
    assert source_digest(again).encode() == first != source_digest(other).encode()
    assert pickle.loads(pickle.dumps(source.reader)) == source.reader


def test_a_module_beside_the_reader_is_part_of_the_digest_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another clean.py gave a dataset with the values of the first one."""
    monkeypatch.chdir(tmp_path)
    Path("data.bin").write_bytes(b"1")
    Path("clean.py").write_text("SCALE = 1\n")
    Path("mine.py").write_text(
        f"{HEAD}from clean import SCALE\ndef read(stream, name):\n"
        "    yield pa.RecordBatch.from_pydict({'a': [SCALE], 'y': ['u']})\n"
    )
    chosen = options(Path("mine.py"))
    problem = problem_of(list_source, None, "data.bin", chosen)
    assert problem.path == "data_options.reader"
    chosen = parse(DataOptions, "data_options", {"reader": problem.suggestion})
    digests = set()
    for scale in (1, 1000):
        Path("clean.py").write_text(f"SCALE = {scale}\n")
        source = list_source(None, "data.bin", chosen)
        digests.add(source_digest(source))
        (chunk,) = rows(source, chosen, "a")
        assert chunk.columns["a"].to_pylist() == [scale]
    assert len(digests) == 2


def test_code_that_changes_during_a_run_is_named(
    step: Step, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log in the reader's folder was said to be a change of the data."""
    monkeypatch.chdir(tmp_path)
    code, data = tmp_path / "code", str(tmp_path / "a.dat")
    code.mkdir()
    example.write(data, rows=300)
    (code / "model.py").write_bytes(EXAMPLE.read_bytes())
    given = {"reader": "./code:read"}
    first = source_digest(list_source(step.store, data, parse(DataOptions, "data_options", given)))
    (code / "run.log").touch()
    problem = problem_of(run, step, data, "frost", given, first, kind=DataError)
    assert "data_options.reader" in problem.what
    (code / "run.log").unlink()
    assert run(step, data, "frost", given, first).rows


def test_code_with_the_name_of_other_code_replaces_it(tmp_path: Path) -> None:
    (tmp_path / "data.bin").write_bytes(b"1")
    for value in (1.5, 2.5):
        package = tmp_path / str(value) / "mine"
        package.mkdir(parents=True)
        (package / "helper.py").write_text(f"VALUE = {value}\n")
        (package / "__init__.py").write_text(
            f"{HEAD}from .helper import VALUE\ndef read(stream, name):\n"
            "    yield pa.RecordBatch.from_pydict({'a': [VALUE], 'y': ['u']})\n"
        )
        chosen = options(package)
        source = list_source(None, str(tmp_path / "data.bin"), chosen)
        (chunk,) = rows(source, chosen, "a")
        assert chunk.columns["a"].to_pylist() == [value]


@pytest.mark.parametrize(
    ("body", "received", "fix"),
    [
        ("yield {'a': 1}", "item 1 is a builtins.dict", "from_pydict"),
        (
            f"yield {BATCH}\nyield pa.RecordBatch.from_pydict({{'a': [1], 'y': ['u']}})",
            "batch 2 with the columns 'a': int64",
            "the same schema",
        ),
        ("return None", "TypeError: 'NoneType' object is not iterable", "correct it"),
        ("return iter(())", "no record batch", "an empty batch"),
        (f"yield {BATCH}\nraise ValueError('at ä')", "ValueError: at ä, in mine.py, line 5", "log"),
        ("import not_there\nyield 1", "ModuleNotFoundError", "correct it"),
    ],
)
def test_failures_are_named(tmp_path: Path, body: str, received: str, fix: str) -> None:
    source, chosen = source_of(tmp_path, body)
    problem = problem_of(rows, source, chosen, "a", kind=DataError)
    assert "mine:read" in problem.what and "data.bin" in problem.what
    assert received in problem.received and fix in problem.fix and problem.expected


def test_a_wrapper_of_the_stream_may_close_it(tmp_path: Path) -> None:
    """As `io.TextIOWrapper` does when it is collected."""
    body = (
        "import csv, io\n"
        "found = list(csv.reader(io.TextIOWrapper(stream)))\n"
        "yield pa.RecordBatch.from_pydict({'a': [int(row[0]) for row in found], 'y': ['u'] * 2})"
    )
    source, chosen = source_of(tmp_path, body, b"1,2\n3,4\n")
    (chunk,) = rows(source, chosen, "a")
    assert chunk.columns["a"].to_pylist() == [1, 3]


def test_it_may_leave_the_rest_and_the_step_too(tmp_path: Path) -> None:
    """Neither side waits for the other; rows before the end of a large file come at once."""
    body = f"stream.read(10)\nwhile True:\n    yield {BATCH}"
    source, chosen = source_of(tmp_path, body, bytes(5 << 20))
    with open_table(source, source.files[0], chosen) as table:
        chunk = next(table.chunks(Columns(("a",), "y")))
        assert chunk.columns["a"].to_pylist() == [1.5, 2.5]


def test_a_file_that_changes_is_a_fault(tmp_path: Path) -> None:
    source, chosen = source_of(tmp_path, f"stream.read()\nyield {BATCH}")
    (tmp_path / "data.bin").write_bytes(b"another content")
    with pytest.raises(DataError, match="changed while"):
        rows(source, chosen, "a")


def test_wrong_arguments_are_named_with_the_right_ones(tmp_path: Path) -> None:
    source, chosen = source_of(tmp_path, "yield 1")
    (tmp_path / "mine.py").write_text("def read(stream):\n    yield 1\n")
    source = list_source(None, str(tmp_path / "data.bin"), chosen)
    (problem,) = check_header(source, "y", chosen)
    assert "takes 1 positional argument" in str(problem)
    assert "def read(stream, name)" in str(problem)


@pytest.mark.parametrize("code", ["def read(:\n", "def reed(stream, name):\n    yield 1\n", None])
def test_wrong_code_is_refused_before_it_runs(tmp_path: Path, code: str | None) -> None:
    if code is not None:
        (tmp_path / "mine.py").write_text(code)
    (tmp_path / "data.bin").write_bytes(b"1")
    chosen = options(tmp_path / "mine.py")
    problem = problem_of(list_source, None, str(tmp_path / "data.bin"), chosen)
    assert problem.path == "data_options.reader" and "model_code" not in str(problem)


def test_only_errors_of_the_function_are_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, chosen = source_of(tmp_path, f"yield {BATCH}")
    for kind in (ValueError, TypeError, KeyError, AttributeError):

        def fail(*_: object, kind: type[Exception] = kind) -> None:
            raise kind("planted")

        with monkeypatch.context() as patch, pytest.raises(kind, match="planted"):
            patch.setattr(own_reader, "_batch_problem", fail)
            rows(source, chosen, "a")
    short, chosen = source_of(tmp_path, "raise MemoryError('of the function')\nyield None")
    with pytest.raises(MemoryError):
        rows(short, chosen, "a")


def test_a_store_that_is_away_is_not_the_functions_fault(tmp_path: Path) -> None:
    source, chosen = source_of(tmp_path, f"stream.read()\nyield {BATCH}")
    away = StoreUnavailableError("the store is away")

    class Broken:
        def __enter__(self) -> "Broken":
            return self

        def __exit__(self, *_: object) -> None: ...

        def readinto(self, buffer: object) -> int:
            raise away

    reader = own_reader.OwnReader.read(str(chosen.reader), None)
    with pytest.raises(StoreUnavailableError) as caught:
        list(reader.batches(Broken, source.files[0].name))
    assert caught.value is away
