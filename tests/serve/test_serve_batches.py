"""Requests that are predicted together get the answers that each would get alone."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.local import mixed_dataset
from tests.serve.conftest import Start, get, post
from tests.serve.published import PEOPLE, Publisher, as_sent

pytestmark = pytest.mark.slow


def test_requests_in_batches(publisher: Publisher, start: Start) -> None:
    rows = as_sent(mixed_dataset.people(np.random.default_rng(5), 96))
    requests = [rows[at : at + 1 + at % 3] for at in range(0, 90)]
    wrong = {"instances": [rows[0] | {"age": "old"}]}
    found = []
    for more in ((), ("--batch-milliseconds", "50", "--batch-rows", "16")):
        server = start(PEOPLE, *more).ready()
        url = f"{server.url}/v1/models/{PEOPLE}:predict"
        with ThreadPoolExecutor(16) as pool:
            bad = [pool.submit(post, url, wrong) for _ in range(4)]
            answers = list(pool.map(lambda it, url=url: post(url, {"instances": it}), requests))
        assert [it.result().status for it in bad] == [400] * 4
        assert {it.status for it in answers} == {200}
        assert [len(it.body["predictions"]) for it in answers] == [len(it) for it in requests]
        found.append([row for it in answers for row in it.body["predictions"]])
        assert f'kfp_tfjob_rows_total{{model_name="people"}} {len(found[0])}.0' in get(
            f"{server.url}/metrics"
        )
        server.stop()
    alone, together = (np.array([it["probabilities"] for it in some]) for some in found)
    np.testing.assert_allclose(together, alone, atol=1e-6)  # TensorFlow rounds by batch size
    assert [it["class"] for it in found[0]] == [it["class"] for it in found[1]]
