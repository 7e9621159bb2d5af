"""Makes a version the champion: one record, which only one of several writers can create.

A hold keeps the version from being pruned at the same time (`prune_versions.py`). It names the
number of the record that its writer is about to create. Once another record has that number, the
writer can no longer create its own, so the hold is void. A time limit could not show that, because
a process may pause for hours, as on a laptop that sleeps, and then continue. Called by publish, by
rollbacks and by `models promote`.
"""

from __future__ import annotations

import logging
import uuid
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from kfp_tfjob.common.errors import (
    DataError,
    ObjectExistsError,
    ObjectNotFoundError,
    Problem,
    StepError,
    SurpassedError,
)
from kfp_tfjob.storage import documents
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.store import Store

from .champion import Champion, read_champion, read_record
from .versions import numbers_of, served_numbers

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Hold:
    """The record that a version is about to become the champion.

    Attributes:
        writer: Distinguishes processes that promote the same version.
        champion: The number of the champion record that its writer is about to create.
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
        The record that is stored now. On a retry, it is the first attempt's record.

    Raises:
        SurpassedError: Another run made a different version the champion.
        DataError: The version was pruned, or the record before it cannot be read.
    """
    folder = layout.model(model_name)
    hold = folder.hold(champion.version)
    content = documents.to_bytes(Hold(uuid.uuid4().hex, champion.number))
    store.write(hold, content)
    try:
        return _create_record(store, layout, model_name, champion)
    finally:
        # Some stores reject deletions. A hold that is left behind is void, so it does no harm.
        with suppress(StepError):
            # Until the number is taken, another process may still promote this version under it.
            if store.has(folder.champion(champion.number)) and store.read(hold) == content:
                store.delete(hold)


def _create_record(store: Store, layout: Layout, model_name: str, champion: Champion) -> Champion:
    """Create the record, or return the one that an earlier attempt of this writer created."""
    folder = layout.model(model_name)
    _require_not_pruned(store, layout, model_name, champion)
    record = replace(
        champion,
        serving=_serving_number(store, layout, model_name, champion),
        at=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    try:
        store.create(folder.champion(record.number), record.to_bytes(), "application/json")
    except ObjectExistsError:
        existing = read_record(store, layout, model_name, record.number)
        if not _is_same_decision(existing, record):
            raise surpassed(model_name, existing) from None
        return existing
    log.info("version %d is the champion of %s", record.version, model_name)
    return record


def keep_copy(store: Store, layout: Layout, model_name: str) -> None:
    """Write champion.json, a copy of the newest champion record for other programs."""
    copy, written = layout.model(model_name).champion_copy, None
    # Another run may be promoted meanwhile and write its copy first, which this one would replace
    # with an older record. So repeat until the newest record is the one that was written.
    while (newest := read_champion(store, layout, model_name)) != written:
        assert newest is not None
        store.write(copy, newest.to_bytes(), "application/json")
        written = newest


def surpassed(model_name: str, winner: Champion | None) -> SurpassedError:
    """Return the error for a run that was evaluated against an earlier champion.

    Args:
        model_name: The model.
        winner: The record that was created first.
    """
    return SurpassedError(
        Problem(
            f"another run was promoted to champion of {model_name} after this one was evaluated",
            received=f"version {winner.version} of run {winner.run_id}" if winner else None,
            expected="the champion that the verdict names",
            fix="start a new run, whose model is compared with the new champion",
        )
    )


def _is_same_decision(existing: Champion, record: Champion) -> bool:
    """Return whether an earlier attempt of the same writer created the existing record.

    A person and a run may promote the same model; those are two decisions.
    """
    return (existing.trained_by, existing.action, existing.by) == (
        record.trained_by,
        record.action,
        record.by,
    )


def _require_not_pruned(store: Store, layout: Layout, model_name: str, champion: Champion) -> None:
    if store.has(layout.model(model_name).tombstone(champion.version)):
        raise DataError(
            Problem(
                f"version {champion.version} of {model_name} was pruned",
                expected="a version that still exists",
                fix="start its run again, which then publishes a new version",
            )
        )


def _serving_number(store: Store, layout: Layout, model_name: str, champion: Champion) -> int:
    """Return the champion's folder number below `serving/`; 0 if it is the version's number.

    Servers load the folder with the highest number, so it must be above all earlier ones.
    """
    folder = layout.model(model_name)
    previous = 0
    if champion.number > 1:
        try:
            previous = read_record(store, layout, model_name, champion.number - 1).served_as
        except ObjectNotFoundError:
            pass  # a person removed it; the folders' numbers still count
    highest = max(previous, *served_numbers(store, folder), 0)
    if champion.version > highest:
        return 0
    # Also above all versions, so that no later version gets this number for servers.
    return max(highest, *numbers_of(store, folder)) + 1
