"""`kfp-tfjob watch`: follow a run to its end."""

from __future__ import annotations

import sys
import time
from contextlib import nullcontext
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

import click

from kfp_tfjob.common.formatting import minutes

from ..ctrl_c import interruptible
from .output import as_json, show, show_json_line
from .shared_options import with_runs
from .terminal import is_live, with_verbose

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from ..kubeflow.client import Client
    from ..kubeflow.following import Moment
    from ..local.runs import HomeRuns

_EVERY = 10.0  # seconds between two lines about the training, which a person reads


@click.command()
@click.argument("run", metavar="RUN")
@with_runs
@as_json
@with_verbose
def watch(client: Client | HomeRuns, run: str, json_: bool, verbose: bool) -> None:
    """Follow a run until it ends.

    RUN is an id, an id prefix, a name or `last`, of a local run or of Kubeflow Pipelines. Training
    progress comes from the store, and the reason why pods are waiting from the cluster; without
    access to them, only the steps are shown. Ctrl-C stops watching; the run continues.

    On a terminal, each step has one line with its progress, and the log is a file whose path is
    shown first. With --verbose, NO_COLOR, CI or without a terminal, every line is printed.

    Exit codes: 0 the run succeeded, blessed or not; otherwise, the failed step's code.
    """
    sys.exit(watch_run(client, run, json_, verbose))


def watch_run(
    client: Client | HomeRuns, run: str, json_: bool = False, verbose: bool = False
) -> int:
    """Print a run until it is over, and return the exit code."""
    lines = _LiveLines() if is_live(verbose) and not json_ else _Lines()
    try:
        with interruptible(), lines.drawn():
            for moment in client.watch(run):
                if json_:
                    show_json_line(replace(moment, run=replace(moment.run, parameters={})))
                else:
                    lines.show(moment)
                last = moment
    except KeyboardInterrupt:
        # Ctrl-C is the way to stop watching; only `cancel` ends the run.
        if not json_:
            show(f"The run continues. Follow it again: kfp-tfjob watch {run}")
        return 130
    if last.run.state == "succeeded" and json_:
        return 0
    why = client.why(last.run.run_id)
    if not json_:
        from .why import show_why

        click.echo()
        show_why(why)
    return 0 if last.run.state == "succeeded" else why.code or 1


class _Lines:
    """Prints the changes in each state of a run."""

    def __init__(self) -> None:
        self._waits: tuple[str, ...] = ()
        self._progress = 0.0  # the time of the report that was shown

    def show(self, moment: Moment) -> None:
        """Print the steps that changed, the progress of training, and why the run waits."""
        from ..kubeflow.why import progress_line

        for step in moment.changed:
            spent = (
                f" ({minutes(step.seconds)})" if step.seconds and step.state != "running" else ""
            )
            self._say(f"{step.name} {step.state}{spent}")
        for note in moment.notes:
            self._say(f"note: {note}", stays=True)
        for wait in moment.waits if moment.waits != self._waits else ():
            self._say(wait, stays=True)
        self._waits = moment.waits
        progress = moment.progress
        if progress and progress.time > self._progress:
            if progress.step == progress.steps or progress.time > self._progress + _EVERY:
                self._progress = progress.time
                self._say(progress_line(progress))
        if moment.run.is_over:
            self._say(f"run {moment.run.state} ({minutes(moment.run.seconds)})")

    def drawn(self) -> AbstractContextManager[object]:
        """Return the context in which moments are shown."""
        return nullcontext()

    def _say(self, text: str, stays: bool = False) -> None:
        """Print a line; `stays` marks one that live lines do not replace."""
        now = datetime.fromtimestamp(time.time())
        self._print(f"{now:%H:%M:%S}  {text}", stays)

    def _print(self, text: str, stays: bool) -> None:
        show(text)


class _LiveLines(_Lines):
    """Shows the steps as live lines; the log has the lines that are printed without a terminal."""

    def __init__(self) -> None:
        super().__init__()
        from ..live_lines import LiveLines  # only a terminal needs it

        self._live = LiveLines()

    def show(self, moment: Moment) -> None:
        """Show the state of each step, the progress of training, and why the run waits."""
        from ..kubeflow.following import TRAINING
        from ..kubeflow.why import training_report

        if not self._live.has_log and (path := self._live.log_to("watch", moment.run.run_id)):
            self._live.show(f"log        {path}")
        super().show(moment)
        for step in moment.changed:
            if step.state in ("pending", "running"):
                self._live.begin(step.name, step.seconds or 0.0)
            else:
                self._live.end(step.name, step.state, step.seconds)
            self._live.note(step.name, step.error or step.state)
        progress = moment.progress
        if progress and progress.step < progress.steps:
            self._live.report(TRAINING, training_report(progress))

    def drawn(self) -> AbstractContextManager[object]:
        """Draw the lines while the context is open."""
        return self._live

    def _print(self, text: str, stays: bool) -> None:
        (self._live.show if stays else self._live.write)(text)
