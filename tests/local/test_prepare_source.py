"""The source of prepare_data: addresses, what is not there, what changes, a stream that breaks."""

import gzip
import json
import os
import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from botocore.exceptions import ResponseStreamingError
from kfp import dsl

from kfp_tfjob.common.errors import ConfigurationError, DataError
from kfp_tfjob.components.prepare_data.component import prepare_data
from kfp_tfjob.components.prepare_data.data_validation import Validation
from kfp_tfjob.components.prepare_data.engine import run, without_data
from kfp_tfjob.components.prepare_data.report import render
from kfp_tfjob.components.prepare_data.source.digest import source_digest
from kfp_tfjob.components.prepare_data.source.files import Source, SourceFile
from kfp_tfjob.components.prepare_data.source.resolve import list_source
from kfp_tfjob.components.step import Step
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.store import Store
from kfp_tfjob.storage.stream import ObjectStream
from tests.faults.proxy import Fault, FaultProxy, refuse
from tests.local.planted import NUMBERS, planted, refusal, small, table, where, word, write
from tests.problems import problems_of

TABLE = "a,y\n" + "".join(f"{i},{'uv'[i % 2]}\n" for i in range(200))


def test_a_run_without_data_has_an_empty_dataset(base, store, tmp_path):
    def prepare(**given):
        page, metrics = dsl.HTML(uri=str(tmp_path / "page.html")), dsl.Metrics()
        card = dsl.Dataset(uri=str(tmp_path / "schema.json"))
        run = {"run_id": "r1", "output_uri": str(base), "data_uri": " ", "dataset": card}
        found = prepare_data.python_func(**run, **given, data_report=page, data_metrics=metrics)
        assert json.loads(Path(card.path).read_bytes()) == {} and "uri" not in card.metadata
        return found, metrics.metadata, Path(page.path).read_text()

    outputs, metrics, page = prepare()
    assert (tuple(outputs), metrics) == (("", ""), {})
    assert page.startswith("<!doctype html>")
    assert not list(store.list(base / "datasets"))
    with pytest.raises(SystemExit):
        prepare(data_label="y")
    paths = [it.path for it in problems_of(without_data, "y", {"task": "regression"})]
    assert paths == ["data_label", "data_options"]


def test_a_source_that_is_not_there(step, store, base, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "notes.txt").write_text("x")
    (tmp_path / "table.csv").write_text("x,y\n")
    with pytest.raises(DataError, match="data_uri") as error:
        run(step, str(tmp_path / "tabel.csv"), "y", {})
    assert str(tmp_path / "table.csv") in error.value.problems[0].fix
    with pytest.raises(DataError, match="data_uri") as error:
        run(step, str(tmp_path / "no" / "no.csv"), "y", {})
    assert "table.csv" not in error.value.problems[0].fix
    for uri in (str(tmp_path / "folder"), str(base / "no")):
        with pytest.raises(DataError, match="data_uri"):
            run(step, uri, "y", {})
    with pytest.raises(ConfigurationError, match="nowhere"):
        run(step, "s3://nowhere/x.csv", "y", {})
    with pytest.raises(ConfigurationError, match="address"):
        run(step, "gs://bucket/x.csv", "y", {})


def test_a_source_that_changed(step, store, tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(TABLE)
    digest = source_digest(list_source(store, str(path)))
    path.write_text(TABLE + "7,u\n")
    with pytest.raises(DataError, match="preflight"):
        run(step, str(path), "y", {}, digest)
    with gzip.open(path, "wb") as file:
        file.write(TABLE.encode() * 100)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match="a.csv"):
        run(step, str(path), "y", {})


def test_the_digest_follows_names_sizes_and_content(store, base, tmp_path):
    (tmp_path / "a.csv").write_text("1")
    (tmp_path / "b.csv").write_text("2")
    first = source_digest(list_source(store, str(tmp_path)))
    assert first == source_digest(list_source(store, f"{tmp_path}/"))
    (tmp_path / "b.csv").write_text("3")
    assert first != source_digest(list_source(store, str(tmp_path)))
    for name, data in (("a.csv", b"1"), ("deep/b.csv", b"2"), (".hidden.csv", b"3")):
        store.write(base / "in" / name, data)
    source = list_source(store, str(base / "in"))
    assert [file.name for file in source.files] == ["a.csv", "deep/b.csv"]
    before = source_digest(source)
    store.write(base / "in" / "deep/b.csv", b"4")
    assert before != source_digest(list_source(store, str(base / "in")))


class _Breaking:
    """A body whose connection breaks after some bytes: what a test cannot ask of a real server."""

    def __init__(self, body, after: int) -> None:
        self._body, self._after = body, after

    def read(self, size: int) -> bytes:
        if not self._after:
            raise ResponseStreamingError(error=ConnectionResetError("reset"))
        data = self._body.read(min(size, self._after))
        self._after -= len(data)
        return data

    def close(self) -> None:
        self._body.close()


def test_a_stream_that_breaks_goes_on_where_it_broke(store, base, monkeypatch):
    data = random.Random(3).randbytes(300_000)
    store.write(base / "x", data)
    listed = next(iter(store.list(base)))
    whole, opened = store.open, []

    def breaking(address, offset=0, etag=""):
        opened.append(offset)
        return _Breaking(whole(address, offset, etag), 70_000)

    monkeypatch.setattr(store, "open", breaking)
    with ObjectStream.buffered(store, listed.address, listed.size, listed.etag) as stream:
        assert stream.read() == data
        assert stream.seek(-1000, 2) == len(data) - 1000
        assert stream.read() == data[-1000:]
    assert len(opened) == 6  # the first time, after four breaks, and for the end

    monkeypatch.undo()
    with ObjectStream(store, listed.address, listed.size, listed.etag) as stream:
        assert stream.read(10) == data[:10]
        store.write(base / "x", data[::-1])
        stream.seek(0)
        with pytest.raises(DataError, match="changed while"):
            stream.read()


def rows(start: int, count: int = 60) -> bytes:
    lines = [f"{i},{i / 7},{'uv'[i % 2]}\n" for i in range(start, start + count)]
    return ("a,b,y\n" + "".join(lines)).encode()


@pytest.fixture
def data(store: Store, base: S3Address) -> S3Address:
    for i, name in enumerate(
        ("2026-01/a.csv", "2026-01/_SUCCESS", "2026-02/a.csv", "2026-02/b.csv", "other/c, d.csv")
    ):
        store.write(base / "in" / name, rows(100 * i))
    return base / "in"


@pytest.mark.parametrize(
    ("uri", "names"),
    [
        ("{0}/2026-*", ["2026-01/a.csv", "2026-02/a.csv", "2026-02/b.csv"]),
        ("{0}/2026-0?/a.*", ["2026-01/a.csv", "2026-02/a.csv"]),
        ("{0}/**/a.csv", ["2026-01/a.csv", "2026-02/a.csv"]),
        ("{0}/2026-02/", ["a.csv", "b.csv"]),
        ("{0}/other/c, d.csv", ["c, d.csv"]),
        ("{0}/2026-01, {0}/other/*", ["{0}/2026-01/a.csv", "{0}/other/c, d.csv"]),
        ("{0}/2026-01\n{0}/2026-02/b.csv\n", ["{0}/2026-01/a.csv", "{0}/2026-02/b.csv"]),
    ],
)
def test_the_files_of_an_address(store: Store, data: S3Address, uri: str, names: list[str]) -> None:
    found = list_source(store, uri.format(data))
    assert [file.name for file in found.files] == [name.format(data) for name in names]


def test_several_addresses_make_one_dataset(store: Store, data: S3Address, step: Step) -> None:
    """The rows are those of one folder, and so are the bytes of the shards."""
    several = run(step, f"{data}/2026-02/a.csv, {data}/2026-02/b.csv", "y", {})
    folder = run(step, f"{data}/2026-02", "y", {})
    assert several.rows == folder.rows and sum(folder.rows.values()) == 120
    assert several.dataset_digest != folder.dataset_digest  # it follows the names
    first, second = (
        {
            item.address.name: item.etag
            for item in store.list(S3Address.parse(done.dataset_uri))
            if item.address.name != "manifest.json"
        }
        for done in (several, folder)
    )
    assert first == second


def test_an_address_without_a_file_is_named(store: Store, data: S3Address, step: Step) -> None:
    with pytest.raises(DataError, match="pattern.*2027") as caught:
        run(step, f"{data}/2026-01, {data}/2027-*", "y", {})
    assert "2026-01" not in str(caught.value)


def test_folders_in_s3_are_splits(store: Store, base: S3Address, step: Step) -> None:
    """Rows of test that are also in train stay, and the report says how many they are."""
    for i, name in enumerate(("train", "validation", "test")):
        store.write(base / "in" / name / "part.csv", rows(1_000 * i) + rows(0, i)[6:])
    done = run(step, f"{base}/in/", "y", {})
    assert done.rows == {"train": 60, "validation": 61, "test": 62}
    assert done.schema.split["folders"] is True
    assert done.statistics.also_in_train == {"validation": 1, "test": 2}
    assert "2 of 62 " in str(done.statistics.warnings)
    assert "2 of 62 " in render(done.schema, done.statistics, False, Validation())
    for names in (
        ("train", "validation", "test"),
        ("train/*", "validation/p*.csv", "test/part.csv"),
    ):
        again = run(step, ", ".join(f"{base}/in/{name}" for name in names), "y", {})
        assert again.rows == done.rows
        assert again.schema.schema_digest == done.schema.schema_digest


def append(path: Path) -> None:
    with open(path, "a") as file:
        file.write("7,7,u\n")


def replace(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(path.read_bytes().replace(b",u", b",v"))
    other.replace(path)


CHANGES: dict[str, Callable[[Path], object]] = {
    "appended to": append,
    "cut": lambda path: os.truncate(path, 50),
    "replaced by one of the same size": replace,
    "written again": lambda path: path.write_bytes(path.read_bytes()),
}


@pytest.fixture
def after_the_first_look(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable]:
    """Let something happen to a file after it was read for the first time."""
    whole, done = Source.raw, []

    def let(happen: Callable[[SourceFile], object]) -> None:
        @contextmanager
        def raw(self: Source, file: SourceFile) -> Iterator:
            with whole(self, file) as stream:
                yield stream
            if not done:
                done.append(happen(file))

        monkeypatch.setattr(Source, "raw", raw)

    yield let
    assert done


@pytest.mark.parametrize("name", CHANGES)
def test_a_file_that_changes_while_it_is_read(step, tmp_path, after_the_first_look, name):
    uri = write(tmp_path, table(word))
    after_the_first_look(lambda file: CHANGES[name](Path(file.location)))
    assert f"{uri} changed" in refusal(step, uri)


def test_an_object_that_changes_while_it_is_read(step, store, base, after_the_first_look):
    # The first MiB is read once, so a smaller object is what it was when it was listed.
    long = table(lambda i: f"{word(i)}" * 5000)
    assert len(long) > 2 << 20
    store.write(base / "f.csv", long)
    after_the_first_look(lambda file: store.write(file.location, long.replace(b"u", b"v")))
    assert f"{base / 'f.csv'} changed" in refusal(step, str(base / "f.csv"))


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("AccessDenied", "the credentials do not allow this"),
        ("ExpiredToken", "the session token has"),
    ],
)
def test_a_store_that_refuses_to_be_read(store, base, proxy: FaultProxy, code, said):
    store.write(base / "f.csv", NUMBERS)
    proxy.faults = [Fault(refuse(403, code), "GET", "/f.csv$", times=99)]
    step = Step("prepare_data", "r1", Layout(base / "out"), Store(proxy.endpoint))
    assert f"cannot open {base / 'f.csv'}: {said}" in refusal(step, str(base / "f.csv"))


def test_names_of_files_as_people_give_them(step, tmp_path):
    (tmp_path / "ü #%?&+").mkdir()
    name = "ä b#%?&+'.csv"
    (tmp_path / "ü #%?&+" / name).write_bytes(table(planted("oops", small)))
    os.mkfifo(tmp_path / "pipe.csv")
    assert where("b", "oops", "text", f"ü #%?&+/{name}") in refusal(step, str(tmp_path))


def test_a_disk_that_fills_up(step, tmp_path, mount, monkeypatch):
    rows = b"a,y\n" + b"".join(b"%d,%d\n" % (i % 9, i % 2) for i in range(30_000))
    uri = write(tmp_path / "in", rows)
    # There seems to be room, but such short values take more of it as numbers.
    monkeypatch.setattr(tempfile, "tempdir", str(mount(7 * len(rows) // 2)))
    said = refusal(step, uri)
    assert "TMPDIR" in said
