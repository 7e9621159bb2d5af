"""Decides who may write to a run: only the newest uploader of the highest attempt.

The launcher claims an attempt with the record `attempts/NNNN.json`. A sidecar adds its own record,
`attempts/NNNN-uploader-NN.json`, because a pod may be replaced within an attempt. Records never
change, so every reader sees the same owner. A sidecar that is no longer the owner stops writing.
Called by `watch.py`, and through it by the mirror before every write.
"""

from __future__ import annotations

import json
import logging
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from kfp_tfjob.common import files
from kfp_tfjob.common.errors import ObjectExistsError, Problem, StepError
from kfp_tfjob.storage.layout import UPLOADER_IDENTITY, RunLayout, attempt_record
from kfp_tfjob.supervisor import exit_codes

if TYPE_CHECKING:
    from kfp_tfjob.storage.store import Store

log = logging.getLogger(__name__)

# Seconds. A check is a request, so it is not repeated before every file. Before a manifest, which
# readers trust, it always is.
_FRESH = 5.0


class FencedError(StepError):
    """A newer attempt, or a newer uploader of this attempt, owns the run."""

    code = exit_codes.CONFIGURATION
    verdict = "fenced"


class Ownership:
    """One sidecar's claim to write to a run.

    Args:
        store: The run's store.
        run: The run's directory.
        run_id: The run.
        attempt: This pod's attempt.
        folder: Keeps the identity across restarts; None if there is no such folder.
    """

    def __init__(
        self, store: Store, run: RunLayout, run_id: str, attempt: int, folder: Path | None
    ) -> None:
        self._store, self._run, self._run_id = store, run, run_id
        self._attempt, self._life = attempt, 0
        self._path = folder / UPLOADER_IDENTITY if folder else None
        self._checked_at = float("-inf")

    def claim(self) -> None:
        """Become the owner; a restarted container finds that it already is.

        Raises:
            FencedError: A higher attempt owns the run, or a newer uploader owns this attempt.
            StepError: The store did not respond.
        """
        while not self._life:
            records = self._records()
            self._check_attempt(records)
            last = max((life for attempt, life in records if attempt == self._attempt), default=0)
            remembered = self._read_identity()
            if remembered:  # a container may restart in a pod that was already replaced
                self._check_uploader(remembered, last)
            if last and remembered == last:
                self._life, self._checked_at = last, time.monotonic()
                return
            record = {
                "run_id": self._run_id,
                "attempt": self._attempt,
                "uploader": uuid.uuid4().hex,
            }
            address = self._run.uploader(self._attempt, last + 1)
            try:
                self._store.create(address, json.dumps(record).encode(), "application/json")
            except ObjectExistsError:
                continue  # another uploader was faster; try the next number
            self._life, self._checked_at = last + 1, time.monotonic()
            self._write_identity()
            log.info("attempt %d is mirrored by uploader %d", self._attempt, self._life)

    def check(self, now: bool = False) -> None:
        """Return if this sidecar still owns the run.

        Args:
            now: Ask the store even if the last check was recent.

        Raises:
            FencedError: Another attempt or uploader owns the run now.
            StepError: The store did not respond.
        """
        if not now and time.monotonic() - self._checked_at < _FRESH:
            return
        records = self._records()
        self._check_attempt(records)
        newest = max((life for attempt, life in records if attempt == self._attempt), default=0)
        self._check_uploader(self._life, newest)
        self._checked_at = time.monotonic()

    def _records(self) -> list[tuple[int, int]]:
        """Return every record's attempt and uploader; the launcher's records have uploader 0."""
        start = len(self._run.attempts.key) + 1
        names = (file.address.key[start:] for file in self._store.list(self._run.attempts))
        return [record for name in names if (record := attempt_record(name))]

    def _check_attempt(self, records: list[tuple[int, int]]) -> None:
        highest = max((attempt for attempt, _ in records), default=0)
        if highest > self._attempt:
            raise FencedError(
                Problem(
                    f"attempt {highest} owns this run",
                    received=f"attempt {self._attempt}",
                    expected=f"attempt {highest}",
                    fix="none needed: this attempt is over and no longer writes",
                )
            )

    def _check_uploader(self, uploader: int, newest: int) -> None:
        if newest > uploader:
            raise FencedError(
                Problem(
                    f"a newer uploader writes attempt {self._attempt} of this run",
                    received=f"uploader {uploader}",
                    expected=f"uploader {newest}",
                    fix="none needed: this pod was replaced and no longer writes",
                )
            )

    def _read_identity(self) -> int:
        """Return the uploader number that an earlier container of this pod stored; 0 without one.

        The folder may outlive the pod, so a number for another run or attempt is ignored.
        """
        try:
            body = json.loads(self._path.read_bytes()) if self._path else {}
            run = [str(self._run.base), self._run_id, self._attempt]
            return int(body["uploader"]) if body["run"] == run else 0
        except (OSError, ValueError, KeyError, TypeError):
            return 0

    def _write_identity(self) -> None:
        if not self._path:
            return
        run = [str(self._run.base), self._run_id, self._attempt]
        try:
            self._path.parent.mkdir(exist_ok=True)
            files.write(self._path, json.dumps({"run": run, "uploader": self._life}))
        except OSError as error:
            log.warning(
                "cannot store this uploader's identity, so a restart would count as a new"
                " uploader: %s",
                error,
            )
