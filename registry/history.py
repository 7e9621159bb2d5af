"""What happened to a model: who made which version the champion, when and why; what was pruned.

The champion records and the tombstones are the history: both are only created, never changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC

from kfp_tfjob.registry.prune import read_tombstone
from kfp_tfjob.storage import documents
from kfp_tfjob.storage.champion import Champion, read_record
from kfp_tfjob.storage.errors import DataError, ObjectNotFoundError
from kfp_tfjob.storage.layout import VERDICT, Layout
from kfp_tfjob.storage.store import Store

PUBLISH, PRUNE = "publish", "prune"


@dataclass(frozen=True)
class Event:
    """One change of a model.

    Attributes:
        action: PUBLISH for a champion by verdict, `rollback`, `promote`, or PRUNE.
        version: The version.
        at: When, in UTC.
        champion: The number of the champion record; 0 for PRUNE.
        serving: The number for servers; 0 for PRUNE.
        run_id: The run that trained the version; empty if it is not known.
        by: The person who did it; empty for a run.
        why: The person's reason, or those of the verdict.
    """

    action: str
    version: int
    at: str
    champion: int = 0
    serving: int = 0
    run_id: str = ""
    by: str = ""
    why: str = ""


def history(store: Store, layout: Layout, model_name: str, most: int = 0) -> list[Event]:
    """Return what happened to a model, the newest first.

    Args:
        store: The store.
        layout: Everything below output_uri.
        model_name: The model.
        most: How many champions and how many pruned versions to read; 0 for all of them.

    Raises:
        DataError: A record is damaged.
    """
    place = layout.model(model_name)
    events = [
        _of_champion(store, layout, model_name, champion)
        for champion in champions(store, layout, model_name, most)
    ]
    for number in store.numbers(place.tombstones)[-most:]:
        stone = read_tombstone(store, place, number)
        events.append(
            Event(PRUNE, number, stone.at, run_id=stone.run_id, by=stone.by, why=stone.why)
        )
    return sorted(events, key=lambda it: (it.at, it.champion), reverse=True)


def champions(store: Store, layout: Layout, model_name: str, most: int = 0) -> Iterator[Champion]:
    """Yield the champion records of a model, the newest first.

    Args:
        store: The store.
        layout: Everything below output_uri.
        model_name: The model.
        most: How many; 0 for all.

    Raises:
        DataError: A record is damaged.
    """
    numbers = store.numbers(layout.model(model_name).champions)
    for number in reversed(numbers[-most:]):
        yield read_record(store, layout, model_name, number)


def _of_champion(store: Store, layout: Layout, model_name: str, champion: Champion) -> Event:
    place = layout.model(model_name)
    at = champion.at
    if not at:  # a record of an earlier version
        head = store.head(place.champion(champion.number))
        at = head["LastModified"].astimezone(UTC).isoformat(timespec="seconds")
    return Event(
        champion.action or PUBLISH,
        champion.version,
        at,
        champion.number,
        champion.served_as,
        champion.run_id,
        champion.by,
        champion.why or reasons(store, layout, model_name, champion.version),
    )


def reasons(store: Store, layout: Layout, model_name: str, version: int) -> str:
    """Return the reasons of a verdict; empty if it cannot be read."""
    try:
        data = store.read(layout.model(model_name).version(version) / VERDICT)
        return "; ".join(map(str, documents.parse(data)["reasons"]))
    except (ObjectNotFoundError, DataError, ValueError, KeyError, TypeError):
        return ""
