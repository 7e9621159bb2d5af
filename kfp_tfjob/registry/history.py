"""A model's history: who made which version the champion, when and why, and who pruned a version.

There is no separate log. The champion records and the tombstones of pruned versions are the
history, because both are only created and never changed. Called by `kfp-tfjob models show`.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

from kfp_tfjob.common.errors import DataError
from kfp_tfjob.storage.layout import VERDICT, Layout
from kfp_tfjob.storage.store import Store
from kfp_tfjob.uploader.parallel import in_order

from .champion import Champion
from .champion_records import champions
from .prune_versions import read_tombstone
from .verdict_record import ModelVerdict

PUBLISH, PRUNE = "publish", "prune"


@dataclass(frozen=True)
class Event:
    """One change of a model.

    Attributes:
        action: PUBLISH for a champion by verdict, `rollback`, `promote`, or PRUNE.
        version: The version; 0 if it is unknown.
        at: When, in UTC, by the clock of the program that did it.
        champion: The number of the champion record; 0 for PRUNE.
        serving: The number for servers; 0 for PRUNE.
        run_id: The run that trained the version; empty if it is not known.
        by: The person who did it; empty for a run.
        why: The person's reason, or the verdict's reasons.
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
    """Return a model's events, the newest first.

    Champions are in the order of their records, regardless of their writers' clocks.

    Args:
        store: The store.
        layout: Everything below output_uri.
        model_name: The model.
        most: The number of champions, and the number of pruned versions, to read; 0 for all.
    """
    folder = layout.model(model_name)

    def promotion(record: Champion) -> Event:
        return _promotion_event(store, layout, model_name, record)

    def pruning(version: int) -> Event:
        tombstone = read_tombstone(store, folder, version)
        return Event(
            PRUNE,
            version,
            tombstone.at,
            run_id=tombstone.run_id,
            by=tombstone.by,
            why=tombstone.why,
        )

    records = [*champions(store, layout, model_name, most)][::-1]
    promotions = [outcome.result() for _, outcome in in_order(promotion, records)]
    # A writer's clock may be ahead. The records' numbers give their order, so a later record is
    # never sorted before an earlier one.
    times = accumulate((event.at for event in promotions), max)
    pruned = in_order(pruning, store.numbers(folder.tombstones)[-most:])
    prunings = [outcome.result() for _, outcome in pruned]
    timeline = [
        *zip(times, promotions, strict=True),
        *((event.at, event) for event in prunings),
    ]
    timeline.sort(key=lambda entry: (entry[0], entry[1].champion), reverse=True)
    return [event for _, event in timeline]


def _promotion_event(store: Store, layout: Layout, model_name: str, champion: Champion) -> Event:
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
    """Return a version's reasons from its verdict; empty if the verdict cannot be read."""
    try:
        return ModelVerdict.read(store, layout.model(model_name).version(version) / VERDICT).reason
    except DataError:
        return ""
