"""Recognises what the store already has when a sidecar starts: it is not sent again.

An earlier process of this sidecar sent it, or the sidecar of an earlier attempt, and `setup`
restored the files. Equal names and times prove nothing: the bytes must be equal. That is checked
for checkpoints; other files are sent again.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

from kfp_tfjob.storage.layout import CHECKPOINTS, OUTPUT, RunLayout
from kfp_tfjob.storage.manifest import ManifestObject
from kfp_tfjob.storage.store import Store
from kfp_tfjob.uploader.folder import manifest_at, same_content
from kfp_tfjob.uploader.inventory import LocalFile

_STEP = re.compile(rf"{CHECKPOINTS}/(0|[1-9][0-9]*)/")


@dataclass(frozen=True)
class Stored:
    """A stored file: its state when it was sent, and its object."""

    file: LocalFile
    object: ManifestObject


def recognised(
    store: Store, folder: Path, run: RunLayout, step: int, files: Collection[LocalFile]
) -> tuple[list[Stored], bool]:
    """Compare the files of a checkpoint with its manifest in the store.

    Args:
        store: The store.
        folder: The chief's OUTPUT_DIR.
        run: The run's directory in the store.
        step: The step of the checkpoint.
        files: The files of the checkpoint on this disk.

    Returns:
        The files that are stored with the same bytes, and whether these are all files on this disk
        and all in the manifest.

    Raises:
        StepError: The store did not answer.
    """
    prefix = f"{CHECKPOINTS}/{step}/"
    manifest = manifest_at(store, run.checkpoints / str(step))
    known = {
        prefix + item.key: replace(item, key=f"{OUTPUT}/{prefix}{item.key}")
        for item in (manifest.objects if manifest else ())
    }
    same = same_content(folder, {file.path: file for file in files}, known)
    found = [Stored(file, known[file.path]) for file in same]
    return found, len(found) == len(files) == len(known)


def step_of(path: str) -> int | None:
    """Return the step of the checkpoint that a path below OUTPUT_DIR belongs to, if any."""
    match = _STEP.match(path)
    return int(match[1]) if match else None
