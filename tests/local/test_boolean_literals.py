"""A boolean has the same literals in training, in the exported model and in the server."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kfp_tfjob.components.prepare_data.columns_to_rows import Converter
from kfp_tfjob.components.prepare_data.faults import BlockFaults
from kfp_tfjob.components.prepare_data.kinds import NO_KINDS, Feature
from kfp_tfjob.components.prepare_data.source.readers.arrow_table import Chunk
from kfp_tfjob.features.coding import Coding
from kfp_tfjob.features.types.base import Missing
from kfp_tfjob.features.types.boolean import FALSE_TEXTS, TRUE_TEXTS, Boolean
from tests.local.test_raw_columns import traced

WRONG = "wrong"
_SERVED = {b"true": 1.0, b"false": 0.0, b"": None}
_SPELLINGS = ("01", "+1", "-1", "1e0", "00", "+0", "1.00", "1.", ".0", "2", "j", "truely", "x")
_WORDS = st.sampled_from((*TRUE_TEXTS, *FALSE_TEXTS, *_SPELLINGS, ""))
_CASES = st.sampled_from((str.lower, str.upper, str.title))


@st.composite
def texts(draw: st.DrawFn) -> str:
    """Draw a text that is or looks like a boolean."""
    word = draw(_CASES)(draw(st.one_of(_WORDS, st.text("01.+-eEtrufalsynoTK", max_size=5))))
    return draw(st.text(" \t", max_size=2)) + word + draw(st.text(" \t", max_size=2))


def trained(column: pa.Array) -> float | str | None:
    faults = BlockFaults("f", np.arange(1))
    feature = Feature("b", "boolean", None, 0)
    (found,) = Converter(NO_KINDS, "y").column(Chunk({"b": column}, faults, 0), feature)
    if not faults.good.all():
        return WRONG
    return None if np.isnan(found) else float(found)


def requested(value: Any) -> float | str | None:
    found, wrong = Boolean.read([value])
    return WRONG if wrong else _SERVED[found[0]]


@pytest.fixture(scope="module")
def exported() -> Callable[[str], float | None]:
    """Return what the graph makes of a text; it has no way to refuse one."""
    pack = traced(Coding((Boolean("b", Missing("constant", 1, True)),)))
    import tensorflow as tf

    def of(text: str) -> float | None:
        value, missing = pack([tf.constant([text.encode()])])[0].tolist()
        return None if missing else value

    return of


@settings(max_examples=20, deadline=None)
@given(text=texts())
@example(text="1.0")
@example(text="01")
@example(text="+1")
@example(text=" TRUE\t")
def test_a_text_is_the_same_in_training_model_and_server(
    exported: Callable[[str], float | None], text: str
) -> None:
    found = trained(pa.array([text.encode()]))
    assert found == trained(pa.array([text])) == trained(pa.array([text]).dictionary_encode())
    assert requested(text) == requested(text.encode()) == found
    assert exported(text) == (None if found == WRONG else found)
    if text.strip(" \t"):
        assert Boolean.constant(text.strip(" \t")) == (None if found == WRONG else found)
