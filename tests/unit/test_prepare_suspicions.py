"""Categories whose strings seem to be numbers, dates, booleans or missing values."""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime

import numpy as np
import pytest

from kfp_tfjob.features.imputation import Missing
from kfp_tfjob.features.types.base import ColumnMoments, Summary
from kfp_tfjob.features.types.category import Category, CategoryStatistics
from kfp_tfjob.features.types.date import SECOND, Date, DateStatistics
from tests.unit.prepared_files import options

NUMBERS = [f"{100 + 7 * i % 900}.{i % 10}" for i in range(600)]
DAYS = [f"2024-{1 + i % 12:02}-{1 + i % 28:02}" for i in range(600)]


def suspect(values: Sequence[str], **given: object) -> list[str]:
    """Return what is suspicious about a category with these values."""
    rows = Counter(values)
    counts = np.array([*rows.values()])
    summary = Summary(len(values), ColumnMoments(mean=0, std=0), None, None, np.zeros(0), counts)
    statistics = CategoryStatistics(distinct=len(rows), vocabulary=len(rows), rare=0, top=[])
    category = Category("c", dictionary=tuple(rows), vocabulary=())
    return category.suspicions(summary, statistics, options(**given))


def replaced(values: Sequence[str], words: Mapping[int, str]) -> list[str]:
    """Return values with words in every so many rows."""
    found = list(values)
    for step, word in words.items():
        found[::step] = [word] * len(found[::step])
    return found


@pytest.mark.parametrize(
    ("values", "parts"),
    [
        (replaced(NUMBERS, {5: "?", 7: "-"}), ["'?'", "'-'"]),
        (replaced(NUMBERS, {5: "?"}), ["'?'"]),
        (replaced(NUMBERS, {6: "#N/A", 7: "#DIV/0!", 11: "#VALUE!"}), ["'#N/A'", "'#DIV/0!'"]),
        (replaced(NUMBERS, {6: "<NA>", 7: "None"}), ["'<NA>'", "'None'"]),
        (replaced(DAYS, {5: "unknown"}), ["'unknown'"]),
        ([f"{text} kmpl" for text in NUMBERS[:90]], ["kmpl"]),
        ([f"{100 + i}/{60 + i % 30}" for i in range(90)], ["100/60"]),
        ([f"12,34,{567 + i}" for i in range(90)], ["12,34,567"]),
        ([f"<{text}" if i % 2 else text for i, text in enumerate(NUMBERS[:90])], ["<"]),
        ([f"\uff11{i}" for i in range(90)], ["\uff110"]),
    ],
    ids="two-words one-word excel pandas dates unit two-in-one india limit fullwidth".split(),
)
def test_numbers_and_dates_that_are_a_category(values, parts) -> None:
    (said,) = [it for it in suspect(values) if "data_options." in it]
    assert all(part in said for part in parts)
    assert suspect(values, types={"c": "category"}) == []


@pytest.mark.parametrize(
    "values",
    [
        [f"A{i}" for i in range(90)],
        [f"A/5 {i}" if i % 4 else str(1000 + i) for i in range(300)],  # tickets
        ["1", "2", "3", "4", "5+"],
        ["3", "4", "5more"],
        [f"{i}-{i + 9}" for i in range(0, 90, 10)],
        [f"10.0.{i % 9}.{i}" for i in range(90)],
        [f"{i}.{i % 7}.{i % 5}" for i in range(90)],
        ["low", "high", "None"],
        ["NA", "DE", "null-modem"],
        ["yes", "no", "maybe"],
        ["red", "Red"],
    ],
)
def test_categories_that_are_names(values) -> None:
    assert suspect(values) == []


@pytest.mark.parametrize("word", ["nan", "NaT", "<NA>", "null"])
def test_a_missing_value_that_became_a_string(word: str) -> None:
    (said,) = suspect(["a", "b", word])
    assert repr(word) in said and suspect(["NA", "DE", "None"]) == []


@pytest.mark.parametrize("mark", ["'", '"'])
def test_quotes_that_became_part_of_the_values(mark: str) -> None:
    for values in (["36", "42", "75"], ["yes", "no"]):
        (said,) = suspect([f"{mark}{value}{mark}" for value in values])
        assert "quotes" in said and "data_options" not in said
    assert suspect(["'tis", "no'", "o'clock"]) == suspect([f"{mark}a{mark}", "a"]) == []


def test_free_text_is_no_category() -> None:
    """Of whole messages, the model knew none of the new ones."""

    def warned(distinct: int, words: int, rare: int) -> list[str]:
        top = [(" ".join(["word"] * words), 1)] * 10
        column = CategoryStatistics(distinct=distinct, vocabulary=9, rare=rare, top=top, count=3000)
        return Category.warnings({"c": column}, {})

    (said,) = warned(2800, 15, 2700)
    assert 'data_options.types={"c": "words"}' in said
    assert warned(900, 15, 2700) == warned(2800, 2, 2700) == warned(2800, 15, 1000) == []


@pytest.mark.parametrize(
    ("pattern", "first", "last", "suspected"),
    [
        ("%m/%d/%y", "1969-05-01", "2068-12-14", True),
        ("%m/%d/%Y", "1969-05-01", "2068-12-14", False),
        ("%m/%d/%y", "1995-05-01", "2068-12-14", False),
        ("%m/%d/%y", "1969-05-01", "2024-12-14", False),
    ],
)
def test_years_with_two_digits_may_be_of_another_century(pattern, first, last, suspected) -> None:
    """1945 was read as 2045."""
    least, most = (
        int(datetime.fromisoformat(f"{day}T00:00+00:00").timestamp()) * SECOND
        for day in (first, last)
    )
    no_codes = np.zeros(0, np.int64)
    summary = Summary(9, ColumnMoments(mean=0, std=0), least, most, np.zeros(0), no_codes)
    statistics = DateStatistics(min=first, max=last, histogram=[])
    given = options(types={"d": {"date": pattern}})
    assert (
        bool(
            Date("d", missing=Missing("median", 0), origin=0).suspicions(summary, statistics, given)
        )
        == suspected
    )


def test_one_value_in_several_spellings() -> None:
    (said,) = suspect(["true", "false", "Yes", "No", "1", "0"])
    assert '{"c": "boolean"}' in said and suspect(["on", "off"]) == []
    assert len(suspect(["M", "F", "Male", "Female"])) == 1
    assert suspect(["A", "B", "Apple", "Ant"]) == suspect(["A", "B", "C"]) == []
    (said,) = suspect(["1", "1.0", "2", "2.0", "3"], types={"c": "category"})
    assert "1.0" in said and suspect(["1", "2.0", "v1", "v1.0"]) == []
