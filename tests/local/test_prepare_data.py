"""prepare_data on the real S3 server, from files to a dataset that TensorFlow reads."""

import gzip
import logging
import random
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from kfp import dsl

from kfp_tfjob.common.errors import DataError
from kfp_tfjob.components.prepare_data.component import prepare_data
from kfp_tfjob.components.prepare_data.dataset import Prepared
from kfp_tfjob.components.prepare_data.engine import run
from kfp_tfjob.components.prepare_data.hashes import number_words, row_hashes, split_of
from kfp_tfjob.components.prepare_data.source.digest import source_digest
from kfp_tfjob.components.prepare_data.source.resolve import (
    check_header,
    list_source,
)
from kfp_tfjob.components.step import RUN_ID, Step
from kfp_tfjob.features.schema import Schema, SchemaLabel
from kfp_tfjob.features.statistics import BadRows
from kfp_tfjob.options.data import DataOptions
from kfp_tfjob.options.parse import parse
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import MANIFEST, SCHEMA, Layout
from kfp_tfjob.storage.store import Store
from kfp_tfjob.uploader import verify
from tests.faults.proxy import Fault, damage, ignore_checksums
from tests.local.planted import NUMBERS, parquet, refusal, small, table, write
from tests.local.planted import ROWS as OF_PLANTED
from tests.local.prepared import objects, split
from tests.problems import problems_of

ROWS = 400


HEADER = "height,weight,name,species\n"


def _lines(rows: int = ROWS) -> list[str]:
    choose = random.Random(1)
    lines = []
    for i in range(rows):
        species = choose.choice(["cat", "dog", "ünic,orn"])
        lines.append(f'{choose.gauss(0, 1)},{i % 9},"n{i}\n""x""","{species}"\n')
    return lines


def _csv(rows: int = ROWS) -> str:
    return HEADER + "".join(_lines(rows))


OPTIONS = {"drop": ["name"]}


def _elsewhere(step: Step, name: str) -> Step:
    return Step(step.name, step.run_id, Layout(step.layout.root / name), step.store)


def test_a_dataset_of_numbers(step, store, tmp_path):
    path = tmp_path / "pets.csv"
    path.write_text(_csv())
    done = run(step, str(path), "species", OPTIONS, source_digest(list_source(store, str(path))))
    assert not done.reused
    assert done.dataset_uri == str(step.layout.dataset(done.dataset_digest))
    assert sum(done.rows.values()) == ROWS and all(done.rows.values())
    assert done.schema.label == SchemaLabel("species", ("cat", "dog", "ünic,orn"))
    assert done.schema.names == ["height", "weight"]

    manifest = store.read_manifest(S3Address.parse(done.dataset_uri) / "manifest.json")
    assert (manifest.kind, manifest.run_id) == ("dataset", "")
    assert manifest.details == {
        "rows": done.rows,
        "task": "classification",
        "features": 2,
        "schema_digest": done.schema.schema_digest,
    }
    for item in manifest.objects:
        store.verify(S3Address.parse(done.dataset_uri) / item.key, item)

    train = split(store, done, "train")
    heights = train["features"][:, 0]
    column = done.statistics.features["height"]
    assert column.mean == pytest.approx(heights.astype(float).mean(), rel=1e-9)
    assert column.std == pytest.approx(heights.astype(float).std(), rel=1e-9)
    assert (column.min, column.max) == (heights.min(), heights.max())
    assert sum(column.histogram) == done.rows["train"]
    counts = list(done.statistics.label.counts["train"].values())
    assert counts == np.bincount(train["label"]).tolist()

    stored = objects(store, done)
    tables = [pa.BufferReader(data) for name, data in stored.items() if name.endswith(".parquet")]
    texts = [data for name, data in stored.items() if not name.endswith(".parquet")]
    for buffer in tables:
        texts.append(repr(pa.parquet.read_table(buffer).to_pydict()).encode())
        texts.append(repr(pa.parquet.read_metadata(buffer).metadata).encode())
    whole = b"".join(texts)
    for private in (str(tmp_path), "pets.csv", str(step.layout.root), "r1"):
        assert private.encode() not in whole


def test_a_finished_dataset_is_reused_and_a_damaged_one_is_made_again(
    step, store, tmp_path, caplog
):
    path = tmp_path / "pets.csv"
    path.write_text(_csv())
    first = run(step, str(path), "species", OPTIONS)
    before = objects(store, first)
    with caplog.at_level(logging.INFO):
        again = run(step, str(path), "species", OPTIONS)
    assert again.reused and again.dataset_uri in caplog.text
    assert (again.rows, again.schema, again.statistics) == (
        first.rows,
        first.schema,
        first.statistics,
    )
    base = S3Address.parse(first.dataset_uri)
    store.delete(base / "test/00000.parquet")
    assert not run(step, str(path), "species", OPTIONS).reused
    # A document of the same size that cannot be read.
    size = len(store.read(base / "schema.json"))
    store.write(base / "schema.json", b"{".ljust(size))
    assert not run(step, str(path), "species", OPTIONS).reused
    # What an interrupted run leaves: some shards, other bytes, no manifest.
    store.delete(base / "manifest.json")
    store.write(base / "train/00000.parquet", b"half")
    assert not run(step, str(path), "species", OPTIONS).reused
    assert objects(store, first) == before


def test_a_shard_damaged_on_the_way_to_a_store_that_checks_no_crc_is_sent_again(
    store, base, proxy, tmp_path
):
    (tmp_path / "pets.csv").write_text(_csv())
    proxy.faults = [
        Fault(ignore_checksums, "PUT|POST", times=float("inf")),
        Fault(damage, "PUT", "parquet"),
    ]
    step = Step("prepare_data", "r1", Layout(base / "out"), Store(proxy.endpoint))
    address = S3Address.parse(run(step, str(tmp_path / "pets.csv"), "species", OPTIONS).dataset_uri)
    assert verify(store, address, store.read_manifest(address / "manifest.json")) == []
    assert not [item for item in store.list(address) if ".probe" in item.address.name]


def test_equal_data_gives_equal_bytes_wherever_and_however_it_lies(step, store, base, tmp_path):
    text, lines = _csv(1500), _lines(1500)
    (tmp_path / "a.csv").write_text(text)
    first = run(step, str(tmp_path / "a.csv"), "species", OPTIONS)
    expected = objects(store, first)

    random.Random(0).shuffle(lines)
    folder = tmp_path / "parts"
    (folder / "deep").mkdir(parents=True)
    (folder / "_SUCCESS").write_text("")
    (folder / "1.csv").write_text((HEADER + "".join(lines[:500])).replace("\n", "\r\n"))
    with gzip.open(folder / "deep" / "2.csv.gz", "wt") as file:
        file.write("\ufeff" + HEADER + "".join(lines[500:]))
    store.write(base / "in" / "x.csv", text.encode())
    for i, (uri, block) in enumerate(
        [(str(tmp_path / "a.csv"), 999), (str(folder), 70), (str(base / "in" / "x.csv"), 4096)]
    ):
        other = run(_elsewhere(step, str(i)), uri, "species", OPTIONS, block=block)
        assert objects(store, other) == expected


def test_parquet_of_every_type(step, store, base, tmp_path):
    rows = 200
    table = pa.table(
        {
            "f": pa.array(np.linspace(-1, 1, rows)),
            "i": pa.array(np.arange(rows), pa.int16()),
            "b": pa.array(np.arange(rows) % 2 == 0),
            "d": pa.array([f"{i}.25" for i in range(rows)]).cast(pa.decimal128(9, 2)),
            "y": pa.array(["yes", "no"] * (rows // 2)).dictionary_encode(),
        }
    )
    pa.parquet.write_table(table, tmp_path / "t.parquet", row_group_size=64)
    store.send(tmp_path / "t.parquet", base / "t.parquet", "t")
    done = run(step, str(base / "t.parquet"), "y", {})
    assert done.schema.classes == ("no", "yes")
    found = np.concatenate([split(store, done, name)["features"] for name in done.rows])
    assert sorted(found[:, 1]) == list(range(rows))
    assert (found[:, 2] == (found[:, 1] % 2 == 0)).all()
    assert (found[:, 3] == found[:, 1] + 0.25).all()
    types = {item.name: item.type for item in done.schema.features}
    assert types == {"f": "float32", "i": "float32", "b": "boolean", "d": "float32"}

    texts = pa.array(table["y"].to_pylist(), pa.string_view())
    views = table.set_column(table.schema.get_field_index("y"), "y", texts)
    pa.parquet.write_table(views, tmp_path / "views.parquet")
    again = run(step, str(tmp_path / "views.parquet"), "y", {})
    assert objects(store, again) == objects(store, done)


def test_the_index_of_pandas_is_no_feature(step, tmp_path):
    rows = np.arange(200)
    index = "__index_level_0__"
    table = pa.table({"f": rows * 2, "y": rows % 2, index: rows})
    pa.parquet.write_table(table, tmp_path / "t.parquet")
    with pytest.raises(DataError, match=f"{index}.*pandas"):
        run(step, str(tmp_path / "t.parquet"), "y", {})
    for options in ({"drop": [index]}, {"columns": ["f", index]}):
        features = run(step, str(tmp_path / "t.parquet"), "y", options).schema.features
        assert len(features) == len(options.get("columns", "f"))


def test_bad_rows_are_dropped_up_to_a_share(step, store, tmp_path, caplog):
    bad = ["x,1,n,cat\n", "1,2,n\n", ",1,n,dog\n"]
    (tmp_path / "a.csv").write_text(HEADER + "".join([*bad, *_lines()]))
    refuse = OPTIONS | {"missing": {"*": "fail"}}
    given = (step, str(tmp_path / "a.csv"), "species")
    _, example, _, _ = problems_of(run, *given, refuse, kind=DataError)
    assert "a.csv, line 2, column 'height'" in example.what and example.received == "'x'"
    done = run(*given, refuse | {"on_bad_row": "drop"})
    rules = {"text": 1, "missing": 1, "columns": 1}
    assert done.statistics.bad_rows == BadRows(3, rules)
    assert "line 2, column 'height'" in caplog.text
    few = {"on_bad_row": "drop", "max_bad_fraction": 0.001}
    with pytest.raises(DataError, match="data_options.max_bad_fraction"):
        run(*given, OPTIONS | few)


WHOLE = "a,y\n" + "".join(f"{i},{'uv'[i % 2]}\n" for i in range(200))
_WORDS = number_words(np.arange(200, dtype=np.float32))
_SPLITS = split_of(row_hashes([_WORDS], 200, "0"), [0.7, 0.15, 0.15])
_IN_TRAIN, _NOT_IN_TRAIN = int(_SPLITS.argmin()), int(_SPLITS.argmax())


@pytest.mark.parametrize(
    "content, label, options, said",
    [
        ("", "y", {}, "is empty"),
        ("a,y\n", "y", {}, "header"),
        (WHOLE, "yy", {}, "'yy'"),
        (WHOLE.replace(",", ";"), "y", {"delimiter": ","}, 'data_options.delimiter=";"'),
        (WHOLE, "y", {"drop": ["b"], "columns": ["aa"]}, "data_options.columns"),
        (WHOLE, "y", {"missing": {"aa": "drop"}}, "data_options.missing"),
        (WHOLE, "y", {"types": {"y": "category"}}, "data_options.types"),
        (WHOLE, "y", {"drop": ["a"]}, "feature column"),
        (WHOLE, "y", {"columns": ["y", "a"]}, "data_options.columns"),
        (",a,y\n7,1,u\n", "y", {}, "column 1 of a.csv"),
        ("150,4,setosa\n1,2,3\n", "species", {}, "first line"),
        (WHOLE, "y", {"format": "parquet"}, "data_options.format"),
    ],
    ids=range(12),
)
def test_what_preflight_sees_prepare_data_refuses_too(
    step, store, tmp_path, content, label, options, said
):
    path = tmp_path / "a.csv"
    path.write_text(content)
    typed = parse(DataOptions, "data_options", options)
    problems = check_header(list_source(store, str(path)), label, typed)
    assert said in "\n".join(map(str, problems))
    assert said in refusal(step, str(path), label, **options)


@pytest.mark.parametrize(
    "content, said",
    [
        ("a,y\n" + "".join(f"{i},u\n" for i in range(50)), "every row"),
        ("a,y\n1,u\n2,v\n", "a split"),
        ("a,y\n" + "1,u\n" * 50 + "1,v\n" * 50, "a split"),
        (
            WHOLE + f"{_NOT_IN_TRAIN},w\n",
            "'w' (1 row)",
        ),
    ],
    ids=range(4),
)
def test_data_that_is_not_enough(step, store, tmp_path, content, said):
    (tmp_path / "a.csv").write_text(content)
    assert said in refusal(step, str(tmp_path / "a.csv"))


@pytest.mark.parametrize(
    ("content", "options"),
    [("a,y\n" + "1,\n" * 50, {}), ("a,g,y\n" + "1,,u\n" * 50, {"split": {"group": "g"}})],
)
def test_rows_are_not_to_be_dropped_if_all_are_invalid(step, tmp_path, content, options):
    (tmp_path / "a.csv").write_text(content)
    assert "on_bad_row" not in refusal(step, str(tmp_path / "a.csv"), **options)


def test_a_missing_split_is_one_fault(step, tmp_path):
    splits = ["train", "validation", "test", "train", "test", "train", "", "", "", "train"]
    rows = (f"{i},{'uv'[i % 3 % 2]},{splits[i % 10]}\n" for i in range(200))
    (tmp_path / "a.csv").write_text("a,y,s\n" + "".join(rows))
    message = refusal(step, str(tmp_path / "a.csv"), split={"column": "s"})
    assert "60 of 200 rows are invalid" in message and "data_options.on_bad_row=drop" in message


def test_files_that_differ(step, tmp_path):
    (tmp_path / "a.csv").write_text("a,b,y\n1,2,u\n")
    (tmp_path / "b.csv").write_text("b,c,y\n1,2,u\n")
    said = refusal(step, str(tmp_path))
    assert "b.csv" in said and "additional 'c'; missing 'a'" in said


MOMENTS = [
    -62_135_596_800 + 2_200_000_000 * i for i in range(OF_PLANTED)
]  # seconds, years 1 to 9691
TIMES = ("2024-01-31 10:00", "2024-01-31T12:00:00+02:00", "2024-01-31T10Z")
TIMES += ("2024-01-31T04:30:00.000000000-0530",)

# The files, the options, and the files with which they are the same dataset.
SAME: dict[str, tuple[bytes | dict[str, bytes], dict, bytes | dict[str, bytes]]] = {
    "a byte order mark before quotes": (b"\xef\xbb\xbf" + table(small, '"a","b","y"'), {}, NUMBERS),
    "a byte order mark in the second file, and its columns in another order": (
        {"1.csv": NUMBERS, "2.csv": b"\xef\xbb\xbfy,b,a\nu,0,700\n"},
        {},
        NUMBERS + b"700,0,u\n",
    ),
    "latin-1 in a column that is dropped": (
        table(lambda i: "äöü"[i % 3]).decode().encode("latin-1"),
        {"drop": ["b"]},
        NUMBERS,
    ),
    "dates before 1970 and beyond 2262": (
        {"f.parquet": parquet(lambda i: MOMENTS[i], pa.timestamp("s"))},
        {},
        table(lambda i: str(np.datetime64(MOMENTS[i], "s"))),
    ),
    "Parquet with the name of a CSV": ({"f.csv": parquet(small)}, {}, NUMBERS),
    "a column without a type in one file": (
        {"1.parquet": parquet(lambda i: None), "2.csv": NUMBERS},
        {},
        NUMBERS + table(lambda i: "").removeprefix(b"a,b,y\n"),
    ),
}


@pytest.mark.parametrize("name", SAME)
def test_the_same_dataset(step, store, tmp_path, name):
    files, options, plain = SAME[name]
    shared = Step(step.name, step.run_id, Layout(S3Address("test", "as-written")), store)
    found = run(step, write(tmp_path / "a", files), "y", options)
    dropped = {key: options[key] for key in options if key == "drop"}
    expected = run(shared, write(tmp_path / "b", plain), "y", dropped)
    stored, stored_expected = (
        objects(store, done) | {"schema.json": plain_schema(done), "manifest.json": b""}
        for done in (found, expected)
    )
    assert stored == stored_expected


def plain_schema(done: Prepared) -> bytes:
    """Return schema.json without the strings that mean a missing value, which only text has."""
    return replace(done.schema, null_values=()).to_bytes()


def test_the_artifact_of_the_component(
    step: Step, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(RUN_ID, raising=False)
    (tmp_path / "rows.csv").write_text(_csv())

    def prepare(run_id: str) -> tuple[dsl.Dataset, str, str]:
        artifact = dsl.Dataset(uri=str(tmp_path / f"{run_id}.json"))
        outputs = prepare_data.python_func(
            run_id=run_id,
            output_uri=str(step.layout.root),
            data_uri=str(tmp_path / "rows.csv"),
            data_label="species",
            data_options=OPTIONS,
            dataset=artifact,
            data_report=dsl.HTML(uri=str(tmp_path / "page.html")),
            data_metrics=dsl.Metrics(),
        )
        return artifact, *outputs

    first, uri, digest = prepare("r1")
    base = S3Address.parse(uri)
    manifest, schema = step.store.read_manifest(base / MANIFEST), step.store.read(base / SCHEMA)
    assert Path(first.path).read_bytes() == schema
    found = Schema.from_bytes(schema)
    assert first.metadata == {
        **{"run_id": "r1", "step": "prepare_data", "uri": uri, "dataset_digest": digest},
        **{"schema_digest": found.schema_digest, "manifest_sha256": manifest.digest},
        **{"size_bytes": manifest.size, "rows": found.rows, "features": 2, "label": "species"},
        **{"task": "classification", "reused": False},
    }
    stored = step.store.read(base / MANIFEST)
    assert first.metadata["manifest_sha256"] == sha256(stored).hexdigest()
    again, *_ = prepare("r2")
    assert again.metadata == first.metadata | {"run_id": "r2", "reused": True}
