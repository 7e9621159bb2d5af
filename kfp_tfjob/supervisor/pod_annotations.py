"""Follows the annotations of the chief's pod: the launcher's heartbeat, and requests to stop."""

from __future__ import annotations

import math
import threading
import time
from pathlib import Path

from kfp_tfjob.supervisor.files import read_text
from kfp_tfjob.supervisor.log import log
from kfp_tfjob.supervisor.stop_order import Stop
from kfp_tfjob.supervisor.stop_within import StopWithin

_LOOK_SECONDS = 0.5


def follow(podinfo: Path, orphan_timeout: float, stop: Stop) -> None:
    """Start to follow the annotations in the background.

    Args:
        podinfo: Their folder.
        orphan_timeout: After so many seconds without a heartbeat, no launcher waits for this job.
        stop: Set when it is time to stop.
    """
    threading.Thread(target=_follow, args=(podinfo, orphan_timeout, stop), daemon=True).start()


def _follow(podinfo: Path, orphan_timeout: float, stop: Stop) -> None:
    """Use only this machine's clock, from the start: the launcher may already be gone."""
    stop_within, told = StopWithin(podinfo, log), False
    heartbeat, heard, kill_at = "", time.monotonic(), math.inf
    while not stop.by_force:
        now, found = time.monotonic(), read_text(podinfo / "heartbeat")
        if found != heartbeat:
            heartbeat, heard = found, now
        if now - heard >= orphan_timeout and not stop.orphaned:
            stop.orphaned = True
            log(f"no heartbeat from the launcher for {orphan_timeout:.0f} s: saving and stopping")
            # A command that does not react must not keep its GPUs.
            kill_at = min(kill_at, now + orphan_timeout)
            stop.ask()
        seconds = stop_within.seconds()
        if seconds is not None and not told:
            told = True
            log(f"told to stop within {seconds:g} s")
            # The sidecar counts its own time from the end of the command.
            kill_at = min(kill_at, now + seconds / 3)
            stop.ask()
        stop.by_force = now >= kill_at
        time.sleep(_LOOK_SECONDS)
