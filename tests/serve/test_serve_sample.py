"""What a server keeps of its requests, compared with the training data of the champion."""

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from kfp_tfjob.serving.monitor import monitor
from kfp_tfjob.serving.request_counts import Monitored
from tests.local import mixed_dataset
from tests.serve.conftest import Start
from tests.serve.published import PEOPLE, Publisher, as_sent

pytestmark = pytest.mark.slow


def requests(seed: int, older: float = 0) -> list[dict]:
    people = mixed_dataset.people(np.random.default_rng(seed), 1000)
    return as_sent(people | {"age": people["age"] + older})


def test_what_is_sampled_is_compared(publisher: Publisher, start: Start) -> None:
    def answered(rows: list[dict], *options: str) -> Monitored:
        began = datetime.now(UTC)
        server = start(PEOPLE, "--sample-rows", "5000", *options).ready()
        for at in range(0, len(rows), 100):
            assert server.predict(rows[at : at + 100]).status == 200
        server.stop()
        days = (datetime.now(UTC) - began) / timedelta(days=1)
        return monitor(publisher.store, publisher.layout, PEOPLE, datetime.now(UTC), days)

    same = answered(requests(1))
    assert (same.rows, same.requested, same.bad_rows) == (1000, 1000, 0)
    assert not same.moved and not same.left_out and not same.unreadable
    assert {it.name: it.kind for it in same.columns} == {
        "age": "number",
        "job": "category",
        "city": "category",
        "signed up": "date",
        "member": "boolean",
        "note": "text",
    }
    assert all(0.05 < it.gaps_now < 0.15 for it in same.columns if it.name != "note")
    older = answered(requests(2, older=15), "--sample-without", "city")
    assert {it.name: it.beyond for it in older.moved} == {"age": ("psi",)}
    assert older.left_out == ("city",)
