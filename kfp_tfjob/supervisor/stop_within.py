"""Reads the annotation `kfp-tfjob/stop-within`: the time left, even for a terminating pod."""

from __future__ import annotations

from pathlib import Path
from typing import Callable

from kfp_tfjob.supervisor import duration
from kfp_tfjob.supervisor.files import read_text


class StopWithin:
    """The annotation as a file, which the supervisor and the sidecar read repeatedly.

    Args:
        podinfo: PODINFO_DIR; None if there is no pod.
        say: Logs a value that is not a duration, once.
    """

    def __init__(self, podinfo: Path | None, say: Callable[[str], None]) -> None:
        self._path, self._say, self._said = podinfo and podinfo / "stop-within", say, ""

    @property
    def known(self) -> bool:
        """Whether there is a pod whose annotation can be read."""
        return self._path is not None

    def seconds(self) -> float | None:
        """Return its value in seconds; None if it is not set or not valid."""
        text = read_text(self._path) if self._path else ""
        found = duration.parse(text)
        if found is None and text != self._said:
            self._said = text
            if text:
                self._say(
                    f"the annotation stop-within is ignored. Received: {text[:100]!r}."
                    f" Expected: {duration.GRAMMAR}."
                )
        return found
