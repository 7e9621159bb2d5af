"""The source of prepare_data: what is not there, what changes, its digest, a stream that breaks."""

import gzip
import random

import pytest
from botocore.exceptions import ResponseStreamingError

from kfp_tfjob.components.prepare_data.engine import run
from kfp_tfjob.components.prepare_data.source.digest import source_digest
from kfp_tfjob.components.prepare_data.source.resolve import list_source
from kfp_tfjob.storage.errors import ConfigurationError, DataError
from kfp_tfjob.storage.stream import ObjectStream

TABLE = "a,y\n" + "".join(f"{i},{'uv'[i % 2]}\n" for i in range(200))


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


def test_a_source_that_changed(step, store, base, tmp_path):
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
