"""Follows a run: its steps, the progress of training, and why it waits.

The back end knows the steps, the store has the progress, and the cluster knows why a pod waits. A
user may reach only some of them, and the notes say what is missing. Called by `kfp-tfjob watch`,
the Python client and local runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from .records import Progress, Records
from .runs import Run, StepState
from .why import Machines

TRAINING = "launch_tfjob"
PATIENCE = 600.0  # seconds; an unreachable back end does not end the run
INTERVAL = 3.0  # seconds between two calls; a person watches


@dataclass(frozen=True)
class Moment:
    """The current state of a run.

    Attributes:
        run: The run.
        changed: The steps whose state has changed since the last moment.
        progress: The newest report of the chief; None before the first.
        waits: The reasons why it waits, one sentence each; empty if it does not, or if unknown.
        notes: The things that cannot be read from here, and why; each is noted once.
    """

    run: Run
    changed: tuple[StepState, ...] = ()
    progress: Progress | None = None
    waits: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def follow(
    read: Callable[[], Run],
    records: Records,
    machines: Machines,
    seconds: float = INTERVAL,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Moment]:
    """Yield the state of a run every few seconds; the last state is its end.

    Args:
        read: Returns the run's current state.
        records: Its records.
        machines: The run's pods or processes.
        seconds: The time between two calls.
        sleep: Waits for seconds; tests replace it.
    """
    run = read()
    states: dict[str, str] = {}
    noted: set[str] = set()
    while True:
        changed = tuple(step for step in run.steps if states.get(step.name) != step.state)
        states |= {step.name: step.state for step in changed}
        training = any(step.name == TRAINING for step in run.steps)
        progress = records.progress() if training else None
        snapshot = None if run.is_over else machines.snapshot()
        troubles = {
            "training is not shown, because its records cannot be read": records.trouble,
            "why it is waiting is not shown: the cluster cannot be reached": machines.trouble,
        }
        notes = {sentence: trouble for sentence, trouble in troubles.items() if trouble}
        new_notes = tuple(
            f"{sentence}: {trouble}" for sentence, trouble in notes.items() if sentence not in noted
        )
        noted |= notes.keys()
        waits = snapshot.waits if snapshot else ()
        if run.root_driver and not (run.steps or run.is_over):
            waits = (f"{run.root_driver}; Kubeflow Pipelines retries it", *waits)
        yield Moment(run, changed, progress, waits, new_notes)
        if run.is_over:
            return
        sleep(seconds)
        run = read()
