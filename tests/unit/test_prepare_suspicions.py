"""Categories whose strings seem to be numbers, dates, booleans or missing values."""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from kfp_tfjob.features.types.base import ColumnMoments, Summary
from kfp_tfjob.features.types.category import Category, CategoryStatistics
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


def test_one_value_in_several_spellings() -> None:
    (said,) = suspect(["true", "false", "Yes", "No", "1", "0"])
    assert '{"c": "boolean"}' in said and suspect(["on", "off"]) == []
    assert len(suspect(["M", "F", "Male", "Female"])) == 1
    assert suspect(["A", "B", "Apple", "Ant"]) == suspect(["A", "B", "C"]) == []
    (said,) = suspect(["1", "1.0", "2", "2.0", "3"], types={"c": "category"})
    assert "1.0" in said and suspect(["1", "2.0", "v1", "v1.0"]) == []
