"""Training, evaluation and the exported model get the same values of a column, bit for bit."""

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from kfp_tfjob.features.cells import Cells
from kfp_tfjob.features.coding import Coding
from kfp_tfjob.features.imputation import Missing
from kfp_tfjob.features.raw_columns import RawColumns, type_of
from kfp_tfjob.features.types import TYPES
from kfp_tfjob.features.types.base import CODES, NO_DATE, TrainValues
from kfp_tfjob.features.types.boolean import FALSE_TEXTS, TRUE_TEXTS, Boolean
from kfp_tfjob.features.types.category import Category
from kfp_tfjob.features.types.date import Date
from kfp_tfjob.features.types.number import Number
from kfp_tfjob.features.types.string import String
from kfp_tfjob.features.types.words import Words, words_in_graph, words_of
from kfp_tfjob.options.data import COLUMN_TYPES, DataOptions
from kfp_tfjob.options.image_options import PICTURE
from kfp_tfjob.trainer.packing import Packing
from tests.unit.test_column_types import CELLS

TEXTS = ("Rome", "Bonn", "São Paulo", "東京", " x ", "a\nb", "\0", "NA", "e\u0301", "é")
LAST = 2**63 - 1
_FAR = st.one_of(
    st.integers(-(2**63) + 1, LAST),
    st.integers(-(10**16), 10**16),
    st.sampled_from([NO_DATE, NO_DATE + 1, LAST, 0, -1, -86_400_000_000, 951_782_399_999_999]),
)
_NAN_WITH_PAYLOAD = struct.unpack("<d", struct.pack("<Q", 0xFFF8_0000_DEAD_BEEF))[0]
_NUMBERS = st.one_of(
    st.floats(),
    st.floats(width=32, allow_subnormal=True),
    st.sampled_from(
        [_NAN_WITH_PAYLOAD, -0.0, 2**-126, -(2**-126) + 2**-151, 2**-126 - 2**-150, 1e39, 2**24 + 1]
    ),
)
_STRINGS = st.one_of(st.sampled_from(["", *TEXTS]), st.text(max_size=20))
_SENTENCES = st.lists(
    st.sampled_from(["free", "FREE", "win", "İ", "नमस्ते", "ΟΔΟΣ", "2024", "🙂"])
    | st.text(max_size=4)
).map(" ".join)
_TRUTHS = st.sampled_from(["", "true", "TRUE", " False\t", "no", "Y", "0", "1", "maybe", "ı"])
_VALUES = {
    "number": _NUMBERS,
    "boolean": _TRUTHS,
    "date": _FAR,
    "category": _STRINGS,
    "text": _STRINGS,
    "words": _SENTENCES,
}

EVERY_KIND = Coding(
    (
        Category("city", dictionary=TEXTS[:6], vocabulary=(TEXTS[3], TEXTS[0], TEXTS[4])),
        Number("age", Missing("median", 38.1, indicator=True)),
        Date("born", Missing("median", -1), origin=-(10**15) + 1),
        String("note", bins=1000),
        Date("seen", Missing("constant", LAST, indicator=True), origin=NO_DATE + 1),
        Boolean("member", Missing("most_frequent", 1)),
        Boolean("asked", Missing("constant", 0, indicator=True)),
        Number("hours", Missing("constant", -1e-40)),
        Category("none", dictionary=(), vocabulary=()),
        Words("message", vocabulary=("free", "win", "नमस्ते"), length=3),
        Words("subject", vocabulary=("win", "οδοσ"), length=3),
        Words("reply", vocabulary=("i", "2024"), length=2),
    )
)
_ROWS = st.lists(st.tuples(*(_VALUES[it.kind] for it in EVERY_KIND.features)), min_size=1)


def test_a_constant_is_a_boolean_in_any_case() -> None:
    assert [Boolean.constant(text) for text in ("TRUE", "No", "maybe")] == [1, 0, None]


packing = cache(Packing)


def expected(declared: Coding, rows: Sequence[Sequence[Any]]) -> np.ndarray:
    """Return what the trainer gets of rows that a shard contains."""
    truth = dict.fromkeys(TRUE_TEXTS, True) | dict.fromkeys(FALSE_TEXTS, False)
    columns = {}
    for feature, values in zip(declared.features, zip(*rows, strict=True), strict=True):
        if feature.kind == "number":
            numbers = np.array(values, np.float64)
            columns[feature.name] = pa.array(numbers, mask=np.isnan(numbers))
        elif feature.kind == "boolean":
            words = [truth.get(value.strip().lower()) for value in values]
            columns[feature.name] = pa.array(words, pa.bool_())
        elif feature.kind == "date":
            dates = np.array(values, np.int64)
            unit = pa.timestamp("us", "UTC")
            columns[feature.name] = pa.array(dates, mask=dates == NO_DATE).cast(unit)
        else:
            strings = [value or None for value in values]
            columns[feature.name] = pa.array(strings, pa.string()).dictionary_encode()
    return np.concatenate(list(packing(declared).pack(pa.table(columns))))


def tensors(declared: Coding, rows: Sequence[Sequence[Any]]) -> list[Any]:
    """Return the raw columns as a client sends them."""
    return [
        tf.constant(
            [value.encode() if isinstance(value, str) else value for value in values],
            type_of(feature),
        )
        for feature, values in zip(declared.features, zip(*rows, strict=True), strict=True)
    ]


def traced(declared: Coding) -> Callable[[list[Any]], np.ndarray]:
    columns = RawColumns(declared)
    specs = [tf.TensorSpec([None], type_of(feature)) for feature in declared.features]
    function = tf.function(lambda *given: columns.pack(given), input_signature=specs)
    return lambda given: function(*given).numpy()


def same_bits(one: np.ndarray, other: np.ndarray) -> None:
    assert one.dtype == other.dtype == np.float32
    np.testing.assert_array_equal(one.view(np.uint32), other.view(np.uint32))


@pytest.fixture(scope="module")
def served() -> Callable[[list[Any]], np.ndarray]:
    return traced(EVERY_KIND)


@settings(max_examples=40, deadline=None)
@given(rows=_ROWS)
@example(rows=[("", float("nan"), NO_DATE, "", NO_DATE, *["", ""], float("nan"), *[""] * 4)] * 2)
@example(rows=[("Rome", 1e-42, 0, "x", 0, "1", "0", -1e-46, "Rome", "a", "Win", "İ 🙂 2024")])
def test_training_and_serving_code_rows_alike(
    served: Callable[[list[Any]], np.ndarray], rows: list[tuple[Any, ...]]
) -> None:
    same_bits(served(tensors(EVERY_KIND, rows)), expected(EVERY_KIND, rows))


@cache
def alone(kind: str) -> tuple[Coding, Callable[[list[Any]], np.ndarray]]:
    """Return a column of a type by itself, and its coding in the exported model."""
    values = TrainValues(DataOptions().gaps("x", kind), np.zeros(0))
    declared = Coding((TYPES[kind].fit("x", values, DataOptions()),))
    return declared, traced(declared)


@pytest.mark.parametrize("kind", [it.name for it in COLUMN_TYPES if it.name != PICTURE])
@settings(max_examples=100, deadline=None)
@given(cells=st.lists(CELLS, min_size=1))
def test_a_cell_is_one_value_for_training_evaluation_and_serving(
    kind: str, cells: list[str]
) -> None:
    declared, signature = alone(kind)
    (column,) = declared.features
    parsed = column.parse(Cells(pa.array([it.encode() for it in cells]), pa.array([""])))
    valid = ~np.any([np.zeros(len(cells), bool), *parsed.invalid.values()], axis=0)
    if column.field is CODES:
        strings = pa.array(["", *parsed.values.texts]).take(pa.array(parsed.values.codes[valid]))
        shard = pc.if_else(pc.equal(strings, ""), None, strings).dictionary_encode()
    else:
        shard = column.to_arrow(np.asarray(parsed.values)[valid])
    trained = np.concatenate(
        [np.empty((0, declared.width), np.float32), *packing(declared).pack(pa.table({"x": shard}))]
    )
    evaluated = tf.constant(column.raw_values(shard), column.raw_type)
    same_bits(signature([evaluated]), trained)
    requested = shard.cast(pa.int64()) if pa.types.is_timestamp(shard.type) else shard
    values, wrong = column.read(requested.to_pylist())
    read = np.setdiff1d(np.arange(len(shard)), [row for row, _ in wrong])
    served = signature([tf.constant(np.asarray(values)[read], column.raw_type)])
    same_bits(served, trained[read])


_MISSING = {
    "number": st.floats(-3e38, 3e38),
    "boolean": st.integers(0, 1),
    "date": st.integers(-(2**63) + 1, LAST),
}


@st.composite
def _codings(draw: st.DrawFn) -> Coding:
    features = []
    for at, kind in enumerate(draw(st.lists(st.sampled_from(list(_VALUES)), min_size=1))):
        more: Mapping[str, Any] = {}
        if kind == "category":
            texts = draw(st.lists(_STRINGS.filter(bool), unique=True))
            kept = draw(st.permutations(texts))[: draw(st.integers(0, len(texts)))]
            more = {"dictionary": tuple(texts), "vocabulary": tuple(kept)}
        elif kind == "text":
            more = {"bins": draw(st.integers(1, 2**24 - 1))}
        elif kind == "words":
            words = draw(st.lists(st.sampled_from(["free", "win", "i", "\x00"]), unique=True))
            more = {"vocabulary": tuple(words), "length": draw(st.integers(1, 5))}
        else:
            more = {"missing": Missing("constant", draw(_MISSING[kind]), draw(st.booleans()))}
        if kind == "date":
            more = {**more, "origin": draw(_MISSING[kind])}
        features.append(TYPES[kind](f"c{at}", **more))
    return Coding(tuple(features))


# Each coding is traced again, which takes half a second.
@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_coding(data: st.DataObject) -> None:
    declared = data.draw(_codings())
    texts = [text for feature in declared.features for text in feature.strings] or [""]
    kinds = [
        st.sampled_from(texts) | _STRINGS if it.kind == "category" else _VALUES[it.kind]
        for it in declared.features
    ]
    rows = data.draw(st.lists(st.tuples(*kinds), min_size=1, max_size=20))
    same_bits(traced(declared)(tensors(declared, rows)), expected(declared, rows))


def test_a_forbidden_gap_is_refused_and_named() -> None:
    strict = Coding((Number("age", Missing("fail", None)), String("b", bins=2)))
    call = traced(strict)
    same_bits(call(tensors(strict, [(1.5, "")])), np.array([[1.5, 0]], np.float32))
    with pytest.raises(tf.errors.InvalidArgumentError, match="age"):
        call(tensors(strict, [(1.5, ""), (float("nan"), "")]))


def test_the_graph_does_not_grow_with_the_columns() -> None:
    """Loading a model takes time for each node: one node for each column is its argument."""

    def nodes(times: int) -> int:
        features = tuple(
            replace(feature, name=f"{feature.name} {number}")
            for number in range(times)
            for feature in EVERY_KIND.features
        )
        specs = [tf.TensorSpec([None], type_of(it), f"a{at}") for at, it in enumerate(features)]
        columns = RawColumns(Coding(features))
        function = tf.function(lambda *given: columns.pack(given), input_signature=specs)
        return len(function.get_concrete_function().graph.as_graph_def().node)

    more = 20 * len(EVERY_KIND.features)
    assert nodes(21) - nodes(1) <= more + 2


def test_every_code_point_is_in_the_same_word_for_prepare_data_and_the_served_model() -> None:
    points = [*range(0xD800), *range(0xE000, 0x110000)]  # without surrogates
    for start in range(0, len(points), 1 << 18):
        texts = [f"x{chr(point)}Y" for point in points[start : start + (1 << 18)]]
        served = words_in_graph(tf.constant([text.encode() for text in texts])).to_list()
        assert [[word.encode() for word in words] for words in words_of(texts)] == served


def test_words_are_packed_in_their_order() -> None:
    vocabulary = ("free", "win", "नमस्ते", "straße", "i")
    coding = Coding((Words("message", vocabulary=vocabulary, length=4),))
    texts = ["WIN a Free-PRIZE, now", "", "नमस्ते!\u2028STRAßE", "\U0001f642", "İ", "win " * 300_000]
    expected_codes = [[3, 1, 2, 1], [0] * 4, [4, 5, 0, 0], [0] * 4, [6, 0, 0, 0], [3] * 4]
    rows = [(text,) for text in texts]
    same_bits(expected(coding, rows), np.array(expected_codes, np.float32))
    same_bits(traced(coding)(tensors(coding, rows)), np.array(expected_codes, np.float32))


def test_the_bins_in_the_docs() -> None:
    page = (Path(__file__).parents[2] / "docs/replica.md").read_text()
    texts = ["London", "london", "München", "東京"]
    table = pa.table({"note": pa.array(texts).dictionary_encode()})
    (packed,) = Packing(Coding((String("note", bins=1024),))).pack(table)
    for text, code in zip(texts, packed[:, 0].astype(int).tolist(), strict=True):
        (row,) = (line for line in page.splitlines() if line.startswith(f"| `{text}` |"))
        _, _, hashed, place, _ = (cell.strip() for cell in row.split("|"))
        assert int(place) == code - 1 == int(hashed, 16) % 1024
