"""Hostile input: valid things that were altered, and things that were made to hurt."""

import csv
import io
import json
import zipfile
from datetime import datetime, time
from typing import Any

import openpyxl
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet
from hypothesis import strategies as st

from tests import tfrecords as tfrecord_files

# Texts that have broken some program before.
_TEXTS = st.sampled_from(
    [
        *("", " ", ".", "..", "/", "a", "A"),
        *("a/b", "a//b", "/etc/x", "../x", "a/../../x"),
        *("a\0b", "a\nb", "a\r\nb", "\x1b[31mred\x1b[0m"),
        *("`code`", "```\n<script>", "|", "<b>&amp;", "'\"", "$(RUN_ID)", "{}", "%s"),
        *("Ärger", "나이", "é", "e\u0301", "\u202eright", "\ufeff", "\U0001f600"),
        *("nan", "inf", "-0", "1e39", "0e999999999999999999999", "1e-999999999999999999999"),
        *("9" * 400, "x" * 1200, "__index_level_0__", "__proto__", "None", "true"),
    ]
)
# A text of JSON may hold half a character; nothing that comes as bytes in UTF-8 does.
texts = _TEXTS | st.text(max_size=20)
any_texts = texts | st.text(st.characters(), max_size=8) | st.just("\ud800")
names = texts | st.text(st.sampled_from("aAbB./\\_-\0"), max_size=8)
numbers = st.one_of(
    st.integers(-3, 12),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.sampled_from([1e308, -1e308, 1e39, 5e-324, 0.5, 2**31, 2**63, 10**400]),
)
scalars = st.one_of(st.none(), st.booleans(), numbers, any_texts)
anything = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(any_texts, inner, max_size=4),
    max_leaves=10,
)


@st.composite
def altered(draw: st.DrawFn, data: bytes) -> bytes:
    """Bytes with a few of them changed, removed, repeated or cut off."""
    changed = bytearray(data)
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(changed)))
        kind = draw(st.integers(0, 3))
        if kind == 0:
            changed[at : at + 1] = draw(st.binary(max_size=4))
        elif kind == 1:
            del changed[at : at + draw(st.integers(1, 40))]
        elif kind == 2:
            changed[at:at] = changed[at : at + draw(st.integers(1, 40))]
        else:
            end = b"\xff\xff\xff\xff" if draw(st.booleans()) else b"\0\0\0\0"
            changed[at : at + 4] = end[: len(changed) - at]
    if draw(st.integers(0, 9)) == 0:
        del changed[draw(st.integers(0, len(changed))) :]
    return bytes(changed)


_cells = st.one_of(
    st.floats(-9, 9).map(str), st.integers(-9, 9).map(str), texts, st.sampled_from(["yes", "no"])
)


@st.composite
def csvs(draw: st.DrawFn) -> tuple[bytes, str, dict[str, Any]]:
    header = draw(st.lists(names, min_size=1, max_size=5))
    label = draw(st.sampled_from(header) | names)
    # Mostly numbers, so that a good part of the tables gets past the first check.
    cells = [draw(st.sampled_from([_cells, st.integers(0, 9).map(str)])) for _ in header]
    rows = draw(st.lists(st.tuples(*cells).map(list), max_size=30))
    if draw(st.booleans()):  # rows that differ, so that every split gets some of them
        header, rows = [*header, "n"], [[*row, str(i)] for i, row in enumerate(rows * 5)]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator=draw(st.sampled_from(["\n", "\r\n"])))
    options = {"on_bad_row": draw(st.sampled_from(["fail", "drop"])), "max_bad_fraction": 1}
    options |= draw(
        st.sampled_from([{}, {"header": True}, {"delimiter": "blanks"}, {"encoding": "latin-1"}])
    )
    plain = {name.strip() for name in header} == {*header} - {""} and len({*header}) == len(header)
    if plain and draw(st.booleans()):
        options |= {"names": header, "header": False if "header" in options else None}
    else:
        writer.writerow(header)
    writer.writerows(rows)
    data = text.getvalue().encode()
    if options.get("delimiter"):
        data = data.replace(b",", draw(st.sampled_from([b"  ", b" \t", b" "])))
    if draw(st.booleans()):
        data = draw(altered(data))
    return data, label, options


_types = st.sampled_from(
    [
        *(pa.int8(), pa.int64(), pa.uint64(), pa.float16(), pa.float32(), pa.float64()),
        *(pa.bool_(), pa.string(), pa.large_string(), pa.binary()),
        *(pa.decimal128(20, 3), pa.decimal256(60, 10)),
        *(pa.date32(), pa.timestamp("ns"), pa.time64("us"), pa.duration("s")),
        *(pa.null(), pa.list_(pa.int32()), pa.struct([("x", pa.int32())])),
        *(pa.dictionary(pa.int8(), pa.string()), pa.dictionary(pa.int32(), pa.int64())),
    ]
)
_VALUES = [0, 1, -1, 2**40, 0.5, float("nan"), float("inf"), "yes", "no", b"\xff\xfe", True, None]


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Return values as an array of a type; what the type cannot hold is null."""
    inner = kind.value_type if pa.types.is_dictionary(kind) else kind
    made = []
    for value in values:
        try:
            made.append(pa.array([value], inner)[0].as_py())
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, ValueError):
            made.append(None)
    array = pa.array(made, inner)
    return array.dictionary_encode().cast(kind) if inner is not kind else array


@st.composite
def _tables(draw: st.DrawFn) -> tuple[list[str], list[pa.Array], str]:
    """The names and the columns of a table, and the name of its label."""
    header = draw(st.lists(names, min_size=1, max_size=4))
    label = draw(st.sampled_from(header) | names)
    rows, arrays = draw(st.integers(0, 40)), []
    for _ in header:
        kind = draw(_types | st.sampled_from([pa.float32(), pa.int64()]))
        values = draw(st.lists(st.sampled_from(_VALUES) | texts, min_size=1, max_size=6))
        if draw(st.booleans()):
            values = [*range(40)]
        arrays.append(_array((values * rows)[:rows], kind))
    return header, arrays, label


_CELLS = ["u", "v", "", "x\ny", "=A1+1", "1,5", 0.5, 1e300, datetime(2024, 1, 1), time(3, 4)]
_bad_rows = st.fixed_dictionaries(
    {"on_bad_row": st.sampled_from(["fail", "drop"]), "max_bad_fraction": st.just(1)}
)


@st.composite
def parquets(draw: st.DrawFn) -> tuple[bytes, str, dict[str, Any]]:
    header, arrays, label = draw(_tables())
    file = io.BytesIO()
    try:
        table = pa.Table.from_arrays(arrays, header)
        pa.parquet.write_table(
            table,
            file,
            row_group_size=draw(st.sampled_from([1, 7, 1000])),
            compression=draw(st.sampled_from(["none", "snappy", "zstd", "gzip"])),
            use_dictionary=draw(st.booleans()),
            data_page_version=draw(st.sampled_from(["1.0", "2.0"])),
            data_page_size=draw(st.sampled_from([16, 1 << 20])),
            store_schema=draw(st.booleans()),
        )
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        file = io.BytesIO(b"PAR1PAR1")
    data = file.getvalue()
    if draw(st.booleans()):
        data = draw(altered(data))
    return data, label, draw(_bad_rows)


@st.composite
def arrows(draw: st.DrawFn) -> tuple[bytes, str, dict[str, Any]]:
    """An Arrow file or stream, the name of its label, and data_options."""
    header, arrays, label = draw(_tables())
    file = io.BytesIO()
    try:
        table = pa.Table.from_arrays(arrays, header)
        open_file = draw(st.sampled_from([pa.ipc.new_file, pa.ipc.new_stream]))
        options = pa.ipc.IpcWriteOptions(compression=draw(st.sampled_from([None, "zstd", "lz4"])))
        with open_file(file, table.schema, options=options) as writer:
            writer.write_table(table, max_chunksize=draw(st.sampled_from([1, 7, 1000])))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        file = io.BytesIO(b"ARROW1\0\0ARROW1")
    data = file.getvalue()
    if draw(st.booleans()):
        data = draw(altered(data))
    return data, label, draw(_bad_rows)


def _without_times(data: bytes) -> bytes:
    """Return a zip without the times of its members, which differ from run to run."""
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(file, "w") as new:
        for name in old.namelist():
            if name != "docProps/core.xml":
                new.writestr(zipfile.ZipInfo(name), old.read(name))
    return file.getvalue()


@st.composite
def excels(draw: st.DrawFn) -> tuple[bytes, str, dict[str, Any]]:
    """An .xlsx file with one sheet, the name of its label, and data_options."""
    label = draw(st.sampled_from(["a", "b", "y"]))
    cell = st.one_of(st.none(), st.booleans(), st.integers(-99, 99), st.sampled_from(_CELLS))
    rows = draw(st.lists(st.lists(cell, max_size=4), max_size=30))
    book, file = openpyxl.Workbook(), io.BytesIO()
    page: Any = book.active
    for row in (["a", "b", "y"], *rows):
        page.append(row)
    book.save(file)
    data = _without_times(file.getvalue())
    if draw(st.booleans()):
        data = draw(altered(data))
    return data, label, draw(_bad_rows)


@st.composite
def tfrecords(draw: st.DrawFn) -> tuple[bytes, str, dict[str, Any]]:
    """A TFRecord file whose checksums are right, the name of its label, and data_options."""
    data = b""
    for i in range(draw(st.integers(1, 20))):
        record = tfrecord_files.example({"features": [float(i)], "label": [i % 2]})
        if draw(st.integers(0, 9)) == 0:
            record = draw(altered(record))
        data += tfrecord_files.framed(record)
    if draw(st.integers(0, 3)) == 0:
        data = draw(altered(data))
    return data, "label", draw(_bad_rows)


_json_values = st.one_of(
    *(st.none(), st.booleans(), st.integers(), st.floats(), texts),
    *(st.lists(st.integers(0, 9), max_size=3), st.dictionaries(names, st.integers(), max_size=2)),
)


@st.composite
def jsons(draw: st.DrawFn) -> tuple[bytes, str, dict[str, Any]]:
    keys = draw(st.lists(names, min_size=1, max_size=4, unique=True))
    label = draw(st.sampled_from(keys) | names)
    kinds = [draw(st.sampled_from([_json_values, st.integers(0, 9)])) for _ in keys]
    row = st.fixed_dictionaries(dict(zip(keys, kinds, strict=True)))
    rows = [*draw(st.lists(row, max_size=20)), *draw(st.lists(_json_values, max_size=1))]
    data = "".join(json.dumps(item) + "\n" for item in rows).encode(errors="replace")
    if draw(st.booleans()):
        data = draw(altered(data))
    return data, label, draw(_bad_rows)


_CODE = ["def build_model(dataset, units=8):\n    return dataset\n", "f = 1\n", "(" * 300, "\0", ""]
code = st.one_of(
    st.sampled_from(_CODE),
    st.text(max_size=60),
    st.builds(
        lambda start, part, number, end: start + part * number + end,
        st.sampled_from(["", "def f(x=", "def f(*, x=", "x = ", "@a"]),
        st.sampled_from(["-", "(", "[", "a.", "lambda:", "not ", "1 if 1 else ", "f()", "{", "x="]),
        st.integers(0, 3000),
        st.sampled_from(["1", "", "a): pass", "1): pass", "\ndef f(): pass"]),
    ),
)


@st.composite
def zips(draw: st.DrawFn) -> bytes:
    file = io.BytesIO()
    kinds = [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2]
    with zipfile.ZipFile(file, "w") as archive:
        for name in draw(st.lists(names | st.just("model.py"), max_size=5)):
            archive.NameToInfo.clear()  # it warns of a name that comes twice
            info = zipfile.ZipInfo(name or "x")
            info.compress_type = draw(st.sampled_from(kinds))
            info.external_attr = draw(st.sampled_from([0, 0o120777 << 16, 0o100644 << 16]))
            body = draw(code).encode(errors="replace")
            archive.writestr(info, body * draw(st.sampled_from([1, 1, 5000])))
    data = file.getvalue()
    return draw(altered(data)) if draw(st.booleans()) else data


_object = st.fixed_dictionaries(
    {
        "key": names | any_texts,
        "size": st.integers(0, 9) | numbers,
        "crc64nvme": st.just("AAAAAAAAAAA="),
    }
)


def _put(body: Any, path: list[Any], value: Any) -> Any:
    """Return a JSON value with another value at a place inside of it."""
    if not path or not isinstance(body, dict | list) or not body:
        return value
    keys = list(body) if isinstance(body, dict) else list(range(len(body)))
    key = keys[path[0] % len(keys)]
    copy = dict(body) if isinstance(body, dict) else list(body)
    copy[key] = _put(body[key], path[1:], value)
    return copy


@st.composite
def changed(draw: st.DrawFn, body: Any) -> Any:
    """A JSON value with some of its parts replaced by anything."""
    for _ in range(draw(st.integers(0, 3))):
        path = draw(st.lists(st.integers(0, 50), min_size=1, max_size=4))
        body = _put(body, path, draw(anything))
    return body


@st.composite
def documents(draw: st.DrawFn, body: Any) -> bytes:
    """A JSON value that was altered, as value or as bytes."""
    data = json.dumps(draw(changed(body)), ensure_ascii=draw(st.booleans()))
    data = data.encode(errors="surrogatepass")
    kind = draw(st.integers(0, 9))
    if kind == 0:
        return b"[" * draw(st.sampled_from([10, 100_000])) + data
    return draw(altered(data)) if kind < 4 else data


@st.composite
def manifests(draw: st.DrawFn) -> bytes:
    body = {
        "format": "kfp-tfjob/manifest/1",
        "kind": "code",
        "run_id": "r",
        "attempt": 1,
        "details": draw(st.just({}) | st.dictionaries(any_texts, anything, max_size=3)),
        "objects": draw(st.lists(_object, max_size=6)),
    }
    return draw(documents(body))


@st.composite
def option_dicts(draw: st.DrawFn, valid: dict[str, Any]) -> dict[str, Any]:
    """A dict parameter: some of its valid keys, some values replaced, some keys more."""
    body = {key: value for key, value in valid.items() if draw(st.integers(0, 3))}
    body = draw(changed(body))
    if isinstance(body, dict) and draw(st.integers(0, 3)) == 0:
        body = body | draw(st.dictionaries(any_texts, anything, max_size=2))
    return body
