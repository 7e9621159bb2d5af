"""`.npy` files in DATA_DIR, converted by `setup` from datasets of prepare_data."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from kfp_tfjob.cluster.backend import BACKEND_VARIABLE
from kfp_tfjob.common.errors import ConfigurationError, DataError, StepError
from kfp_tfjob.components.launch_tfjob.setup import npy_columns
from kfp_tfjob.components.launch_tfjob.setup.__main__ import run as run_setup
from kfp_tfjob.components.launch_tfjob.setup.npy_columns import stage_npy
from kfp_tfjob.components.preflight import engine as preflight
from kfp_tfjob.components.preflight.parameters import defaults
from kfp_tfjob.components.prepare_data import engine, parquet_shard, shards
from kfp_tfjob.components.step import FailureReport, Step
from kfp_tfjob.features.types.base import NO_DATE
from kfp_tfjob.pipelines.local.s3_server import Server
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.credentials import MOUNT_VARIABLE
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.store import Store
from kfp_tfjob.uploader import pull, push
from tests.faults.proxy import Exchange, Fault, FaultProxy
from tests.local.mixed_dataset import ROWS, people
from tests.problems import problem_of
from tests.unit.picture_files import animals, tree

ROOT = Path(__file__).parents[2]
MIB = 1 << 20
SECONDS = 300.0
DATES = "datetime64[us]"
# The peak that wait4 reports would be that of the process that started it.
MEASURED = """
from kfp_tfjob.components.launch_tfjob.setup.__main__ import main
assert main() == 0
print(open("/proc/self/status").read())
"""
WITHOUT_PYARROW = "import sys; sys.modules['pyarrow'] = None\n"


@dataclass(frozen=True)
class Source:
    """A table, and the dataset that was prepared from it; `serial` numbers its rows from 0."""

    table: pa.Table
    dataset: S3Address


@pytest.fixture(scope="module")
def source(s3: Server, tmp_path_factory: pytest.TempPathFactory) -> Source:
    """Columns of every type with missing values and weights, in several shards and row groups."""
    random, parts = np.random.default_rng(3), []
    for split, rows in ROWS.items():
        columns: dict[str, Any] = people(random, rows)
        dates = columns["signed up"]
        columns["signed up"] = pa.array(dates, pa.timestamp("us"), mask=dates == NO_DATE)
        columns["\u90fd\u5e02"] = [f"\u533a {row % 7}" if row % 5 else None for row in range(rows)]
        columns["job.title"] = columns["job"][::-1]  # Parquet would call it `title` of `job`
        columns["income"] = np.where(random.random(rows) > 0.5, "rich", "poor")
        columns["w"] = random.random(rows) + 0.5
        parts.append(pa.table(columns | {"part": [split] * rows}))
    table = pa.concat_tables(parts)
    table = table.append_column("serial", pa.array(range(len(table)), pa.float64()))
    path = tmp_path_factory.mktemp("people") / "people.parquet"
    parquet.write_table(table, path)
    options = {"split": {"column": "part"}, "types": {"note": "text"}, "weight": "w"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards, "SHARD_BYTES", 30_000)
        patch.setattr(parquet_shard, "_GROUP_BYTES", 10_000)
        return Source(table, prepare(s3.store(), "npy/people", path, "income", options))


def prepare(
    store: Store, key: str, path: Path, label: str, options: Mapping[str, Any]
) -> S3Address:
    step = Step("prepare_data", "r1", Layout(S3Address("test", key)), store)
    done = engine.run(step, str(path), label, dict(options), workers=1)
    return S3Address.parse(done.dataset_uri)


def environment(folder: Path, dataset: S3Address) -> dict[str, str]:
    """Return the variables of a worker with `stage_data: npy`."""
    return {
        "JOB_DIR": str(folder),
        "OUTPUT_DIR": str(folder / "output"),
        "RUN_URI": "s3://test/npy/runs/r",
        "DATASET_URI": str(dataset),
        "DATA_DIR": str(folder / "data"),
        "STAGE_DATA": "npy",
    }


def process_environment(secret: Path) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), MOUNT_VARIABLE: str(secret)}


def start_setup(
    folder: Path, dataset: S3Address, secret: Path, **variables: str
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "kfp_tfjob.components.launch_tfjob.setup"],
        env=process_environment(secret) | environment(folder, dataset) | variables,
        cwd=folder,
    )


@pytest.fixture(scope="module")
def data(s3: Server, source: Source, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """DATA_DIR of the people."""
    folder = tmp_path_factory.mktemp("job")
    assert start_setup(folder, source.dataset, s3.secret).wait() == 0
    return folder / "data"


def contents(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file."""
    return {
        path.relative_to(folder).as_posix(): sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def index(data: Path) -> dict[str, Any]:
    return json.loads((data / "columns.json").read_text("utf-8"))


def load(data: Path, split: str, column: Mapping[str, str]) -> np.ndarray:
    return np.load(data / split / column["file"], mmap_mode="r", allow_pickle=False)


def test_the_index_describes_every_file(data: Path, source: Source, s3: Server) -> None:
    columns = index(data)
    keys = {item.key for item in s3.store().read_manifest(source.dataset / "manifest.json").objects}
    assert {"train/00002.parquet", "validation/00000.parquet"} < keys
    assert columns == {
        "rows": {"train": ROWS["train"], "validation": ROWS["validation"]},
        "columns": {
            "age": {"file": "age.npy", "type": "number", "dtype": "float64"},
            "job": strings("job", "category"),
            "city": strings("city", "category"),
            "signed up": {"file": "signed_up.npy", "type": "date", "dtype": DATES},
            "member": {"file": "member.npy", "type": "boolean", "dtype": "uint8"},
            "note": strings("note", "text"),
            "\u90fd\u5e02": strings("column", "category"),
            "job.title": strings("job_title", "category"),
            "serial": {"file": "serial.npy", "type": "number", "dtype": "float64"},
        },
        "label": {"name": "income", "file": "income.npy", "type": "class", "dtype": "int64"},
        "weight": {"name": "w", "file": "w.npy", "type": "weight", "dtype": "float32"},
    }
    described = [*columns["columns"].values(), columns["label"], columns["weight"]]
    files = {f"{split}/{it['file']}" for split in columns["rows"] for it in described}
    files |= {it["strings"] for it in described if "strings" in it}
    assert contents(data).keys() == files | {"columns.json", "schema.json", "statistics.json"}
    for split, rows in columns["rows"].items():
        for column in described:
            values = load(data, split, column)
            assert values.shape == (rows,) and values.dtype == column["dtype"]


def strings(file: str, column_type: str) -> dict[str, str]:
    """Return the entry of a column of strings."""
    entry = {"file": f"{file}.npy", "type": column_type, "dtype": "int32"}
    return entry | {"strings": f"strings/{file}.json"}


def test_the_values_are_the_sources(data: Path, source: Source) -> None:
    columns, serials = index(data), {}
    classes = json.loads((data / "schema.json").read_text())["label"]["classes"]
    for split in ROWS.keys() - {"test"}:
        rows = serials[split] = load(data, split, columns["columns"]["serial"]).astype(int)
        table = source.table.take(pa.array(rows))

        def values(name: str, split: str = split) -> np.ndarray:
            return load(data, split, columns["columns"][name])

        def expected(name: str, table: pa.Table = table) -> np.ndarray:
            return table[name].to_numpy()

        np.testing.assert_array_equal(values("age"), expected("age"))
        np.testing.assert_array_equal(values("signed up"), expected("signed up"))
        truths = {"": 255, "true": 1, "false": 0}
        np.testing.assert_array_equal(
            values("member"), [truths[value] for value in expected("member")]
        )
        for name in ("job", "job.title", "city", "note", "\u90fd\u5e02"):
            words = json.loads((data / columns["columns"][name]["strings"]).read_text("utf-8"))
            assert words == sorted(set(words)) and "" not in words
            decoded = np.array([*words, None], object)[values(name)]
            np.testing.assert_array_equal(decoded, [word or None for word in expected(name)])
        labels = load(data, split, columns["label"])
        np.testing.assert_array_equal(np.array(classes, object)[labels], expected("income"))
        weights = load(data, split, columns["weight"])
        np.testing.assert_array_equal(weights, expected("w").astype(np.float32))
        assert set(table["part"].to_pylist()) == {split}
    for split, rows in ROWS.items():
        assert split == "test" or len(set(serials[split])) == rows


def test_each_list_contains_the_strings_of_both_splits_only(data: Path) -> None:
    columns = index(data)["columns"]
    for column in columns.values():
        if "strings" in column:
            words = json.loads((data / column["strings"]).read_text("utf-8"))
            codes = [load(data, split, column) for split in ("train", "validation")]
            assert set(np.concatenate(codes)) - {-1} == set(range(len(words)))


def test_the_rows_are_in_the_order_of_the_shards(
    data: Path, source: Source, store: Store, tmp_path: Path
) -> None:
    schema = json.loads((data / "schema.json").read_text())
    for split in ("train", "validation"):
        numbers, row_groups = [], 0
        for key in schema["splits"][split]["shards"]:
            (tmp_path / "shard").write_bytes(store.read(source.dataset / key))
            numbers += parquet.read_table(tmp_path / "shard")["serial"].to_pylist()
            row_groups += parquet.read_metadata(tmp_path / "shard").num_row_groups
        assert row_groups > len(schema["splits"][split]["shards"])
        assert load(data, split, index(data)["columns"]["serial"]).tolist() == numbers


def test_the_documented_lines_read_the_columns_without_pyarrow(data: Path) -> None:
    page = (ROOT / "docs" / "own-train.md").read_text()
    section = page.partition("## Columns as .npy files")[2]
    lines = re.search(r"```python\n(.*?)```", section, re.DOTALL)
    assert lines
    check = "print(*columns, sum(map(len, columns.values())), labels.dtype, labels.shape)"
    printed = subprocess.run(
        [sys.executable, "-c", f"{WITHOUT_PYARROW}{lines[1]}\n{check}"],
        env={"PATH": os.environ["PATH"], "DATA_DIR": str(data)},
        capture_output=True,
        check=True,
        text=True,
    )
    names, rows = index(data)["columns"], ROWS["train"]
    assert printed.stdout.strip() == f"{' '.join(names)} {len(names) * rows} int64 ({rows},)"


def test_a_repetition_after_a_kill_gives_the_same_bytes(
    data: Path, source: Source, s3: Server, tmp_path: Path
) -> None:
    reached, killed, staged = Event(), Event(), tmp_path / "data"

    def wait(_exchange: Exchange) -> bool:
        reached.set()
        return killed.wait(SECONDS)

    with FaultProxy(s3.endpoint, s3.secret) as proxy:
        proxy.faults = [Fault(wait, "GET", "train/00002")]
        process = start_setup(tmp_path, source.dataset, s3.secret, AWS_ENDPOINT_URL=proxy.endpoint)
        assert reached.wait(SECONDS)
        process.kill()
        assert process.wait() == -9
        killed.set()
    partial = [path.relative_to(staged).parts for path in staged.rglob("*.npy")]
    assert partial and {parts[:2] for parts in partial} == {(".npy.part", "train")}
    assert not (staged / "columns.json").exists()
    for _ in range(2):  # a pod may also start again after a complete conversion
        assert start_setup(tmp_path, source.dataset, s3.secret).wait() == 0
        assert contents(staged) == contents(data)


def test_a_regression_of_plain_numbers(store: Store, tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    rows = [(row % 7, row / 4, row * 1.1) for row in range(300)]
    table.write_text("x,X,y\n" + "".join(f"{x},{other},{y}\n" for x, other, y in rows))
    dataset = prepare(store, "npy/plain", table, "y", {"task": "regression"})
    stage_npy(store, dataset, tmp_path / "data")
    columns = index(tmp_path / "data")
    assert columns["columns"] == {
        "x": {"file": "x.npy", "type": "number", "dtype": "float32"},
        "X": {"file": "X_2.npy", "type": "number", "dtype": "float32"},
    }
    assert columns["label"] == {
        "name": "y",
        "file": "y.npy",
        "type": "number",
        "dtype": "float64",
    }
    expected = {np.float32(other): (np.float32(x), y) for x, other, y in rows}
    described = [*columns["columns"].values(), columns["label"]]
    x, other, y = (load(tmp_path / "data", "train", it) for it in described)
    assert [(a, c) for a, c in zip(x, y, strict=True)] == [expected[it] for it in other]


def test_images_are_refused(store: Store, tmp_path: Path) -> None:
    tree(tmp_path / "images", animals())
    step = Step("prepare_data", "r1", Layout(S3Address("test", "npy/images")), store)
    done = engine.run(step, str(tmp_path / "images"), "", {}, workers=1)
    dataset = S3Address.parse(done.dataset_uri)
    problem = problem_of(
        run_setup,
        environment(tmp_path / "job", dataset),
        lambda: store,
        kind=ConfigurationError,
    )
    assert (problem.path, problem.suggestion) == ("train_options.stage_data", "true")
    assert not (tmp_path / "job" / "data" / "columns.json").exists()


def test_preflight_refuses_images(
    store: Store, base: S3Address, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(BACKEND_VARIABLE, "local")
    tree(tmp_path / "images", animals())
    (tmp_path / "train.py").write_text("")
    values = defaults() | {"model_name": "m", "output_uri": str(base)}
    values |= {"data_uri": str(tmp_path / "images"), "model_code": str(tmp_path / "train.py")}
    values["train_options"] = {"command": ["python3", "train.py"], "stage_data": "npy"}
    problem = problem_of(preflight.run, FailureReport(), "r1", values, kind=ConfigurationError)
    assert (problem.path, problem.suggestion) == ("train_options.stage_data", "true")
    values["train_options"] |= {"stage_data": True}
    assert preflight.run(FailureReport(), "r1", values).code_uri


def altered(
    store: Store, base: S3Address, folder: Path, change: Callable[[pa.Table], pa.Table]
) -> S3Address:
    """Send a dataset with a changed training shard; return its address."""
    path = folder / "t.csv"
    path.write_text("a,b,y\n" + "".join(f"{row},c{row % 3},{row % 2}\n" for row in range(300)))
    step = Step("prepare_data", "r1", Layout(base), store)
    done = engine.run(step, str(path), "y", {"types": {"b": "category"}}, workers=1)
    pull(store, S3Address.parse(done.dataset_uri), folder / "dataset")
    (folder / "dataset" / "manifest.json").unlink(missing_ok=True)
    shard = folder / "dataset" / "train" / "00000.parquet"
    parquet.write_table(change(parquet.read_table(shard)), shard)
    push(store, folder / "dataset", base / "altered", "dataset")
    return base / "altered"


def with_column(table: pa.Table, name: str, values: pa.Array) -> pa.Table:
    return table.set_column(table.column_names.index(name), name, values)


@pytest.mark.parametrize(
    ("change", "error", "path"),
    [
        (lambda table: table.slice(1), DataError, ""),
        (lambda table: table.drop_columns(["a"]), DataError, ""),
        (
            lambda table: with_column(table, "y", pa.array(["2"] * len(table))),
            DataError,
            "",
        ),
        (
            lambda table: with_column(table, "a", pa.array([b""] * len(table))),
            ConfigurationError,
            "train_options.stage_data",
        ),
    ],
    ids=["rows", "column", "class", "type"],
)
def test_shards_that_do_not_match_the_schema_start_no_program(
    store: Store,
    base: S3Address,
    tmp_path: Path,
    change: Callable[[pa.Table], pa.Table],
    error: type[StepError],
    path: str,
) -> None:
    dataset = altered(store, base, tmp_path, change)
    problem = problem_of(stage_npy, store, dataset, tmp_path / "data", kind=error)
    assert problem.path == path and problem.fix
    assert {file.name for file in (tmp_path / "data").iterdir()} == {
        "schema.json",
        "statistics.json",
    }


def test_a_column_without_values_has_no_strings(
    store: Store, base: S3Address, tmp_path: Path
) -> None:
    dataset = altered(
        store,
        base,
        tmp_path,
        lambda table: with_column(table, "b", pa.nulls(len(table), pa.string())),
    )
    stage_npy(store, dataset, tmp_path / "data")
    column = index(tmp_path / "data")["columns"]["b"]
    words = json.loads((tmp_path / "data" / column["strings"]).read_text())
    assert words == ["c0", "c1", "c2"]  # of validation
    assert set(load(tmp_path / "data", "train", column)) == {-1}
    assert set(load(tmp_path / "data", "validation", column)) == {0, 1, 2}


def test_a_damaged_shard_starts_no_program(
    source: Source, store: Store, base: S3Address, tmp_path: Path
) -> None:
    for item in store.list(source.dataset):
        key = str(item.address).removeprefix(f"{source.dataset}/")
        content = store.read(item.address)
        store.write(base / key, content[:-9] + bytes(9) if "train/00001" in key else content)
    with pytest.raises(DataError, match="train/00001"):
        stage_npy(store, base, tmp_path / "data")
    assert not list((tmp_path / "data").rglob("*.npy"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk with 120 kB; only root can mount one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=120k", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("this process may not mount a disk")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.parametrize("is_predicted", [True, False])
def test_a_disk_that_is_too_small_is_named(
    source: Source,
    store: Store,
    small_disk: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_predicted: bool,
) -> None:
    if not is_predicted:  # for example because other pods use the same disk
        usage = SimpleNamespace(free=1 << 40)
        monkeypatch.setattr(npy_columns.shutil, "disk_usage", lambda _: usage)
    problem = problem_of(
        stage_npy, store, source.dataset, small_disk / "data", kind=ConfigurationError
    )
    assert ("free" if is_predicted else "No space left") in str(problem.received)
    assert str(small_disk) in problem.what and "pod.all.ephemeral_storage" in problem.fix
    assert {path.name for path in (small_disk / "data").iterdir()} == {
        "schema.json",
        "statistics.json",
    }


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_two_million_rows_need_little_memory(s3: Server, tmp_path: Path) -> None:
    rows, random = 2_000_000, np.random.default_rng(0)
    columns: dict[str, Any] = {
        f"x{at}": pa.array(random.normal(size=rows).astype(np.float32)) for at in range(10)
    }
    columns["member"] = pa.array(random.random(rows) < 0.5)
    columns["city"] = pa.array([f"city {at}" for at in range(1000)]).take(
        pa.array(random.integers(0, 1000, rows))
    )
    columns["note"] = pa.array([f"a note of some length, number {at}" for at in range(rows)])
    columns["y"] = pa.array(["no", "yes"]).take(pa.array(random.integers(0, 2, rows)))
    parquet.write_table(pa.table(columns), tmp_path / "t.parquet")
    options = {"types": {"note": "text"}}
    dataset = prepare(s3.store(), "npy/rows", tmp_path / "t.parquet", "y", options)
    measured = subprocess.run(
        [sys.executable, "-c", MEASURED],
        env=process_environment(s3.secret) | environment(tmp_path, dataset),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    assert sum(index(tmp_path / "data")["rows"].values()) > 0.8 * rows
    peak = int(measured.stdout.split("VmHWM:")[1].split()[0])
    assert peak * 1024 < 512 * MIB, measured.stdout
