"""Makes a version the champion: one record, which only one of several writers can create.

A hold keeps the version from being pruned at the same time (`prune_versions.py`). It names the
number of the record. Once another record has that number, the holder can no longer create its own,
so the hold is void. No time limit would show that: a process may stand still for hours, as on a
laptop that sleeps, and then continue.
"""

from __future__ import annotations

import logging
import uuid
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from kfp_tfjob.registry.versions import numbers_of, served_numbers
from kfp_tfjob.storage import documents
from kfp_tfjob.storage.champion import Champion, read_champion, read_record
from kfp_tfjob.storage.errors import (
    DataError,
    ObjectExistsError,
    ObjectNotFoundError,
    Problem,
    StepError,
    SurpassedError,
)
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.store import Store

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Hold:
    """The record that a version is about to become the champion.

    Attributes:
        writer: Distinguishes processes that promote the same version.
        champion: The number of the champion record that its writer wants to create.
    """

    writer: str
    champion: int


def promote(store: Store, layout: Layout, model_name: str, champion: Champion) -> Champion:
    """Create a champion's record, if its predecessor is still the newest.

    Args:
        store: The store.
        layout: Everything below output_uri.
        model_name: The model.
        champion: The record; `serving` and `at` are filled in here.

    Returns:
        The record that is stored now. On a retry, it is that of the first try.

    Raises:
        SurpassedError: Another run made a different version the champion.
        DataError: The version was pruned, or the record before it cannot be read.
    """
    place = layout.model(model_name)
    hold = place.hold(champion.version)
    mine = documents.to_bytes(Hold(uuid.uuid4().hex, champion.number))
    store.write(hold, mine)
    try:
        return _promote(store, layout, model_name, champion)
    finally:
        with suppress(StepError):  # a store that deletes nothing; a void hold keeps no version
            # Until the number is taken, another process may still promote this version under it.
            if store.has(place.champion(champion.number)) and store.read(hold) == mine:
                store.delete(hold)


def _promote(store: Store, layout: Layout, model_name: str, champion: Champion) -> Champion:
    place = layout.model(model_name)
    _require_kept(store, layout, model_name, champion)
    wanted = replace(
        champion,
        serving=_serving(store, layout, model_name, champion),
        at=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    try:
        store.create(place.champion(wanted.number), wanted.to_bytes(), "application/json")
    except ObjectExistsError:
        there = read_record(store, layout, model_name, wanted.number)
        if not _is_same(there, wanted):
            raise surpassed(model_name, there) from None
        wanted = there
    else:
        log.info("version %d is the champion of %s", wanted.version, model_name)
    return wanted


def keep_copy(store: Store, layout: Layout, model_name: str) -> None:
    """Write champion.json, the copy of the newest record that other programs read."""
    copy, written = layout.model(model_name).champion_copy, None
    # Another run may be promoted meanwhile, and write its copy before this one does.
    while (newest := read_champion(store, layout, model_name)) != written:
        assert newest is not None
        store.write(copy, newest.to_bytes(), "application/json")
        written = newest


def surpassed(model_name: str, winner: Champion | None) -> SurpassedError:
    """Return the error of a run that was evaluated against a champion that is no longer the newest.

    Args:
        model_name: The model.
        winner: The record that was created first.
    """
    return SurpassedError(
        Problem(
            f"another run was promoted to champion of {model_name} after this one was evaluated",
            received=f"version {winner.version} of run {winner.run_id}" if winner else None,
            expected="the champion that the verdict names",
            fix="start the run again; the model is then compared with the new champion",
        )
    )


def _is_same(there: Champion, wanted: Champion) -> bool:
    """Return whether a record is that of an earlier try: a person's decision is not a run's."""
    return (there.trained_by, there.action, there.by) == (
        wanted.trained_by,
        wanted.action,
        wanted.by,
    )


def _require_kept(store: Store, layout: Layout, model_name: str, champion: Champion) -> None:
    if store.has(layout.model(model_name).tombstone(champion.version)):
        raise DataError(
            Problem(
                f"version {champion.version} of {model_name} was pruned",
                expected="a version that still exists",
                fix="start its run again, which then publishes a new version",
            )
        )


def _serving(store: Store, layout: Layout, model_name: str, champion: Champion) -> int:
    """Return the number for servers, which load the highest; 0 if it is that of the version."""
    place = layout.model(model_name)
    before = 0
    if champion.number > 1:
        try:
            before = read_record(store, layout, model_name, champion.number - 1).served_as
        except ObjectNotFoundError:
            pass  # removed by a person
    highest = max(before, *served_numbers(store, place), 0)
    if champion.version > highest:
        return 0
    return max(highest, *numbers_of(store, place)) + 1
