"""Labels that are numbers, dates or missing values in disguise, and not the names of classes."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from kfp_tfjob.common.errors import DataError
from kfp_tfjob.components.prepare_data.column_warnings import label_suspicions
from kfp_tfjob.components.prepare_data.labels import Label
from kfp_tfjob.components.prepare_data.row_requirements import decide
from tests.problems import problem_of
from tests.unit.prepared_files import read, write_table

ROWS = 600
RATINGS = [f"{1 + half / 2:g}".replace(".", ",") for half in range(9)]
PRICES = [f"${1000 + 37 * i:,}" for i in range(90)]
DAYS = [f"2024-{1 + i % 12:02}-{1 + i % 28:02}" for i in range(84)]


def label_of(folder: Path, labels: Sequence, ending: str = "parquet", **options: object) -> Label:
    """Return the label of a table of ROWS rows with these labels in turn."""
    columns = {"x": list(range(ROWS)), "y": [labels[i % len(labels)] for i in range(ROWS)]}
    return decide(read(write_table(folder / f"f.{ending}", columns), **options))


@pytest.mark.parametrize("labels", [RATINGS, PRICES, ["0,5", "1,5"], [*PRICES, "7", "call"]])
def test_a_label_in_an_ambiguous_format_is_refused_and_both_remedies_work(tmp_path, labels) -> None:
    """They would be classes without order, and 3,5 no nearer to 4 than to 1."""
    problem = problem_of(label_of, tmp_path, labels, kind=DataError)
    assert problem.path == "data_options.task"
    assert label_of(tmp_path, labels, task=problem.suggestion).task == "classification"
    named = problem.fix.partition("data_options.types=")[2]
    types = json.JSONDecoder().raw_decode(named)[0]
    given = {"types": types, "on_bad_row": "drop"}
    assert label_of(tmp_path, labels, **given).task == "regression"


@pytest.mark.parametrize(
    ("labels", "suspected"),
    [
        (["40%", "50%", "60%"], True),  # plain numbers would be classes, too
        (["1,000", "2,000", "10,000"], True),
        ([f"{40 + i} kg" for i in range(30)], True),
        (["1", "2", "3", "4", "5", "not rated"], True),
        ([f"{i // 4:02}:{15 * (i % 4):02}" for i in range(16)], True),
        (["'yes'", "'no'"], True),
        (["250 ml", "500 ml", "750 ml"], False),
        ([f"{i // 60:02}:{i % 60:02}" for i in range(40)], True),
        (["+1", "-1"], False),
        ([f"class {i}" for i in range(30)], False),
        (["1", "2", "3+"], False),
        (["2024-01-01", "2024-02-01"], False),
    ],
)
def test_classes_that_may_be_numbers(tmp_path, labels, suspected: bool) -> None:
    found = label_of(tmp_path, labels)
    assert found.task == "classification" and bool(found.suspicions) == suspected
    assert label_of(tmp_path, labels, task="classification").suspicions == ()


def test_a_label_of_dates_is_refused_unless_they_are_classes(tmp_path) -> None:
    problem = problem_of(label_of, tmp_path, DAYS, kind=DataError)
    assert problem.path == "data_options.task"
    assert len(label_of(tmp_path, DAYS, task=problem.suggestion).classes) == len(DAYS)


@pytest.mark.parametrize("word", ["nan", "NaN", "NaT", "<NA>"])
def test_a_missing_label_that_became_a_string_is_no_class(tmp_path, word: str) -> None:
    labels = ["a", "b", "a", word]
    problem = problem_of(label_of, tmp_path, labels, kind=DataError)
    assert (problem.path, problem.suggestion) == ("data_options.task", "classification")
    assert word in label_of(tmp_path, labels, task="classification").classes
    empty = [None if it == word else it for it in labels]
    given = {"on_bad_row": "drop", "max_bad_fraction": 0.25}
    assert label_of(tmp_path, empty, **given).classes == ("a", "b")


@pytest.mark.parametrize(
    ("labels", "suspected"),
    [
        (["True", "False", "None"], "None"),
        (["yes", "no", "null"], "null"),
        (["low", "high", "NULL"], "NULL"),
        (["None", "mild", "severe"], ""),  # a level of pain
        (["NA", "DE", "FR"], ""),  # Namibia
        (["Yes", "no", "yes."], "Yes"),
        (["A", "a", "b"], ""),
        (["true", "false", "Yes", "No"], "Yes"),
        (["M", "F", "Male", "Female"], "Male"),
        (["yes", "no", "1", "0"], ""),  # two classes
        (["t", "f"], ""),
        (["A", "B", "C"], ""),
    ],
)
def test_classes_that_may_be_missing_or_the_same(tmp_path, labels, suspected: str) -> None:
    found = label_suspicions(label_of(tmp_path, labels))
    assert [suspected in text for text in found] == [True] * bool(suspected)


@pytest.mark.parametrize(
    ("labels", "decimal"),
    [(["33%", "0.33", "0.5"], "."), (["$5.10", "€5.20", "$7.30"], "."), (["5%", "$5", "6%"], ".")],
)
@pytest.mark.parametrize("task", ["auto", "regression"])
def test_labels_with_several_signs_are_refused(tmp_path, labels, decimal, task) -> None:
    """The signs were ignored: 33% and 0.33 were 33 and 0.33."""
    types = {"y": {"number": {"decimal": decimal}}}
    assert problem_of(label_of, tmp_path, labels, types=types, task=task, kind=DataError).fix
    same = [text.lstrip("$€").rstrip("%") + "%" for text in labels]
    assert label_of(tmp_path, same, types=types, task="regression").task == "regression"


def test_classes_that_lose_all_their_rows_are_named(tmp_path) -> None:
    """The class c was gone, and the run was green."""
    path = tmp_path / "f.csv"
    rows = [("abc"[i % 3], "err" if i % 3 == 2 else i) for i in range(300)]
    path.write_text("".join(["x,y\n", *(f"{x},{label}\n" for label, x in rows)]))
    given = {"on_bad_row": "drop", "max_bad_fraction": 0.5, "types": {"x": "number"}}
    label = decide(read(path, **given))
    (said,) = label.suspicions
    assert label.classes == ("a", "b") and said.endswith(": c")
    path.write_text(path.read_text().replace("err", ""))
    (said,) = decide(read(path, missing={"x": "drop"})).suspicions
    assert said.endswith(": c")
    path.write_text(path.read_text() + "".join(f"{i},c\n" for i in range(1000, 1020)))
    label = decide(read(path, missing={"x": "drop"}))
    assert label.classes == ("a", "b", "c") and label.suspicions == ()
