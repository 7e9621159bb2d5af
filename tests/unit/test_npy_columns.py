"""File names and lists of strings of the `.npy` files."""

import json
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kfp_tfjob.components.launch_tfjob.setup import npy_columns
from kfp_tfjob.components.launch_tfjob.setup.npy_columns import file_names
from kfp_tfjob.options.parse import parse
from kfp_tfjob.options.train import TrainOptions
from tests.problems import problem_of

LISTS = st.lists(st.sets(st.text(st.characters(codec="utf-8"), max_size=3)), min_size=1, max_size=5)


def test_a_plain_name_is_the_name_of_its_file() -> None:
    assert file_names(["age", "Signed-up_2", "7"]) == {
        "age": "age",
        "Signed-up_2": "Signed-up_2",
        "7": "7",
    }


def test_other_names_become_plain_and_distinct() -> None:
    names = ["a b", "a/b", "a_b", "A_B", "\u6771\u4eac", "..", "x" * 300, "-x", "\u00e9t\u00e9"]
    assert file_names(names) == {
        "a b": "a_b_3",
        "a/b": "a_b_4",
        "a_b": "a_b",
        "A_B": "A_B_2",
        "\u6771\u4eac": "column",
        "..": "column_2",
        "x" * 300: "x" * 80,
        "-x": "x",
        "\u00e9t\u00e9": "t",
    }


@given(names=st.lists(st.text(max_size=5), unique=True))
def test_no_two_columns_share_a_file(names: list[str]) -> None:
    files = file_names(names)
    assert list(files) == names
    assert len({file.casefold() for file in files.values()}) == len(names)
    assert all(file.isascii() and file.strip("._-") for file in files.values())


@settings(deadline=None)
@given(lists=LISTS, merged_bytes=st.sampled_from([1, 10_000]))
def test_merged_lists_are_one_sorted_list(
    lists: list[set[str]], merged_bytes: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path: Path = tmp_path_factory.mktemp("merged") / "strings.json"
    ordered = [sorted(strings) for strings in lists]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(npy_columns, "_MERGED_BYTES", merged_bytes)
        maps = npy_columns._merge([pa.array(it, pa.string()) for it in ordered], path)
    merged = json.loads(path.read_text("utf-8"))
    assert merged == sorted(set().union(*lists))
    assert [[merged[code] for code in codes] for codes in maps] == ordered


@pytest.mark.parametrize(
    ("value", "typed"),
    [(True, True), (False, False), ("true", True), ("False", False), (1, True), ("npy", "npy")],
)
def test_the_values_of_stage_data(value: object, typed: object) -> None:
    stage_data = parse(TrainOptions, "train_options", {"stage_data": value}).stage_data
    assert (type(stage_data), stage_data) == (type(typed), typed)


def test_another_value_of_stage_data_is_refused() -> None:
    problem = problem_of(parse, TrainOptions, "train_options", {"stage_data": "parquet"})
    assert problem.path == "train_options.stage_data"
    assert "npy" in str(problem.expected)
