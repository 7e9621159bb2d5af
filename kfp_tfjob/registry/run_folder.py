"""Finds the folder of a run in the store.

It is `runs/<run_id>`, unless output_uri shapes it, as in `s3://bucket/prefix/runs/{date}`. Then
preflight fills in the fields once and records the result under the run id. The record is created
with If-None-Match and never changes, so every step, every retry, and every program that knows only
the run id finds the same folder. Called by every step, and by the commands that read a run.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from kfp_tfjob.common.errors import (
    ConfigurationError,
    DataError,
    ObjectExistsError,
    ObjectNotFoundError,
    Problem,
    StepError,
)
from kfp_tfjob.common.formatting import listed
from kfp_tfjob.storage import documents
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import MANIFEST, Layout, RunLayout
from kfp_tfjob.storage.store import Store

LAST = "last"  # what a user writes instead of an id: the newest run


@dataclass(frozen=True)
class _FolderRecord:
    """The part of the record that readers use."""

    folder: str


def find(store: Store, layout: Layout, run_id: str) -> RunLayout:
    """Return a run's folder from its record, or `runs/<run_id>` without a record.

    The record is missing if output_uri does not have fields, or if preflight failed before it could
    fill them in.

    Args:
        store: The store.
        layout: Everything below output_uri.
        run_id: The run.

    Raises:
        DataError: The record cannot be read.
    """
    address = layout.folder_record(run_id)
    try:
        folder = documents.read(_FolderRecord, store.read(address)).folder
    except ObjectNotFoundError:
        return layout.run(run_id)
    except documents.InvalidDocumentError as error:
        raise DataError(
            Problem(
                f"{address} is not the record of a run's folder",
                received=f"{type(error).__name__}: {error}",
                expected="the JSON that preflight writes",
                fix="start a new run",
            )
        ) from error
    return layout.run(run_id, folder)


def note(store: Store, address: S3Address) -> dict[str, Any] | None:
    """Return a JSON object that a step stored for the run's end; None if there is none.

    Raises:
        StepError: It is not a JSON object.
    """
    try:
        return documents.parse_object(store.read(address))
    except ObjectNotFoundError:
        return None
    except documents.InvalidDocumentError as error:
        raise StepError(
            Problem(
                f"{address} is damaged",
                received=str(error),
                expected="the JSON that this run's steps write",
                fix=f"delete {address}, then retry the run",
            )
        ) from error


def newest_checkpoint(store: Store, run: RunLayout) -> int:
    """Return the newest step with a complete checkpoint in the store; 0 without one."""
    for step in reversed(store.numbers(run.checkpoints)):
        if store.has(run.checkpoints / str(step) / MANIFEST):  # else it was not stored completely
            return step
    return 0


def full_id(prefix: str, run_ids: Iterable[str]) -> str:
    """Return the only run id that begins with `prefix`; the prefix itself if none does.

    Raises:
        ConfigurationError: Several run ids begin with it.
    """
    matches = sorted({run_id for run_id in run_ids if prefix and run_id.startswith(prefix)})
    if prefix in matches or not matches:
        return prefix
    if len(matches) > 1:
        raise ConfigurationError(
            Problem(
                f"several run ids begin with {prefix}",
                received=prefix,
                expected=f"one of {listed(matches, 5)}",
                fix="type more of the id",
            )
        )
    return matches[0]


def claim(store: Store, layout: Layout, run_id: str, folder: str) -> RunLayout:
    """Record a run's folder and return it; an existing record takes precedence.

    Args:
        store: The store.
        layout: Everything below output_uri.
        run_id: The run.
        folder: The folders between `runs/` and the run.

    Raises:
        DataError: A record exists, but cannot be read.
    """
    body = (json.dumps({"run_id": run_id, "folder": folder}) + "\n").encode()
    try:
        store.create(layout.folder_record(run_id), body, "application/json")
    except ObjectExistsError:
        return find(store, layout, run_id)  # a retry of preflight, whose date may differ
    return layout.run(run_id, folder)
