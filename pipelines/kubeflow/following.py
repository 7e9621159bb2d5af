"""Follows a run: its steps, the progress of training, and why it waits."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kfp_tfjob.pipelines.kubeflow.reasons import Machines
from kfp_tfjob.pipelines.kubeflow.records import Progress, Records
from kfp_tfjob.pipelines.kubeflow.runs import Run, StepState

TRAINING = "launch_tfjob"
PATIENCE = 600.0  # seconds; an unreachable back end does not end the run
_SECONDS = 3.0


@dataclass(frozen=True)
class Moment:
    """What a run looks like now.

    Attributes:
        run: The run.
        changed: The steps whose state has changed since the last moment.
        progress: The newest report of the chief; None while there is none.
        waits: Why it waits, a sentence for each reason; empty if it does not or if unknown.
        notes: What cannot be seen from here, and why; each is said once.
    """

    run: Run
    changed: tuple[StepState, ...] = ()
    progress: Progress | None = None
    waits: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def follow(
    read: Callable[[], Run],
    records: Records,
    cluster: Machines,
    seconds: float = _SECONDS,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Moment]:
    """Yield what a run looks like, every few seconds, until it is over; the last is its end.

    Args:
        read: Returns the run as it is now.
        records: Its records.
        cluster: Where it runs.
        seconds: Between two looks.
        sleep: Waits.
    """
    run = read()
    known: dict[str, str] = {}
    said: set[str] = set()
    while True:
        changed = tuple(step for step in run.steps if known.get(step.name) != step.state)
        known |= {step.name: step.state for step in changed}
        training = any(step.name == TRAINING for step in run.steps)
        progress = records.progress() if training else None
        seen = None if run.is_over else cluster.look()
        notes = {
            "training is not shown, because its records cannot be read": records.trouble,
            "why it is waiting is not shown: the cluster cannot be reached": cluster.trouble,
        }
        new = tuple(f"{what}: {why}" for what, why in notes.items() if why and what not in said)
        said |= {what for what, why in notes.items() if why}
        waits = seen.waits if seen else ()
        if run.root_driver and not (run.steps or run.is_over):
            waits = (f"{run.root_driver}; Kubeflow Pipelines retries it", *waits)
        yield Moment(run, changed, progress, waits, new)
        if run.is_over:
            return
        sleep(seconds)
        run = read()
