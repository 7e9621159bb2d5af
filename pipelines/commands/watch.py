"""`kfp-tfjob watch`: follow a run to its end."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

import click

from kfp_tfjob.pipelines.commands.connection import with_run
from kfp_tfjob.pipelines.commands.output import as_json, show, show_json_line
from kfp_tfjob.storage.formatting import minutes

if TYPE_CHECKING:
    from kfp_tfjob.pipelines.kubeflow.client import Client
    from kfp_tfjob.pipelines.kubeflow.following import Moment

_EVERY = 10.0  # seconds between two lines about the training, which a person reads


@click.command()
@with_run
@as_json
def watch(client: Client, run: str, json_: bool) -> None:
    """Follow a run until it ends.

    RUN is an id, an id prefix, a name or `last`. Training progress comes from the store, and the
    reason why pods are waiting from the cluster; without access to them, only the steps are shown.
    Ctrl-C stops watching; the run continues.

    Exit codes: 0 the run succeeded, blessed or not; otherwise, the failed step's code.
    """
    sys.exit(watch_run(client, run, json_))


def watch_run(client: Client, run: str, json_: bool = False) -> int:
    """Print a run until it is over, and return the exit code."""
    lines = _Lines()
    try:
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
        from kfp_tfjob.pipelines.commands.why import show_why

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
        from kfp_tfjob.pipelines.kubeflow.reasons import progress_line

        for step in moment.changed:
            spent = (
                f" ({minutes(step.seconds)})" if step.seconds and step.state != "running" else ""
            )
            self._say(f"{step.name} {step.state}{spent}")
        for note in moment.notes:
            self._say(f"note: {note}")
        for wait in moment.waits if moment.waits != self._waits else ():
            self._say(wait)
        self._waits = moment.waits
        progress = moment.progress
        if progress and progress.time > self._progress:
            if progress.step == progress.steps or progress.time > self._progress + _EVERY:
                self._progress = progress.time
                self._say(progress_line(progress))
        if moment.run.is_over:
            self._say(f"run {moment.run.state} ({minutes(moment.run.seconds)})")

    @staticmethod
    def _say(text: str) -> None:
        now = datetime.fromtimestamp(time.time())
        show(f"{now:%H:%M:%S}  {text}")
