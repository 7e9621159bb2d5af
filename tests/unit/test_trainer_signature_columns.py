"""The arguments of a signature: names that TensorFlow keeps, whatever the columns are called."""

import keyword
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfp_tfjob.common.errors import DataError
from kfp_tfjob.features import signature_columns
from kfp_tfjob.features.served_model import _columns
from kfp_tfjob.features.signature_columns import argument_names

# Few letters, so that names meet.
NAMES = st.text(st.sampled_from("aAbB_1 .-%Äß年나"), max_size=4) | st.text(max_size=8)
COLUMNS = st.lists(NAMES, unique=True, max_size=12)


def kept(name: str) -> bool:
    """Whether TensorFlow keeps a name, alone among others."""
    plain = re.fullmatch("[A-Za-z][A-Za-z0-9_]*", name)
    return bool(plain) and not keyword.iskeyword(name) and name.lower() != "self"


@given(COLUMNS)
def test_every_column_has_an_argument_that_tensorflow_keeps(columns: list[str]) -> None:
    names = argument_names(columns)
    assert all(map(kept, names))
    assert len({name.lower() for name in names}) == len(columns)
    for column, name in zip(columns, names, strict=True):
        alone = [item for item in columns if item.lower() == column.lower()] == [column]
        if kept(column) and alone:
            assert name == column


@given(COLUMNS, st.randoms())
def test_the_order_of_the_columns_changes_no_argument(columns: list[str], random) -> None:
    before = dict(zip(columns, argument_names(columns), strict=True))
    random.shuffle(columns)
    assert dict(zip(columns, argument_names(columns), strict=True)) == before


def write(folder: Path, text: str) -> Path:
    path = folder / signature_columns.COLUMNS
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return folder


def test_the_file_says_it_again(tmp_path: Path) -> None:
    assert signature_columns.read(tmp_path) == {}
    columns = ["a b", "나이", 'a"\n']
    mapping = signature_columns.read(write(tmp_path, signature_columns.to_json(columns)))
    assert list(mapping) == columns and list(mapping.values()) == argument_names(columns)


@pytest.mark.parametrize(
    "text", ["", "[", "{}1", '{"a": 1}', "[1]", '[{"column": "a"}]', "[" * 9999]
)
def test_a_file_that_maps_nothing_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(DataError, match="columns.json"):
        signature_columns.read(write(tmp_path, text))


def test_names_stay_readable() -> None:
    names = {"Größe in cm": "Groudfe_in_cm", "mean radius": "mean_radius", "나이": "ub098uc774"}
    names |= {"年齢": "u5e74u9f62", "_c0": "arg__c0", "2x": "arg_2x", "(a)": "arg__a_"}
    names |= {"class": "arg_class", "Self": "arg_Self", "%": "arg__"}
    assert argument_names(names) == list(names.values())
    assert argument_names(("a.b", "a_b", "a-b", "A", "a", "a_1")) == (
        ["a_b_2", "a_b", "a_b_1", "A", "a_2", "a_1"]
    )


def test_inputs_that_a_program_named_as_tensorflow_does_are_found() -> None:
    inputs = dict.fromkeys(("_a_b", "2nd_col", "gr__e"))
    found = _columns(("_a b", "2nd.col", "größe"), inputs, {})
    assert found == {"_a_b": 0, "2nd_col": 1, "gr__e": 2}
