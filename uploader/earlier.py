"""Recognises checkpoints that the store already has when a sidecar starts: they are not sent again.

An earlier process of this sidecar sent them, or the sidecar of an earlier attempt, and `setup`
restored the files. Equal names and times prove nothing: the bytes must be equal. Other files are
small, and are sent again.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

from kfp_tfjob.storage.errors import StepError, StoreUnavailableError
from kfp_tfjob.storage.layout import CHECKPOINTS, OUTPUT, RunLayout
from kfp_tfjob.storage.store import Store
from kfp_tfjob.uploader.folder import manifest_at, same_content
from kfp_tfjob.uploader.inventory import LocalFile
from kfp_tfjob.uploader.journal import Journal, Stored

log = logging.getLogger(__name__)

_STEP = re.compile(rf"{CHECKPOINTS}/(0|[1-9][0-9]*)/")


class Earlier:
    """The output that was stored before this process started.

    Args:
        store: The store.
        folder: The chief's OUTPUT_DIR.
        run: The run's directory in the store.
        journal: Records what is recognised.

    Attributes:
        steps: Steps that have objects in the store, complete or not.
    """

    def __init__(self, store: Store, folder: Path, run: RunLayout, journal: Journal) -> None:
        self.steps: set[int] = set()
        self._store, self._folder, self._run, self._journal = store, folder, run, journal

    def look(self, files: Mapping[str, LocalFile]) -> None:
        """List the store once, and abort unfinished uploads that no longer match a file.

        Args:
            files: The contents of the folder, by path.

        Raises:
            StepError: The store did not answer.
        """
        self.steps = set(self._store.numbers(self._run.checkpoints))
        self._abort_dead_uploads(files)

    def recognise_step(self, step: int, files: Collection[LocalFile]) -> bool:
        """Count the files of a checkpoint as stored if they match its manifest.

        Returns:
            Whether all files of the checkpoint and of its manifest match.
        """
        prefix = f"{CHECKPOINTS}/{step}/"
        manifest = manifest_at(self._store, self._run.checkpoints / str(step))
        known = {
            prefix + item.key: replace(item, key=f"{OUTPUT}/{prefix}{item.key}")
            for item in (manifest.objects if manifest else ())
        }
        new = {file.path: file for file in files if not self._journal.has(file)}
        for file in same_content(self._folder, new, known):
            self._journal.add(Stored(file, known[file.path]))
        self._journal.flush()
        return known.keys() == {file.path for file in files} and all(map(self._journal.has, files))

    def _abort_dead_uploads(self, files: Mapping[str, LocalFile]) -> None:
        for path, (file, _) in list(self._journal.uploads.items()):
            if files.get(path) != file:
                self._journal.upload(file, "")
        alive = {upload_id for _, upload_id in self._journal.uploads.values()}
        try:
            for address, upload_id in self._store.unfinished(self._run.output):
                if upload_id not in alive:
                    log.info("discarding an unfinished upload of %s", address)
                    self._store.abort(address, upload_id)
        except StoreUnavailableError:
            raise
        except StepError as error:  # they only take up space
            log.warning("cannot discard unfinished uploads: %s", error)


def step_of(path: str) -> int | None:
    """Return the step of the checkpoint that a path below OUTPUT_DIR belongs to, if any."""
    match = _STEP.match(path)
    return int(match[1]) if match else None
