"""The order of rows in runs, and copies of rows without a look at their fields."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kfp_tfjob.components.prepare_data.executors.exchange import Exchange
from kfp_tfjob.components.prepare_data.sorted_rows import (
    Meaning,
    Run,
    RunWriter,
    SortedRows,
    edges_of,
    joined,
    kind_of,
    order_of,
    taken,
)

FEW = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 2)), max_size=60)


@given(FEW)
def test_equal_hashes_are_in_the_order_of_label_and_place(pairs):
    hashes = np.array([hash_ for hash_, _ in pairs], np.uint64) << np.uint64(60)
    labels = np.array([label for _, label in pairs], np.int32)
    assert order_of(hashes).tolist() == np.argsort(hashes, kind="stable").tolist()
    assert order_of(hashes, labels).tolist() == np.lexsort((labels, hashes)).tolist()


def test_many_rows_with_a_few_equal_hashes_are_sorted():
    random = np.random.default_rng(3)
    hashes = random.integers(0, 2**64, 50_000, np.uint64)
    hashes[random.integers(0, 50_000, 500)] = hashes[random.integers(0, 50_000, 500)]
    labels = random.standard_normal(50_000).astype(np.float32)
    assert (order_of(hashes) == np.argsort(hashes, kind="stable")).all()
    assert (order_of(hashes, labels) == np.lexsort((labels, hashes))).all()


def test_rows_are_copied_whole():
    random = np.random.default_rng(4)
    kind = kind_of(3, 2, 1, weighted=True)
    rows = np.frombuffer(random.bytes(40 * kind.itemsize), kind)
    places = random.permutation(40)
    assert taken(rows, places).tobytes() == rows[places].tobytes()
    assert taken(rows, places).dtype == kind
    assert joined([rows[:0], rows[5:9], rows[20:]]).tobytes() == (
        rows[5:9].tobytes() + rows[20:].tobytes()
    )
    assert joined([rows[:0]]).dtype == kind


def test_the_index_of_a_run_is_small_and_complete(tmp_path):
    """Of a large source, there are thousands of runs in memory."""
    exchange, random = Exchange(tmp_path), np.random.default_rng(5)
    edges = edges_of(10**11, [0.7, 0.15, 0.15])
    for texts in (0, 30):  # rows whose label is not a number
        rows = np.zeros(3000, kind_of(2))
        rows["hash"] = random.integers(0, 2**64, 3000, np.uint64)
        rows["number"][:texts] = np.nan
        writer = RunWriter(exchange, f"run-{texts}", rows.dtype, edges)
        writer.add(rows)
        writer.flush()
        run = Run.read(exchange, writer.names[0], 0)
        assert run.counts.nbytes + run.sums.nbytes <= 6 * len(edges)
        assert (run.counts.sum(), run.numbers.sum()) == (3000, 3000 - texts)
        order = np.argsort(rows["hash"])
        for is_class in (True, False):
            found = SortedRows(
                exchange, [run], rows.dtype, edges, is_class, lambda part: Meaning(None, ())
            )
            good = order if is_class else order[order >= texts]
            parts = [part.rows for part in found.read(0, len(edges))]
            assert joined(parts).tobytes() == rows[good].tobytes()
