"""What happened to a model: who made which version the champion, when and why; what was pruned.

The champion records and the tombstones are the history: both are only created, never changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

from kfp_tfjob.registry.champion_records import champions
from kfp_tfjob.registry.prune_versions import read_tombstone
from kfp_tfjob.storage.champion import Champion
from kfp_tfjob.storage.errors import DataError
from kfp_tfjob.storage.layout import VERDICT, Layout
from kfp_tfjob.storage.store import Store
from kfp_tfjob.storage.verdict_record import ModelVerdict
from kfp_tfjob.uploader.parallel import in_order

PUBLISH, PRUNE = "publish", "prune"


@dataclass(frozen=True)
class Event:
    """One change of a model.

    Attributes:
        action: PUBLISH for a champion by verdict, `rollback`, `promote`, or PRUNE.
        version: The version; 0 if it is not known.
        at: When, in UTC, by the clock of the program that did it.
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

    Champions are in the order of their records, regardless of their writers' clocks.

    Args:
        store: The store.
        layout: Everything below output_uri.
        model_name: The model.
        most: How many champions and how many pruned versions to read; 0 for all of them.
    """
    place = layout.model(model_name)

    def of_champion(record: Champion) -> Event:
        return _of_champion(store, layout, model_name, record)

    def of_tombstone(number: int) -> Event:
        stone = read_tombstone(store, place, number)
        return Event(PRUNE, number, stone.at, run_id=stone.run_id, by=stone.by, why=stone.why)

    records = [*champions(store, layout, model_name, most)][::-1]
    events = [outcome.result() for _, outcome in in_order(of_champion, records)]
    # The clock of a writer may be ahead: what came after cannot have happened before.
    times = accumulate((it.at for it in events), max)
    pruned = in_order(of_tombstone, store.numbers(place.tombstones)[-most:])
    stones = [outcome.result() for _, outcome in pruned]
    found = [*zip(times, events, strict=True), *((it.at, it) for it in stones)]
    found.sort(key=lambda it: (it[0], it[1].champion), reverse=True)
    return [event for _, event in found]


def _of_champion(store: Store, layout: Layout, model_name: str, champion: Champion) -> Event:
    return Event(
        champion.action or PUBLISH,
        champion.version,
        champion.at,
        champion.number,
        champion.served_as,
        champion.run_id,
        champion.by,
        champion.why or reasons(store, layout, model_name, champion.version),
    )


def reasons(store: Store, layout: Layout, model_name: str, version: int) -> str:
    """Return the reasons of a verdict; empty if it cannot be read."""
    try:
        return ModelVerdict.read(store, layout.model(model_name).version(version) / VERDICT).reason
    except DataError:
        return ""
