"""Shows the steps of a local run as live lines, from their reports and training's records.

The numbers come from the processes themselves (`common/progress.py`), and those of training from
the chief's progress.jsonl, which is on this machine. The steps' log lines only become the text of a
line without a report. All of them are written to the run's `run.log`, as they are printed without
a terminal. Called by `run.py`.
"""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from pathlib import Path

from kfp_tfjob.common.progress import ProgressReport, ReportReader
from kfp_tfjob.jobs.log_masking import Mask
from kfp_tfjob.storage.layout import OUTPUT, PROGRESS

from ..kubeflow.following import TRAINING
from ..kubeflow.records import newest
from ..kubeflow.why import training_report
from ..live_lines import LiveLines
from .output import Steps, step_line

_READ_SECONDS = 1.0  # between two reads of progress.jsonl, which gets a line every 2 seconds
_TAIL = 64 << 10  # bytes at its end: enough for the newest report
_TIME = re.compile(r"\d\d:\d\d:\d\d ")  # at the start of a log line; the live line has its own


class LiveSteps(Steps):
    """The live lines of one run.

    Args:
        live: The lines.
        reports: The file of the processes' reports.
        job: The folder of the run's jobs.
    """

    def __init__(self, live: LiveLines, reports: Path, job: Path) -> None:
        self._live, self._job = live, job
        self._reports, self._path = ReportReader(reports), reports
        self._step, self._mask = "", Mask()
        self._training: ProgressReport | None = None
        self._read_at = 0.0

    def begin(self, step: str) -> None:
        """Add the step's line."""
        self._step = step
        self._live.begin(step)

    def line(self, text: str) -> None:
        """Write a log line of the current step, and show it unless there is a report."""
        self._live.write(step_line(self._step, text))
        self._live.note(self._step, _TIME.sub("", text, count=1))

    def end(self, step: str, succeeded: bool) -> None:
        """Mark a step as ended."""
        self._live.end(step, "succeeded" if succeeded else "failed")

    def refresh(self) -> None:
        """Show new reports, and keep new warnings above the lines; the log already has them."""
        report, warnings = self._reports.new()
        for warning in warnings:
            self._live.above(step_line(self._step, self._mask(warning)))
        if self._step == TRAINING:
            self._read_training()
            # The sidecar stores files meanwhile, which is worth a line only after training.
            if self._training and (self._training.share < 1 or not report):
                report = self._training
        if report:
            self._live.report(self._step, report)

    def __enter__(self) -> LiveSteps:
        """Draw the lines, and accept reports."""
        self._path.write_bytes(b"")
        self._live.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        """Draw the lines for the last time."""
        self.refresh()
        self._live.__exit__(*error)
        with suppress(OSError):
            self._path.unlink()

    def _read_training(self) -> None:
        """Read the chief's newest report of training, at most once per second."""
        if time.monotonic() - self._read_at < _READ_SECONDS:
            return
        self._read_at, self._training = time.monotonic(), None
        # The pod's own folder, or with `pod.chief.output_claim`, a folder of the claim.
        paths = [
            *self._job.glob(f"jobs/*/chief-0/{OUTPUT}/{PROGRESS}"),
            *self._job.glob(f"claims/*/*/{PROGRESS}"),
        ]
        tails = []
        for path in paths:
            with suppress(OSError), open(path, "rb") as file:  # it was deleted meanwhile
                status = os.stat(file.fileno())
                file.seek(max(status.st_size - _TAIL, 0))
                tails.append((status.st_mtime, file.read()))
        _, tail = max(tails, default=(0.0, b""))
        if progress := newest(tail.decode(errors="replace")):
            self._training = training_report(progress)
