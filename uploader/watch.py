"""The chief's sidecar: mirrors OUTPUT_DIR during training, and stores the remaining files after it.

It is a native sidecar, so Kubernetes sends it SIGTERM after the trainer has ended, and ignores its
exit code. So the trainer can rely only on the reply at the flush barrier, and an error of the store
never ends this process. Periodic scans detect all changes, without notifications of the file
system. Called by `python -m kfp_tfjob.uploader watch`.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

from kfp_tfjob.common.errors import ObjectExistsError, StepError
from kfp_tfjob.common.formatting import counted, listed
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import CHECKPOINTS, CHIEF_END, UPLOADER, RunLayout
from kfp_tfjob.supervisor import exit_codes, termination_message
from kfp_tfjob.supervisor.files import read_json
from kfp_tfjob.supervisor.stop import StopWithin

from .barrier import Barrier, Request
from .folder import name_problem
from .local_files import Scan, inventory, scan

if TYPE_CHECKING:  # importing boto3 takes half a second; signals must be handled before that
    from kfp_tfjob.storage.store import Store

log = logging.getLogger(__name__)

_POLL = 0.1  # seconds; a request or SIGTERM is noticed this soon
# Seconds after the grace period, in which a running call may still notice that the time is over.
_OVERTIME = 2.0
# Seconds to wait for the annotation stop-within, which reaches the pod about half a second after it
# is set, and may follow SIGTERM.
_ANNOTATION_SECONDS = 1.5


@dataclass(frozen=True)
class Settings:
    """The sidecar's settings.

    Attributes:
        folder: The chief's OUTPUT_DIR.
        run: The run's directory in the store.
        run_id: The run.
        attempt: The attempt, from 1.
        interval: Seconds between two scans.
        grace: Seconds after SIGTERM; the pod's terminationGracePeriodSeconds.
    """

    folder: Path
    run: S3Address
    run_id: str
    attempt: int
    interval: float
    grace: float


def run_sidecar(settings: Settings, store: Store, ended: Event) -> int:
    """Mirror the folder until `ended`, then store the remaining files.

    Args:
        settings: The folder, its address in the store, and the times.
        store: The store; with few retries, because every pass tries again.
        ended: Set when the trainer has ended, so no program writes to the folder any more.

    Returns:
        0 if everything in the folder at the end is stored, 145 if the store was unreachable, 2 if
        this sidecar no longer owns the run, otherwise 1.
    """
    from .ownership import FencedError

    sidecar = _Sidecar(settings, store, ended)
    try:
        return sidecar.run()
    except FencedError as error:
        return sidecar.wait_fenced(error)
    finally:
        sidecar.returned = True


class _Sidecar:
    """One process of the sidecar: its passes, its replies, and its last pass within the grace."""

    def __init__(self, settings: Settings, store: Store, ended: Event) -> None:
        from .mirror import Mirror
        from .ownership import Ownership

        run, keep = RunLayout(settings.run), settings.folder / UPLOADER
        self._settings, self._store, self._ended = settings, store, ended
        self._barrier = Barrier(settings.folder, settings.run_id, settings.attempt)
        self._owner = Ownership(store, run, settings.run_id, settings.attempt, keep)
        self._mirror = Mirror(
            store,
            settings.folder,
            run,
            settings.run_id,
            settings.attempt,
            tick=self._tick,
            check_owner=self._owner.check,
        )
        self._grace = _Grace(settings.grace)
        self._ready = self.returned = self._complete_at_end = False
        self._scan = Scan()
        self._answered = 0.0
        self._end: dict[str, Any] = {}
        self._end_stored = False
        self._warned: set[str] = set()
        self._warned_unnumbered = False

    def run(self) -> int:
        """Mirror until the trainer ends, then store the remaining files; return the exit code."""
        folder, ended = self._settings.folder, self._ended
        log.info("mirroring %s to %s", folder, RunLayout(self._settings.run).output)
        threading.Thread(target=self._exit_when_overdue, daemon=True).start()
        while not ended.is_set():
            before, self._scan = self._scan, scan(folder)
            self._warn_of_skipped(self._scan, before)
            request = self._barrier.pending()
            if self._claim_run(request):
                self._mirror.store(self._scan, before, request is not None, ended.is_set)
                if request and not ended.is_set():
                    before, self._scan = self._scan, scan(folder)
                    self._answer(request)
                self._mirror.prune(self._scan, before, ended.is_set)
            self._pause(None if request else self._barrier)
        return self._finish()

    def wait_fenced(self, error: StepError) -> int:
        """Stop writing, answer requests with the reason, and wait until the trainer ends."""
        log.error("%s", error)
        while not self._ended.wait(_POLL):
            if request := self._barrier.pending():
                missing = self._mirror.missing(self._scan)
                self._barrier.answer(request, *self._count(missing), str(error))
        self._store_end()
        _write_end_reason(str(error))
        return error.code

    def _claim_run(self, request: Request | None = None) -> bool:
        """Probe the store and claim the run, once; return False if the store failed."""
        from .ownership import FencedError

        if self._ready:
            return True
        try:
            self._store.probe(self._settings.run)
            self._owner.claim()
        except FencedError:
            raise
        except StepError as error:
            self._mirror.note("the run", error)
            if request:
                self._barrier.answer(request, *self._count(self._missing()), str(error))
            return False
        self._ready = True
        return True

    def _missing(self) -> list[str]:
        return self._mirror.missing(self._scan)

    def _tick(self) -> None:
        """Renew the reply about once a second during a long transfer."""
        if time.monotonic() - self._answered >= 1 and (request := self._barrier.pending()):
            self._answered = time.monotonic()
            self._barrier.answer(request, *self._count(self._missing()), "files are being sent")

    def _warn_of_skipped(self, current: Scan, before: Scan) -> None:
        """Log, once per entry of the folder, why it is not mirrored or not restored."""
        from .mirror import unnumbered

        lines = [
            f"{path!r} is a {kind} and is not mirrored" for path, kind in current.skipped.items()
        ]
        # One warning is enough, because a program that names its checkpoints differently writes
        # many of them. Only entries in two scans count, because temporary names vanish.
        lasting = Scan({path: file for path, file in current.files.items() if path in before.files})
        if not self._warned_unnumbered and (names := unnumbered(lasting)):
            self._warned_unnumbered = True
            log.warning(
                "another attempt will not get %s: only folders that are named by a step come back."
                " Write each checkpoint to %s/<step>, for example %s/100",
                listed(names, 3),
                CHECKPOINTS,
                CHECKPOINTS,
            )
        for line in [*lines, *current.errors]:
            if line not in self._warned:
                self._warned.add(line)
                log.warning("%s", line)

    def _pause(self, barrier: Barrier | None) -> None:
        """Wait until the next scan is due, or a request is at the barrier, or the trainer ends."""
        until = time.monotonic() + self._settings.interval
        while time.monotonic() < until and not self._ended.wait(_POLL):
            if barrier and barrier.pending():
                return

    def _count(self, missing: list[str]) -> tuple[int, list[str]]:
        """Return the number of stored files and the missing paths, including steps' manifests."""
        files = self._scan.files
        return len(files) - sum(path in files for path in missing), missing

    def _answer(self, request: Request) -> None:
        """Answer a request after a pass: `stored` once the run's manifest is written."""
        missing = self._missing()
        message = "; ".join([*self._scan.errors, *dict.fromkeys(self._mirror.trouble.values())])
        if missing:
            message = f"{len(missing)} missing" + (f": {message}" if message else "")
        elif not message:
            message = self._complete(request)
        impossible = any(map(name_problem, missing))
        self._barrier.answer(request, *self._count(missing), message, impossible)

    def _complete(self, request: Request) -> str:
        """Write the run's manifest; return why it cannot be written, or an empty string."""
        from .ownership import FencedError

        count, digest = inventory(self._scan.files.values())
        if (count, digest) != (request.files, request.inventory):
            return (
                f"the folder changed after the request: the request has {request.files} files,"
                f" inventory {request.inventory[:12]}; now there are {count}, {digest[:12]}"
            )
        if not self._barrier.completed():
            return f"there is no completion.json of attempt {request.attempt}"
        try:
            manifest = self._mirror.publish(self._scan)
        except FencedError:
            raise
        except ObjectExistsError as error:
            return f"the store's manifest of this run differs and must not be replaced: {error}"
        except StepError as error:
            return str(error)
        log.info("the output is stored: %s, digest %s", counted(count, "file"), manifest.digest)
        return ""

    def _finish(self) -> int:
        """Store the remaining files, the newest checkpoint first, within the pod's grace period."""
        log.info("the trainer has ended: storing the rest")
        grace = self._grace
        grace.start()
        missing: list[str] | None = None
        while True:
            self._scan = current = scan(self._settings.folder)
            if self._claim_run():
                self._mirror.store(current, current, True, grace.over)
            self._scan, earlier = scan(self._settings.folder), missing
            missing = self._missing() + list(self._scan.errors)
            is_end_stored = self._ready and self._store_end()
            if not (is_end_stored or missing):
                missing = [f"{UPLOADER}/{CHIEF_END}"]
            if not missing:
                log.info("everything is stored: %s", counted(len(self._scan.files), "file"))
                self._complete_at_end = True
                # The trainer may have deleted checkpoints after the last pass.
                if remaining := self._mirror.prune(self._scan, current, grace.over):
                    log.warning("these deleted checkpoints are still in the store: %s", remaining)
                return 0
            # Another pass may help while the store is unreachable or rejects writes, or if this one
            # has stored some of the missing files.
            hopeless = missing == earlier and not (self._mirror.away or self._mirror.refused)
            if grace.over() or hopeless:
                return self._not_stored(missing)
            time.sleep(min(self._settings.interval, 1))

    def _store_end(self) -> bool:
        """Store the record of how the chief ended, once; return False if the store failed.

        A fenced sidecar also stores it, because the record belongs to its own attempt.
        """
        run_id, attempt = self._settings.run_id, self._settings.attempt
        if not self._end:
            self._end = dict(read_json(self._settings.folder / UPLOADER / CHIEF_END))
            # The folder may outlive the pod, and contain an earlier attempt's record.
            if (self._end.get("run_id"), self._end.get("attempt")) != (run_id, attempt):
                reason = "its supervisor left no record, for example because it was killed"
                now = datetime.now(UTC).isoformat(timespec="seconds")
                self._end = {"run_id": run_id, "attempt": attempt, "time": now, "code": None}
                self._end |= {"signal": 0, "reason": reason, "seconds": 0.0, "step": 0}
            self._end["stop_within"] = self._grace.stop_within() if self._end["signal"] else None
        address = RunLayout(self._settings.run).chief_end(attempt)
        try:
            if not self._end_stored:
                self._store.create(address, json.dumps(self._end, indent=1).encode())
        except ObjectExistsError:
            log.info("it is already recorded how attempt %d ended", attempt)
        except StepError as error:
            self._mirror.note("the record of the end", error)
            return False
        self._end_stored = True
        return True

    def _not_stored(self, missing: list[str]) -> int:
        not_stored = f"{counted(len(missing), 'file')} not stored"
        log.error("%s: %s", not_stored, ", ".join(map(repr, missing[:20])))
        _write_end_reason(f"{not_stored}: {'; '.join(self._mirror.trouble.values())}")
        return exit_codes.NOT_STORED if self._mirror.away else exit_codes.FAILED

    def _exit_when_overdue(self) -> None:
        """Exit with a report if a call outlasts the grace period.

        It runs in a thread. The kubelet would kill the process without a word on the lost files.
        """
        self._ended.wait()
        self._grace.start()
        while not self._grace.over(_OVERTIME):
            time.sleep(_POLL)
            if self.returned:
                return
        if self._complete_at_end:
            os._exit(exit_codes.DONE)
        self._mirror.away = True
        code = exit_codes.NOT_STORED
        try:
            self._scan = scan(self._settings.folder)
            code = self._not_stored(self._missing())
        except Exception:
            log.exception("a bug hides what is not stored")
        finally:
            os._exit(code)


def _write_end_reason(reason: str) -> None:
    """Write the reason why this sidecar ends to the termination log, which the cluster shows."""
    with suppress(OSError):  # a full disk must not hide the exit code
        termination_message.write(termination_message.path_of(os.environ), reason)


class _Grace:
    """The time left after SIGTERM; the pod's annotations may shorten it.

    Args:
        seconds: The pod's grace period.
    """

    def __init__(self, seconds: float) -> None:
        self._began: float | None = None
        self._seconds = seconds
        folder = os.environ.get("PODINFO_DIR")
        self._stop_within = StopWithin(Path(folder) if folder else None, log.warning)

    def start(self) -> None:
        """Start to count, unless it has already been started."""
        if self._began is None:
            self._began = time.monotonic()

    def stop_within(self) -> float | None:
        """Return the annotation stop-within in seconds; None if it is not set.

        It waits for the annotation until shortly after SIGTERM.
        """
        deadline = (self._began or time.monotonic()) + _ANNOTATION_SECONDS
        while (seconds := self._stop_within.seconds()) is None and self._stop_within.is_available:
            if time.monotonic() > deadline:
                break
            time.sleep(_POLL)
        return seconds

    def over(self, margin: float = 0.0) -> bool:
        """Return whether the grace period and `margin` seconds have passed."""
        began = time.monotonic() if self._began is None else self._began
        shorter = self._stop_within.seconds()
        seconds = self._seconds if shorter is None else min(self._seconds, shorter)
        return time.monotonic() - began >= seconds + margin
