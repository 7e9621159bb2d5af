"""What the sample keeps of requests in memory."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from kfp_tfjob.features.types.image import Image
from kfp_tfjob.features.types.number import Number
from kfp_tfjob.features.types.string import String
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
