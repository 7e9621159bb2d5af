"""What the sample keeps of requests in memory."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from kfp_tfjob.features.types.image import Image
from kfp_tfjob.features.types.number import Number
from kfp_tfjob.features.types.string import String
from kfp_tfjob.features.types.words import Words
from kfp_tfjob.serving import requests_sample, sampler
from kfp_tfjob.serving.request_columns import Rows
from kfp_tfjob.serving.sampler import Sampler
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.store import Store

COLUMNS = {"size": Number, "note": String, "photo": Image}


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What would be stored: columns, and what the file says about itself."""
    found: list[Any] = []
    monkeypatch.setattr(requests_sample, "put", lambda *given: found.append((given[2], given[5])))
    return found


def _loaded(number: int) -> Any:
    champion = SimpleNamespace(number=number, version=number, schema_digest="d")
    columns = SimpleNamespace(types=COLUMNS)
    return SimpleNamespace(champion=champion, columns=columns, model_name="m")


def _rows(note: bytes, count: int = 1) -> Rows:
    photo = np.array([bytes(1000)] * count, object)
    features = {"size": np.arange(count, dtype=float), "note": np.array([note] * count, object)}
    return Rows(count, features | {"photo": photo})


def _sampler(rows: int) -> Sampler:
    metrics: Any = SimpleNamespace(sampled=lambda rows: None)
    return Sampler(Store("http://none"), Layout(S3Address("b", "p")), rows, (), metrics)


def test_only_the_beginning_of_a_long_string_is_kept(stored: list[Any]) -> None:
    found = _sampler(100)
    for length in (1000, 1001, 30_000_000):
        found.add(_loaded(1), _rows(("ä" * length).encode()), np.zeros((1, 2)))
    found.flush()
    ((columns, about),) = stored
    assert columns["note"].to_pylist() == ["ä" * 1000] * 3
    assert about.left_out == ("photo",) and about.rows == 3 and list(columns) == ["size", "note"]


def test_long_texts_are_kept_whole_and_their_rows_are_a_fair_sample(
    stored: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(COLUMNS, "note", Words)
    monkeypatch.setattr(sampler, "MOST_BYTES", 40_000)
    for _ in range(40):
        found = _sampler(1000)
        for length in (1, 3_000, 1):  # the long ones in the middle make the sample smaller
            rows = _rows(b"word " * (length // 5 + 1), 100)
            found.add(_loaded(1), rows, np.zeros((100, 2)))
        found.flush()
    lengths = [pc.binary_length(columns["note"]).to_numpy() for columns, _ in stored]
    assert all(10 <= len(of_file) < 60 and of_file.sum() <= 40_000 for of_file in lengths)
    assert {*np.concatenate(lengths).tolist()} == {5, 3005}
    assert [about.rows for _, about in stored] == [300] * 40
    share = np.mean(np.concatenate(lengths) > 5)
    assert 0.2 < share < 0.45  # one third


def test_the_rows_in_memory_are_bounded_and_a_fair_sample(stored: list[Any], monkeypatch) -> None:
    monkeypatch.setattr(sampler, "MOST_BYTES", 100_000)
    for _ in range(40):
        found = _sampler(1000)
        for number in (1, 2):
            found.add(_loaded(number), _rows(b"x" * 900, 400), np.zeros((400, 2)))
        found.flush()
    assert [about.rows for _, about in stored] == [400] * 80
    assert {len(columns["note"]) for columns, _ in stored} == {23}
    sizes = np.concatenate([pa.array(columns["size"]).to_numpy() for columns, _ in stored])
    assert abs(sizes.mean() - 199.5) < 5 * 115.5 / len(sizes) ** 0.5
