"""The columns of requests: what is read, and what is refused with the names."""

import base64
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kfp_tfjob.common.errors import Problem
from kfp_tfjob.features.coding import Coding
from kfp_tfjob.features.schema import Schema
from kfp_tfjob.features.types import TYPES
from kfp_tfjob.features.types.base import NO_DATE, TrainValues
from kfp_tfjob.features.types.image import ONE_PIXEL
from kfp_tfjob.options.data import DataOptions, Gaps
from kfp_tfjob.serving.answers import predictions, tensors
from kfp_tfjob.serving.refusal import RefusedRequest, answer
from kfp_tfjob.serving.request_columns import RequestColumns, Rows
from kfp_tfjob.serving.tensors import inputs_of, read
from tests.problems import problem_of, problems_of
from tests.typed_schema import keys_of, typed
from tests.unit.picture_files import drawn, encoded, png_of_size

MEDIAN = {"missing": {"rule": "median", "value": 1.0, "indicator": True}}
FAIL = {"missing": {"rule": "fail", "value": None}}
SCHEMA = typed({
    "task": "classification",
    "features": {
        "age": "float32", "job": "category", "signed up": "date",
        "member": "boolean", "note": "text", "height": "float32",
    },
    "label": {"name": "income", "classes": ["low", "high"]},
    "coding": [
        MEDIAN,
        {"vocabulary": ["nurse"], "dictionary": ["nurse"]},
        {"missing": {"rule": "median", "value": 5}, "origin": 0},
        {"missing": {"rule": "most_frequent", "value": 1}},
        {"bins": 8},
        FAIL,
    ],
})  # fmt: skip
TWO = {"a": "float32", "b c": "float32"}
NUMBERS = typed({"task": "regression", "features": TWO, "label": {"name": "y"}})
ROW = {"age": 30, "job": "nurse", "signed up": "2012-03-01T10:00+02:00"}
ROW |= {"member": True, "note": "häh", "height": 1.5}


class Tensor:
    def __init__(self, name: str, datatype: str, data: Any, shape: list[int] | None = None) -> None:
        self.name, self.datatype, self.data = name, datatype, data
        self.shape = shape or [len(data)]

    def as_numpy(self) -> np.ndarray:
        return np.array(self.data)


def problems(schema: Schema, rows: Any) -> list[Problem]:
    return problems_of(RequestColumns(schema).of_rows, rows, kind=RefusedRequest)


def test_rows_are_read_with_their_gaps() -> None:
    gaps = {name: None for name in ROW} | {"height": 0, "note": "", "member": "No"}
    rows = RequestColumns(SCHEMA).of_rows([ROW, gaps])
    assert rows.count == 2
    found = values(rows)
    assert found["age"][0] == 30 and np.isnan(found["age"][1])
    assert found["job"] == [b"nurse", b""]
    assert found["signed up"] == [1_330_588_800_000_000, NO_DATE]
    assert found["member"] == [b"true", b"false"]
    assert found["note"] == ["häh".encode(), b""]
    assert rows.features["age"].dtype == np.float64
    assert rows.features["signed up"].dtype == np.int64


def test_what_was_missing_in_the_source_is_missing_in_a_request() -> None:
    """ "NA" in a CSV was missing, and a category of its own in a request."""
    schema = replace(SCHEMA, null_values=("NA", "n/a"))
    gaps = ROW | {"age": "NA", "job": " NA ", "signed up": "n/a", "member": "NA", "note": "n/a"}
    found = values(RequestColumns(schema).of_rows([ROW, gaps]))
    assert found["age"][0] == 30 and np.isnan(found["age"][1])
    assert (found["job"], found["note"][1]) == ([b"nurse", b""], b"")
    assert (found["signed up"][1], found["member"][1]) == (NO_DATE, b"")
    # In files with types, it was a string.
    assert values(RequestColumns(SCHEMA).of_rows([ROW | {"job": "NA"}]))["job"] == [b"NA"]
    assert len(problems(schema, [ROW | {"height": "NA"}])) == 1  # may not be missing


@pytest.mark.parametrize("value", [-999, -999.0, "-999", "-999.0", " -999.00", "-9.99e+02"])
@pytest.mark.parametrize("declared", ["-999", "-999.0"])
def test_a_number_that_was_missing_in_the_source_is_missing_in_a_request(
    declared: str, value: Any
) -> None:
    """-999 was missing in training in every spelling, and a value in a request."""
    columns = RequestColumns(replace(SCHEMA, null_values=(declared, "?")))
    found = values(columns.of_rows([ROW, ROW | {"age": value, "job": value, "note": value}]))
    assert found["age"][0] == 30 and np.isnan(found["age"][1])
    assert (found["job"], found["note"][1]) == ([b"nurse", b""], b"")


def test_a_number_of_another_value_or_meaning_is_no_missing_one() -> None:
    schema = replace(SCHEMA, null_values=("0", "1330588800000000"))
    columns = RequestColumns(schema)
    rows = [ROW | {"job": job, "member": True, "age": 0.5} for job in ("000", "-00.0", "0x0")]
    found = values(columns.of_rows(rows))
    assert found["job"] == [b"000", b"-00.0", b"0x0"], "000 may be a code"
    assert (found["age"], found["member"]) == ([0.5] * 3, [b"true"] * 3)
    date = columns.of_rows([ROW | {"signed up": 1_330_588_800_000_000}]).features["signed up"]
    assert date.tolist() == [1_330_588_800_000_000], "microseconds"
    found = values(columns.of_rows([ROW | {"member": it} for it in (False, 0, "0", "false")]))
    assert found["member"] == [b"false", b"", b"", b"false"]
    assert problems(schema, [ROW | {"age": 10**400}, ROW | {"age": [0]}])
    (problem,) = problems(schema, [ROW, ROW | {"height": 0}])  # may not be missing
    assert problem.received == "instances[1].height: 0" and "`fail`" in problem.fix


@pytest.mark.parametrize(
    ("datatype", "kind", "values", "missing"),
    [
        ("FP64", "float64", [-999.9, float(np.float32(-999.9)), 5], [True, False, False]),
        ("FP32", "float32", [-999.9, -999.8, 0], [True, False, False]),
        ("FP16", "float16", [-999.9, 0, 5], [True, False, False]),
        ("INT64", "int64", [7, 2**53 + 1, 5], [True, False, False]),
    ],
)
def test_a_missing_number_of_a_tensor_is_rounded_as_its_type_is(
    datatype: str, kind: str, values: list[float], missing: list[bool]
) -> None:
    nulls = ("-999.9", "1e39", "7", "1e-50")
    schema = replace(SCHEMA, features=SCHEMA.features[:1], coding=(MEDIAN,), null_values=nulls)
    columns = RequestColumns(schema)
    array = np.array(values, kind)
    for data in (array, array.tolist()):  # in binary, and in JSON
        found = read(columns, [Tensor("age", datatype, data)]).features["age"]
        assert np.isnan(found).tolist() == missing
    infinite = [Tensor("age", "FP32", np.array([np.inf], np.float32))]
    (problem,) = problems_of(read, columns, infinite, kind=RefusedRequest)
    assert problem.path == "age[0]", "1e39 as float32"


@pytest.mark.parametrize("rule", ["fail", "drop"])
def test_a_rule_against_missing_values_holds_in_a_request(rule: str) -> None:
    """A category, a text or words without a value got a code that was not trained."""
    kinds = ("number", "boolean", "date", "category", "text", "words")
    train = TrainValues(Gaps(rule=rule), np.zeros(0), dictionary=("a",), rows=np.array([0, 9]))
    encoding = [TYPES[kind].fit(kind, train, DataOptions()) for kind in kinds]
    schema = typed({"task": "regression", **keys_of(Coding(tuple(encoding)))})
    row = dict(zip(kinds, (1, True, "2024-01-01", "a", "a", "a b"), strict=True))
    assert RequestColumns(schema).of_rows([row]).count == 1
    for kind in kinds:
        for value in (None, "") if kind != "number" else (None,):
            (problem,) = problems(schema, [row, row | {kind: value}])
            assert problem.path == f"instances[1].{kind}"
            assert f"`{rule}`" in problem.fix and "null" not in problem.expected


def test_dates_are_read_as_the_signature_takes_them() -> None:
    columns = RequestColumns(SCHEMA)
    rows = columns.of_rows([ROW | {"signed up": it} for it in (1_330_588_800_000_000, NO_DATE)])
    assert rows.features["signed up"].tolist() == [1_330_588_800_000_000, NO_DATE]


def test_the_first_wrong_row_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    class Once(dict):
        """A row that may be looked at, but not be renamed."""

        def items(self) -> Any:
            raise AssertionError("a row after the first wrong one was read")

    (problem,) = problems(NUMBERS, [{"a": 1, "b c": 1}, {"a": 1}, *[Once()] * 3])
    assert problem.path == "b c" and "instances[1]" in problem.received
    monkeypatch.setattr("kfp_tfjob.serving.limits.MOST_ROWS", 2)
    columns = RequestColumns(NUMBERS)
    for call in (
        lambda: columns.of_rows([{"a": 1, "b c": 1}] * 3),
        lambda: read(columns, [Tensor(name, "FP64", [1] * 3) for name in ("a", "b c")]),
    ):
        with pytest.raises(RefusedRequest) as refused:
            call()
        assert refused.value.status == 413


def values(rows: Rows) -> dict[str, list[Any]]:
    return {name: column.tolist() for name, column in rows.features.items()}


@pytest.mark.parametrize("name", ["b c", "b_c"])  # of the column, of the signature's argument
def test_the_columns_are_in_the_order_of_the_schema(name: str) -> None:
    rows = RequestColumns(NUMBERS, {"a": "a", "b c": "b_c"}).of_rows([{name: 2, "a": 1.5}])
    assert [*values(rows).items()] == [("a", [1.5]), ("b c", [2.0])]


WRONG = {
    "age": ("30", True, [1], 10**400, 1e300, float("inf")),
    "job": (5,),
    "note": ({"a": 1}, "\ud800"),
    "signed up": (
        "2012-02-31",
        "yesterday",
        1330588800,
        1330588800000,
        10**18,
        1.5e15,
        True,
        "\ud800",
    ),
    "member": (2, "perhaps"),
    "height": (None,),  # the model does not accept a missing value in it
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in WRONG.items() for value in values]
)
def test_a_wrong_value_is_refused_by_name(name: str, value: Any) -> None:
    (problem,) = problems(SCHEMA, [ROW, ROW | {name: value}])
    assert problem.path in (f"instances[1].{name}", name)
    assert "instances[1]" in problem.received and problem.fix


@pytest.mark.parametrize(
    ("name", "value", "suggestion"),
    [
        ("signed up", "08.04.2019", '"2019-04-08T00:00:00"'),
        ("signed up", "2019", ""),
        ("age", "5.472,31", "5472.31"),
        ("age", "30", "30.0"),
        ("age", "old", ""),
        ("age", "\ud800", ""),
        ("age", "nan", ""),  # JSON does not have it
        ("age", "-inf", ""),
        ("height", " 1.75 ", "1.75"),
        ("age", True, ""),
        ("height", "1.75", "1.75"),
        ("height", "1,75", ""),
    ],
)
def test_a_value_in_the_format_of_the_training_files_is_answered_with_the_right_one(
    name: str, value: Any, suggestion: str
) -> None:
    """The remedy was to send it as in the training data, which it was."""
    formats = {"signed up": "date %d.%m.%Y", "age": "number 1.234,5"}
    schema = replace(SCHEMA, formats=formats)
    (problem,) = problems(schema, [ROW | {name: value}])
    assert problem.suggestion == suggestion and problem.fix
    if suggestion:
        RequestColumns(schema).of_rows([ROW | {name: json.loads(suggestion)}])


def test_all_problems_are_told_at_once() -> None:
    wrong = dict(ROW) | {"job": 1, "hieght": 2, "income": "low"}  # the label, which it predicts
    del wrong["height"]
    found = {problem.path: problem.suggestion for problem in problems(SCHEMA, [wrong])}
    assert found == {"height": "", "hieght": "height", "income": ""}
    assert len(problems(SCHEMA, [ROW | {"job": 1, "age": "x"}])) == 2
    many = problems(SCHEMA, [ROW | {"age": "x"}] * 100)
    assert len(many) == 6 and "95 more" in many[-1].what


@pytest.mark.parametrize("length", [1, 3, 30])
def test_a_list_is_sent_as_one_column_for_each_element(length: int) -> None:
    """The remedy was to rename it to one of the elements, after twenty missing ones."""
    names = [f"emb[{element}]" for element in range(length)]
    features = dict.fromkeys([*names, "a"], "float32")
    schema = typed({"task": "regression", "features": features, "label": {"name": "y"}})
    wrong = {"emb": [0.5] * length, "a": 1}
    (problem,) = problems(schema, [wrong])
    assert (problem.path, problem.suggestion) == ("emb", "")
    assert names[0] in problem.fix and "rename" not in problem.fix
    tensors = [Tensor("emb", "FP64", [0.5]), Tensor("a", "FP64", [1])]
    (problem,) = problems_of(read, RequestColumns(schema), tensors, kind=RefusedRequest)
    assert problem.path == "emb"
    del wrong["a"]
    assert {problem.path for problem in problems(schema, [wrong])} == {"emb", "a"}
    assert RequestColumns(schema).of_rows([dict.fromkeys(features, 1)]).count == 1


def test_a_column_under_both_of_its_names_is_refused() -> None:
    columns = RequestColumns(NUMBERS, {"a": "a", "b c": "b_c"})
    row = {"a": 1, "b c": 2}
    for both in ({"b_c": 3} | row, row | {"b_c": 3}):
        problem = problem_of(columns.of_rows, [row, both], kind=RefusedRequest)
        assert problem.path == "b_c" and problem.received == "'b_c' in instances[1]"


def test_of_many_foreign_names_only_the_first_are_described() -> None:
    many = {f"foreign {at:06}": 1 for at in range(100_000)} | {"A" * 10_000: 1}
    (named, *_, rest) = found = problems(NUMBERS, [{"a": 1, "b c": 1} | many])
    assert len(found) == 21 and "99,981 more" in rest.what and len(str(named)) < 1000


@pytest.mark.parametrize("rows", [[], None, {}, "x", 5, [1], [[1, 2]], [None]])
def test_what_is_no_list_of_objects_is_refused(rows: Any) -> None:
    assert problems(SCHEMA, rows)


def test_an_image_is_decoded_only_if_its_header_is_good() -> None:
    """A blank PNG of 0.4 MB may have 400 megapixels, which take more than a gigabyte."""
    size = {"height": 4, "width": 4, "channels": 1}
    features = {"features": {"picture": "picture"}, "picture": size}
    whole = encoded(drawn(), "PNG")
    cases = [
        (features, png_of_size(10_001, 10_000), "10,001 x 10,000 pixels"),
        (features, whole[:-20], "without the end of the PNG"),
        (features, encoded(drawn())[:-20], "without the end of the JPEG"),
        (features | {"max_megapixels": 0.001}, whole, "40 x 30 pixels"),
    ]
    for body, content, reason in cases:
        row = {"picture": base64.b64encode(content).decode()}
        (problem,) = problems(typed(body), [row])
        assert problem.path == "instances[0].picture" and reason in problem.received
        assert f"{body.get('max_megapixels', 100):g} megapixels" in problem.expected
    good = [
        (features, png_of_size(10_000, 10_000)),
        (features | {"max_megapixels": 101}, cases[0][1]),
    ]
    for body, content in good:
        row = {"picture": base64.b64encode(content).decode()}
        assert RequestColumns(typed(body)).of_rows([row]).count == 1


def test_pictures_come_in_base64() -> None:
    size = {"height": 4, "width": 4, "channels": 1}
    schema = typed({"features": {"picture": "picture"}, "picture": size})
    text = base64.b64encode(ONE_PIXEL).decode()
    rows = RequestColumns(schema).of_rows([{"picture": {"b64": text}}, {"picture": text}])
    assert rows.features["picture"].tolist() == [ONE_PIXEL] * 2
    for wrong in ("%%%", "aGFsbG8=", None):  # no base64, no JPEG or PNG
        (problem,) = problems(schema, [{"picture": wrong}])
        assert problem.path == "instances[0].picture"


def test_tensors_are_read_by_name() -> None:
    columns = RequestColumns(NUMBERS)
    rows = read(columns, [Tensor("b c", "INT64", [3, 4]), Tensor("a", "FP64", [[1], [2]], [2, 1])])
    assert values(rows) == {"a": [1, 2], "b c": [3, 4]}
    assert inputs_of(columns)[0] == {"name": "a", "datatype": "FP64", "shape": [-1]}


@pytest.mark.parametrize(
    ("inputs", "path"),
    [
        ([("a", "FP64", [1])], "b c"),
        ([("a", "FP64", [1]), ("b c", "FP64", [1]), ("z", "FP64", [1])], "z"),
        ([("a", "BYTES", ["1"]), ("b c", "FP64", [1])], "a"),
        ([("a", "FP64", [1, 2]), ("b c", "FP64", [1])], ""),
        ([("a", "FP64", []), ("b c", "FP64", [])], ""),
        ([("a", "FP64", [1]), ("a", "FP64", [1]), ("b c", "FP64", [1])], "a"),
        ([("a", "FP64", ["x"]), ("b c", "FP64", [1])], "a[0]"),
        ([("a", "FP64", [1, 2], [1, 2]), ("b c", "FP64", [1])], "a"),
        ([], "a"),
    ],
)
def test_wrong_tensors_are_refused_by_name(inputs: list[Any], path: str) -> None:
    tensors = [Tensor(*it) for it in inputs]
    assert problems_of(read, RequestColumns(NUMBERS), tensors, kind=RefusedRequest)[0].path == path


def test_tensors_may_come_as_bytes() -> None:
    class Raw(Tensor):
        """As kserve has it: an empty list beside the bytes."""

        def as_numpy(self) -> np.ndarray:
            return np.array([1.5, 2.5])

    inputs = [Raw("a", "FP64", [], [2]), Raw("b c", "FP64", [], [2, 1])]
    assert values(read(RequestColumns(NUMBERS), inputs)) == {"a": [1.5, 2.5], "b c": [1.5, 2.5]}


def test_answers_have_the_form_of_tensorflow_serving() -> None:
    names = RequestColumns(SCHEMA).classes
    values = np.array([[0.25, 0.75], [np.nan, 0.5]], np.float32)
    found = predictions(names, values[:1])
    assert found == [{"probabilities": [0.25, 0.75], "class": "high"}]
    broken = predictions(names, values)[1]  # no class that would look right
    assert broken == {"probabilities": [None, 0.5], "class": None}
    assert [it["data"] for it in tensors(names, values[1:])] == [[None, 0.5], [""]]
    assert predictions(RequestColumns(NUMBERS).classes, np.array([1.5])) == [1.5]
    probabilities, classes = tensors(names, values[:1])
    assert (probabilities["shape"], probabilities["data"]) == ([1, 2], [0.25, 0.75])
    assert (classes["shape"], classes["data"]) == ([1], ["high"])


def test_a_refusal_is_for_people_and_for_programs() -> None:
    with pytest.raises(RefusedRequest) as refused:
        RequestColumns(NUMBERS).of_rows([{"a": "x", "b c": 1}])
    body = answer(refused.value)
    assert body["error"].startswith("the column 'a'")
    assert body["problems"][0]["fix"].startswith("send 'a'")
