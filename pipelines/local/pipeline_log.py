"""Reads which steps of a local run started and ended, from the lines of kfp.local in its log.

A back end stores the state of each task. kfp.local only prints it, with the time of day. Called by
`runs.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from kfp_tfjob.common.escaping import lines as safe_lines
from kfp_tfjob.components import STEPS

from .output import readable

_EVENT = re.compile(
    r"(\d\d):(\d\d):(\d\d\.\d+) - \w+ - (?:"
    r"Executing task '(?P<begun>[^']+)'"
    r"|Task '(?P<ended>[^']+)' finished with status (?P<status>\w+)"
    r"|Pipeline '[^']+' finished with status (?P<pipeline>\w+))"
)
_DAY = 86400  # seconds; the log's times are without a date


@dataclass
class LoggedStep:
    """The newest try of a step.

    Attributes:
        began: Seconds since midnight.
        ended: Seconds since midnight; None if it has not ended.
        succeeded: Whether it ended with success.
    """

    began: float
    ended: float | None = None
    succeeded: bool = False

    def seconds(self, now: float) -> float:
        """Return how long it took, or has taken until `now`, if that is less than a day."""
        spent = ((now if self.ended is None else self.ended) - self.began) % _DAY
        return round(spent, 1) if spent < _DAY - 1 else 0.0  # a file's time lags behind the clock


@dataclass
class PipelineLog:
    """The steps and the end of a local pipeline, from kfp.local's log.

    Attributes:
        path: The log, which may not exist.
        steps: The steps that have started, by name.
        succeeded: How the pipeline ended; None if it has not ended or was killed.
    """

    path: Path
    steps: dict[str, LoggedStep] = field(default_factory=dict)
    succeeded: bool | None = None

    @classmethod
    def read(cls, path: Path) -> PipelineLog:
        """Read the log of a run."""
        log = cls(path)
        for line in log._lines():
            # The steps' own lines are indented, so no program can imitate these.
            event = _EVENT.match(safe_lines(line)) if line[:1].isdigit() else None
            if event:
                log._add(event)
        return log

    def last_lines(self, step: str, number: int) -> list[str]:
        """Return the last lines that a step printed."""
        lines = [text for name, text in readable(self._lines()) if name == step and text]
        return lines[-number:]

    def _lines(self) -> Iterable[str]:
        try:
            with open(self.path, errors="replace") as file:
                yield from file
        except OSError:  # the pipeline may not have begun
            return

    def _add(self, event: re.Match[str]) -> None:
        time = int(event[1]) * 3600 + int(event[2]) * 60 + float(event[3])
        name = (event["begun"] or event["ended"] or "").replace("-", "_")
        if event["pipeline"]:
            self.succeeded = event["pipeline"] == "SUCCESS"
        elif name in STEPS and event["begun"]:
            self.steps[name] = LoggedStep(time)
        elif name in self.steps:
            self.steps[name].ended = time
            self.steps[name].succeeded = event["status"] == "SUCCESS"
