"""Collects the orders to stop a replica: a signal, or an annotation of the chief's pod.

The launcher renews the annotation `heartbeat`. `stop-within` contains the remaining seconds, which
reach even a pod that is terminating already. Called by `supervise.py`, and by the uploader's
`watch.py`.
"""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from pathlib import Path
from typing import Callable, Sequence

from .environment import DURATION, seconds_of
from .files import read_text
from .log import log

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_LOOK_SECONDS = 0.5  # a read of a small file; the kubelet writes it much more rarely


class StopWithin:
    """The annotation as a file, which the supervisor and the sidecar read repeatedly.

    Args:
        podinfo: PODINFO_DIR; None if there is no pod.
        log_invalid: Logs a value that is not a duration, once.
    """

    def __init__(self, podinfo: Path | None, log_invalid: Callable[[str], None]) -> None:
        self._path, self._log = podinfo and podinfo / "stop-within", log_invalid
        self._logged_value = ""

    @property
    def is_available(self) -> bool:
        """Whether there is a pod whose annotation can be read."""
        return self._path is not None

    def seconds(self) -> float | None:
        """Return the annotation's value in seconds; None if it is not set or not valid."""
        value = read_text(self._path) if self._path else ""
        duration = seconds_of(value)
        if duration is None and value != self._logged_value:
            self._logged_value = value
            if value:
                self._log(
                    f"the annotation stop-within is ignored. Received: {value[:100]!r}."
                    f" Expected: {DURATION}."
                )
        return duration


class Stop:
    """Whether this replica has to stop, and how.

    Args:
        early: Signals that arrived before this object was made.

    Attributes:
        signal: The number of the signal that requested it; 0 to continue.
        by_force: Whether there is no time left to save.
        orphaned: Whether the reason is that no launcher waits for this job.
        wakeup: A descriptor that is readable after a signal or the end of a child; -1 for none.
    """

    def __init__(self, early: Sequence[int] = ()) -> None:
        self.signal = early[-1] if early else 0
        self.by_force = self.orphaned = False
        self.wakeup = -1

    def __bool__(self) -> bool:
        return bool(self.signal)

    def listen(self) -> None:
        """Start to handle signals, and wake up when a child ends."""
        self.wakeup, write_end = os.pipe()
        os.set_blocking(write_end, False)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in _SIGNALS:
            signal.signal(number, self._record_signal)

    def follow(self, podinfo: Path, orphan_timeout: float) -> None:
        """Start to follow the annotations in the background.

        Args:
            podinfo: Their folder.
            orphan_timeout: After so many seconds without a heartbeat, no launcher waits for this
                job.
        """
        threading.Thread(target=self._follow, args=(podinfo, orphan_timeout), daemon=True).start()

    def _follow(self, podinfo: Path, orphan_timeout: float) -> None:
        """Watch the annotations, and begin again after any error.

        Otherwise, a bug would let a job without a launcher keep its GPUs.
        """
        failed = False
        while not self.by_force:
            try:
                self._watch_annotations(podinfo, orphan_timeout)
            except Exception as error:
                if not failed:
                    log(f"the annotations cannot be read: {type(error).__name__}: {error}")
                failed = True
                time.sleep(_LOOK_SECONDS)

    def _watch_annotations(self, podinfo: Path, orphan_timeout: float) -> None:
        """Request a stop without a new heartbeat, or with stop-within; return when time is up.

        The heartbeat is timed by this machine's clock, from the start: clocks differ, and the
        launcher may already be gone.
        """
        stop_within, is_ordered = StopWithin(podinfo, log), False
        heartbeat, last_heartbeat, kill_at = "", time.monotonic(), math.inf
        while not self.by_force:
            now, stored_heartbeat = time.monotonic(), read_text(podinfo / "heartbeat")
            if stored_heartbeat != heartbeat:
                heartbeat, last_heartbeat = stored_heartbeat, now
            if now - last_heartbeat >= orphan_timeout and not self.orphaned:
                self.orphaned = True
                log(
                    f"no heartbeat from the launcher for {orphan_timeout:.0f} s: saving and"
                    " stopping"
                )
                # A command that does not react must not keep its GPUs.
                kill_at = min(kill_at, now + orphan_timeout)
                self._request_stop()
            seconds = stop_within.seconds()
            if seconds is not None and not is_ordered:
                is_ordered = True
                log(f"told to stop within {seconds:g} s")
                # The sidecar counts its own time from the end of the command.
                kill_at = min(kill_at, now + seconds / 3)
                self._request_stop()
            self.by_force = now >= kill_at
            time.sleep(_LOOK_SECONDS)

    def _request_stop(self) -> None:
        """Stop as if SIGTERM had arrived, unless a signal has already arrived."""
        self.signal = self.signal or signal.SIGTERM

    def _record_signal(self, number: int, _frame: object) -> None:
        self.signal = number
