"""Tables that train without an error and teach a model little: what the verdict says of them."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from kfp_tfjob.components.prepare_data.data_validation import validate
from kfp_tfjob.components.prepare_data.engine import run
from kfp_tfjob.components.step import Step
from kfp_tfjob.components.summary import suspicious_columns
from tests.unit.prepared_files import write_table

ROWS = 600
NUMBERS = [f"{100 + 7 * i % 900}.{i % 10}" for i in range(ROWS)]
LABELS = np.random.default_rng(1).choice(["u", "v"], ROWS).tolist()
Suspect = Callable[..., list[str]]


@pytest.fixture
def suspect(step: Step, tmp_path: Path) -> Suspect:
    """Prepare a table with the column `c`; return what is suspicious, as the verdict shows it."""

    def prepare(values: Sequence, ending: str = "csv", **options: object) -> list[str]:
        columns = {"c": [values[i % len(values)] for i in range(ROWS)], "n": list(range(ROWS))}
        columns["y"] = LABELS
        table = write_table(tmp_path / f"f.{ending}", columns, "\t")
        done = run(step, str(table), "y", {"delimiter": "\t", **options})
        validate(step, done, "", {})
        suspicions = done.statistics.suspicions or ()
        assert set(suspicions) <= set(done.statistics.warnings)
        text = suspicious_columns(step.store, done.dataset_uri)
        assert bool(text) == bool(suspicions) and all(it[1:] in text for it in suspicions)
        return [it for it in suspicions if "'c'" in it]

    return prepare


def replaced(values: Sequence[str], words: Mapping[int, str]) -> list[str]:
    """Return values with words in every so many rows."""
    found = list(values)
    for step, word in words.items():
        found[::step] = [word] * len(found[::step])
    return found


def test_a_category_of_numbers_and_two_words(suspect: Suspect) -> None:
    values = replaced(NUMBERS, {5: "?", 7: "-"})
    (said,) = suspect(values)
    assert "'?'" in said and "'-'" in said and "data_options.null_values" in said
    assert suspect(values, null_values=["", "?", "-"]) == []


def test_a_flag_that_is_a_value_or_nothing(suspect: Suspect) -> None:
    """A missing value became the only value, so the column told nothing."""
    for flag in ("Y", "1", "2024-01-01"):
        (said,) = suspect([flag, "", ""])
        assert '"indicator": true' in said
        marked = {"c": {"rule": "most_frequent", "indicator": True}}
        assert suspect([flag, "", ""], missing=marked) == []
    assert suspect(["Y", "", ""], missing={"c": {"rule": "constant", "value": False}}) == []
    assert suspect(["Y", "N", ""]) == suspect(["sold", "", ""]) == []


def test_splits_that_are_far_from_their_shares(step: Step, tmp_path: Path) -> None:
    """Rows with the same features stay together, so few distinct rows divide as they like."""
    shares = {"train": 0.7, "validation": 0.15, "test": 0.15}
    combinations = [0, 0, 0, 1, 1, 2, 2, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 13]
    numbers = [combinations[i % 20] for i in range(ROWS)]
    columns = {"u": numbers, "y": [100 * number for number in numbers], "row": list(range(ROWS))}

    def suspicions(columns: Mapping[str, Sequence], **split: str) -> tuple[str, ...]:
        table = write_table(tmp_path / "f.csv", columns)
        done = run(step, str(table), "y", {"task": "regression", "split": split})
        uneven = any(not 0.5 <= done.rows[it] / ROWS / share <= 2 for it, share in shares.items())
        assert uneven == bool(done.statistics.suspicions)
        return done.statistics.suspicions or ()

    few = {name: columns[name] for name in ("u", "y")}
    (said,) = suspicions(few, salt="6")
    assert "data_options.split.group" in said and "only 14 " in said
    assert suspicions(few, salt="5") == ()
    assert suspicions(columns, group="row") == suspicions(columns) == ()
    grouped = {**columns, "row": [i % 7 for i in range(ROWS)]}
    (said,) = suspicions(grouped, group="row", salt="5")
    assert "'row'" in said


def test_files_that_count_in_another_way_than_they_seem_to(step: Step, tmp_path: Path) -> None:
    """A copy counts twice, folders do not decide beside a group, and a .sav is not read."""
    columns = {"a": list(range(300)), "g": [i % 60 for i in range(300)]}
    columns["y"] = LABELS[:300]
    for name in ("train/a.csv", "test/a (1).csv"):
        table = write_table(tmp_path / name, columns)
    options = {"split": {"group": "g"}}
    (tmp_path / "train/b.sav").write_text(table.read_text())
    done = run(step, str(tmp_path), "y", options)
    folders, copied, unread = done.statistics.suspicions
    assert "split.group" in folders and "1 file " in copied and "train/b.sav" in unread
    (tmp_path / "train/b.sav").unlink()
    (tmp_path / "test/a (1).csv").write_text(
        "a,g,y\n" + "\n".join(f"{i},{i},u" for i in range(301, 310))
    )
    done = run(step, str(tmp_path), "y", options | {"split": {"group": "g", "folders": False}})
    assert not done.statistics.suspicions
