"""Restores the newest stored checkpoint and the program's other files to a new chief's disk.

The manifest verifies the checkpoint. It also names the other files, which TensorBoard,
ModelCheckpoint or a user's program wrote next to the checkpoints. Each one is restored as it is in
the store now, verified by the store's checksum or, without one, by a second read. A SavedModel is
restored completely or not at all. A missing file never fails a training. Called by the init
container, `__main__.py`.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterable
from contextlib import suppress
from itertools import takewhile
from pathlib import Path

from kfp_tfjob.common import files
from kfp_tfjob.common.errors import (
    DataError,
    ObjectNotFoundError,
    StepError,
    StoreUnavailableError,
)
from kfp_tfjob.common.formatting import counted, listed
from kfp_tfjob.storage.layout import CHECKPOINTS, COMPLETION, RunLayout
from kfp_tfjob.storage.manifest import Manifest
from kfp_tfjob.storage.store import Store
from kfp_tfjob.supervisor.unfinished_files import is_output
from kfp_tfjob.uploader import pull
from kfp_tfjob.uploader.parallel import each
from kfp_tfjob.uploader.saved_models import saved_models

log = logging.getLogger(__name__)

# The supervisor creates the record at the end, and checkpoints have their own manifests.
_NOT_BESIDE = (CHECKPOINTS, COMPLETION)
_MOST_REASONS = 5  # in a line of the log; when a store fails, many files have the same reason


def restore(store: Store, run: RunLayout, output: Path) -> int | None:
    """Restore the newest checkpoint that passes verification, and the files stored with it.

    The checkpoint appears last, so an interrupted restore is repeated.
    """
    for step in reversed(store.numbers(run.checkpoints)):
        if (output / CHECKPOINTS / str(step)).exists():
            return step
        if manifest := _fetch_checkpoint(store, run, output, step):
            _restore_files(store, run, output, manifest)
            _partial(output, step).rename(output / CHECKPOINTS / str(step))
            log.info("checkpoint %d is restored", step)
            return step
    return None


def _fetch_checkpoint(store: Store, run: RunLayout, output: Path, step: int) -> Manifest | None:
    """Download a checkpoint under a temporary name; None if it is incomplete or damaged."""
    partial = _partial(output, step)
    try:
        return pull(store, run.checkpoints / str(step), partial)
    except ObjectNotFoundError:
        log.info("checkpoint %d is not complete in the store", step)
    except DataError as error:
        log.warning("checkpoint %d is not used: %s", step, error)
    shutil.rmtree(partial, ignore_errors=True)
    return None


def _partial(output: Path, step: int) -> Path:
    return files.partial_of(output / CHECKPOINTS / str(step))


def _restore_files(store: Store, run: RunLayout, output: Path, checkpoint: Manifest) -> None:
    """Restore the files stored with a checkpoint; skip and log files that cannot be restored.

    Files created after the checkpoint are not restored: training writes them again.
    """
    named = {path for path in map(str, checkpoint.details.get("files", ())) if _lies_beside(path)}
    if not named:
        return
    start = len(run.output.key) + 1
    description = f"{counted(len(named), 'file')} stored with the checkpoint"
    try:
        objects = {item.address.key[start:]: item for item in store.list(run.output)}
    except StepError as error:
        log.warning("could not restore %s: %s", description, error)
        return
    models = saved_models({*named, *filter(_lies_beside, objects)})
    models = {path: parts for path, parts in models.items() if named & {path, *parts}}
    failed = dict.fromkeys(named - objects.keys(), "it is not in the store")
    for graph, parts in models.items():
        if graph in objects and objects[graph].size:
            named |= {graph, *parts}  # its newest export may have other parts
        else:
            why = f"the store has no complete {graph!r}"
            failed |= dict.fromkeys({graph, *parts} & named, why)
    fetchable = {path: objects[path] for path in sorted(named - failed.keys())}
    log.info(
        "restoring %s, %.1f MB", description, sum(item.size for item in fetchable.values()) / 1e6
    )
    failed |= dict.fromkeys(fetchable, "the store is unreachable")
    away = False

    def fetch(path: str) -> None:
        store.fetch(fetchable[path].address, output, store.entry(fetchable[path].address, path))

    # When the store is unreachable, do not wait for the remaining objects.
    paths = takewhile(lambda _: not away, fetchable)
    for path, fetched in each(fetch, paths):
        if fetched.error is None:
            del failed[path]
        else:
            failed[path] = str(fetched.error)
            away = away or isinstance(fetched.error, StoreUnavailableError)
    for graph, parts in models.items():
        if failed.keys() & {graph, *parts}:
            _remove(output, [graph, *parts])
            why = f"the other files of {graph!r} could not be restored"
            failed = dict.fromkeys([graph, *parts], why) | failed
    if failed:
        reasons = [f"{path!r}: {why}" for path, why in sorted(failed.items())]
        log.warning(
            "could not restore %s stored with the checkpoint: %s",
            counted(len(failed), "file"),
            listed(reasons, _MOST_REASONS, "; "),
        )


def _remove(output: Path, paths: Iterable[str]) -> None:
    """Remove files, and the folders that they leave empty: a program may look for the folder."""
    for path in paths:
        (output / path).unlink(missing_ok=True)
        with suppress(OSError):  # it is not empty
            for folder in Path(path).parents[:-1]:
                (output / folder).rmdir()


def _lies_beside(path: str) -> bool:
    """Return whether a path below OUTPUT_DIR is a file outside the folder of checkpoints."""
    parts = path.split("/")
    return parts[0] not in _NOT_BESIDE and all(part and is_output(part) for part in parts)
