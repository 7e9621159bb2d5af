"""The chief's sidecar: mirrors OUTPUT_DIR while the trainer runs, and answers for it at the end.

It is a native sidecar: Kubernetes ends it with SIGTERM once the trainer has ended, and its exit
code does not count. So what the trainer may rely on is only the answer at the flush barrier, and no
error of the store ends this process. A periodic scan is the truth; nothing depends on being told.
"""

from __future__ import annotations

import logging
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

from storage.address import S3Address
from storage.errors import ObjectExistsError, StepError
from storage.layout import RunLayout
from uploader.barrier import Barrier, Request
from uploader.inventory import Scan, inventory, scan
from uploader.parallel import WORKERS

if TYPE_CHECKING:  # boto3 takes half a second, and signals are to be caught before that
    from storage.store import Store
    from uploader.mirror import Mirror

log = logging.getLogger(__name__)

_POLL = 0.1  # seconds; how soon a request or SIGTERM is seen


@dataclass(frozen=True)
class Settings:
    """What the sidecar is told.

    Attributes:
        folder: The chief's OUTPUT_DIR.
        run: The run's directory in the store.
        run_id: The run.
        attempt: The attempt, from 1.
        interval: Seconds between two scans.
        snapshot_seconds: How often at most a file that grows is sent anew.
        grace: Seconds after SIGTERM; the pod's terminationGracePeriodSeconds.
        workers: Files sent at once.
    """

    folder: Path
    run: S3Address
    run_id: str
    attempt: int
    interval: float = 1.0
    snapshot_seconds: float = 30.0
    grace: float = 600.0
    workers: int = WORKERS


def until_signal() -> Event:
    """Return an event that SIGTERM and SIGINT set instead of ending the process."""
    ended = Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    return ended


def watch(settings: Settings, store: Store, ended: Event) -> int:
    """Mirror the folder until `ended`, then store what is left.

    Args:
        settings: What to mirror, and where to.
        store: The store; with a short patience, because every pass tries again.
        ended: Set when the trainer has ended, so that nothing writes any more.

    Returns:
        0 when everything that lay in the folder at the end is stored, else 1.
    """
    from uploader.mirror import Mirror

    barrier = Barrier(settings.folder, settings.run_id, settings.attempt)
    last_answer = 0.0
    current = Scan()

    def tick() -> None:
        nonlocal last_answer
        if time.monotonic() - last_answer >= 1 and (request := barrier.pending()):
            missing = mirror.missing(current)
            last_answer = time.monotonic()
            barrier.answer(request, *_count(current, missing), "files are being sent")

    mirror = Mirror(
        store,
        settings.folder,
        RunLayout(settings.run),
        settings.run_id,
        settings.attempt,
        settings.workers,
        settings.snapshot_seconds,
        tick,
    )
    log.info("mirroring %s to %s", settings.folder, RunLayout(settings.run).output)
    told: set[str] = set()
    while not ended.is_set():
        before, current = current, scan(settings.folder)
        _tell(current, told)
        request = barrier.pending()
        mirror.store(current, before, request is not None, ended.is_set)
        if request and not ended.is_set():
            before, current = current, scan(settings.folder)
            _answer(barrier, request, mirror, current)
        mirror.prune(current, before)
        _pause(settings.interval, ended, None if request else barrier)
    return _finish(settings, mirror)


def _tell(found: Scan, told: set[str]) -> None:
    """Log, once each, what in the folder is not mirrored and why."""
    lines = [f"{path!r} is a {kind} and is not mirrored" for path, kind in found.skipped.items()]
    for line in [*lines, *found.errors]:
        if line not in told:
            told.add(line)
            log.warning("%s", line)


def _pause(seconds: float, ended: Event, barrier: Barrier | None) -> None:
    """Wait for the next scan, which a request at the barrier brings forward."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and not ended.wait(_POLL):
        if barrier and barrier.pending():
            return


def _count(found: Scan, missing: list[str]) -> tuple[int, list[str]]:
    """Return how many files are stored, and what is missing, manifests of steps included."""
    return len(found.files) - sum(path in found.files for path in missing), missing


def _answer(barrier: Barrier, request: Request, mirror: Mirror, found: Scan) -> None:
    """Answer a request after a pass: `stored` once the manifest of the run is written."""
    missing = mirror.missing(found)
    message = "; ".join([*found.errors, *dict.fromkeys(mirror.trouble.values())])
    if missing:
        message = f"{len(missing)} missing" + (f": {message}" if message else "")
    elif not message:
        message = _complete(barrier, request, mirror, found)
    barrier.answer(request, *_count(found, missing), message)


def _complete(barrier: Barrier, request: Request, mirror: Mirror, found: Scan) -> str:
    """Write the manifest of the run, or return what stands in the way."""
    counted = inventory(found.files.values())
    if counted != (request.files, request.inventory):
        return (
            f"the folder changed after the request: it named {request.files} files,"
            f" inventory {request.inventory[:12]}; here are {counted[0]}, {counted[1][:12]}"
        )
    if not barrier.completed():
        return f"there is no completion.json of attempt {request.attempt}"
    try:
        manifest = mirror.publish(found)
    except ObjectExistsError as error:
        return f"another manifest of this run is in the store; it is never replaced: {error}"
    except StepError as error:
        return str(error)
    log.info("the output is stored: %d files, digest %s", len(found.files), manifest.digest)
    return ""


def _finish(settings: Settings, mirror: Mirror) -> int:
    """Store what is there, the newest checkpoint first, as long as the pod's grace lasts."""
    log.info("the trainer has ended: storing what is left")
    until = time.monotonic() + settings.grace
    missing: list[str] | None = None
    while True:
        current = scan(settings.folder)
        mirror.store(current, current, True, lambda: time.monotonic() >= until)
        current, earlier = scan(settings.folder), missing
        missing = mirror.missing(current) + list(current.errors)
        if not missing:
            log.info("everything is stored: %d files", len(current.files))
            return 0
        # Trying on helps only while the store is away or each pass brings something in.
        if time.monotonic() >= until or (missing == earlier and not mirror.away):
            log.error("%d not stored: %s", len(missing), ", ".join(map(repr, missing[:20])))
            return 1
        time.sleep(settings.interval)
