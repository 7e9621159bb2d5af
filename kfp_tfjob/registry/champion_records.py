"""Reads a model's champion records, the newest first.

A model's champions are numbered records, `champions/<n>.json`; the highest number is the champion.
A record is created once and never changed, so a reader needs no lock. Called by this package, and
by evaluate, publish and preflight.
"""

from __future__ import annotations

from collections.abc import Iterator

from kfp_tfjob.common.errors import ObjectNotFoundError
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.store import Store
from kfp_tfjob.uploader.parallel import in_order

from .champion import Champion, read_record


def champions(
    store: Store,
    layout: Layout,
    model_name: str,
    most: int = 0,
    above: int = 0,
    below: int = 0,
) -> Iterator[Champion]:
    """Yield champion records, the newest first.

    The first records cost one request each, so a caller that stops early reads only a few. Later
    records are read ahead, several at once.

    Args:
        store: The store.
        layout: Everything below output_uri.
        model_name: The model.
        most: The number of records; 0 for all.
        above: Only records with a higher number.
        below: Only records with a lower number; 0 for all.

    Raises:
        DataError: A record is damaged; the error says how to restore or remove it.
    """
    numbers = store.numbers(layout.model(model_name).champions)
    numbers = [number for number in numbers if above < number and not (below and number >= below)]

    def read(number: int) -> Champion:
        return read_record(store, layout, model_name, number)

    for _, outcome in in_order(read, list(reversed(numbers[-most:]))):
        if isinstance(outcome.error, ObjectNotFoundError):
            continue  # a user has just removed it
        yield outcome.result()


def record_of(
    store: Store, layout: Layout, model_name: str, trained_by: tuple[str, str], after: int
) -> Champion | None:
    """Return the newest record that makes a run's model the champion; None if there is none.

    Args:
        store: The store.
        layout: Everything below output_uri.
        model_name: The model.
        trained_by: The run and its task's key.
        after: The number of the champion that the run was evaluated against; 0 for none.
    """
    records = champions(store, layout, model_name, above=after)
    return next((record for record in records if record.trained_by == trained_by), None)
