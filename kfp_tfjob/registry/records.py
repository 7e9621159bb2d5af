"""Reads the champion records of a model, the newest first; a damaged one hides no other."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kfp_tfjob.storage.champion import Champion, read_record
from kfp_tfjob.storage.errors import DataError, ObjectNotFoundError
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.store import Store
from kfp_tfjob.uploader.parallel import in_order

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DamagedRecord:
    """A champion record that cannot be read.

    Attributes:
        number: Its number.
        trouble: What is wrong with it, and what to do.
    """

    number: int
    trouble: str


def champions(
    store: Store,
    layout: Layout,
    model_name: str,
    damaged: Callable[[DamagedRecord], object] | None = None,
    most: int = 0,
    above: int = 0,
    below: int = 0,
) -> Iterator[Champion]:
    """Yield champion records, the newest first.

    The first ones cost one request each, so a caller that stops early has read few. More are read
    ahead, several at once.

    Args:
        store: The store.
        layout: Everything below output_uri.
        model_name: The model.
        damaged: Is told of each record that cannot be read; None to raise its error.
        most: How many; 0 for all.
        above: Only records with a higher number.
        below: Only records with a lower number; 0 for all.

    Raises:
        DataError: A record is damaged, and the caller does not handle it.
    """
    numbers = store.numbers(layout.model(model_name).champions)
    numbers = [it for it in numbers if above < it and not (below and it >= below)]

    def read(number: int) -> Champion:
        return read_record(store, layout, model_name, number)

    for number, outcome in in_order(read, list(reversed(numbers[-most:]))):
        if isinstance(outcome.error, ObjectNotFoundError):
            continue  # a person has just removed it
        if damaged and isinstance(outcome.error, DataError):
            damaged(DamagedRecord(number, str(outcome.error)))
        else:
            yield outcome.result()


def record_of(
    store: Store, layout: Layout, model_name: str, trained_by: tuple[str, str], after: int
) -> Champion | None:
    """Return the newest record that makes the model of a run the champion; None without one.

    Args:
        store: The store.
        layout: Everything below output_uri.
        model_name: The model.
        trained_by: The run and the key of its task.
        after: The number of the champion that the run was evaluated against; 0 for none.
    """
    found = champions(store, layout, model_name, pass_by, above=after)
    return next((it for it in found if it.trained_by == trained_by), None)


def pass_by(record: DamagedRecord) -> None:
    """Log a damaged record, for callers that do without it."""
    log.warning("%s", record.trouble)
