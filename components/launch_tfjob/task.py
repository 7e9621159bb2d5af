"""Applies what a pipeline sets on the task of this step to the replicas.

Only the Python component has the input for it; in the compiled pipeline and in the YAML of a single
step, nobody can set anything on the task. Called by launch_tfjob's engine.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from kfp_tfjob.checks.finding import Finding
from kfp_tfjob.common.errors import Problems
from kfp_tfjob.jobs.task_config import TaskSettings, is_passed
from kfp_tfjob.options.parameter_masking import masked

log = logging.getLogger(__name__)

_NOT_PASSED = (
    "the back end passes no dsl.TaskConfig, and kfp.local never does: nothing that the pipeline"
    " sets on this task, such as set_accelerator_limit, reaches the replicas; set train_gpus and"
    " pod instead"
)


@dataclass(frozen=True)
class TaskReport:
    """The task's settings and checks, as the page of the job shows them.

    Attributes:
        settings: What the task sets, in the form of `pod.all`.
        notes: What the replicas get in another form, or do not get, and what `pod` replaces.
        findings: The result of the cluster's checks of the replicas; empty if they did not run.
    """

    settings: Mapping[str, Any]
    notes: Sequence[str] = ()
    findings: Sequence[Finding] = ()

    @property
    def lines(self) -> list[str]:
        """The settings as YAML, without secrets."""
        text = yaml.safe_dump(masked(dict(self.settings)), sort_keys=False, allow_unicode=True)
        return text.splitlines()


def apply(parameters: Mapping[str, Any], problems: Problems) -> tuple[dict[str, Any], TaskReport]:
    """Return the run parameters with the task's settings, and a report on these settings.

    Args:
        parameters: The run parameters, and `task_config` if the component has that input.
        problems: Gets everything that is wrong with the task.
    """
    run = dict(parameters)
    config = run.pop("task_config", None)
    if config is None:
        return run, TaskReport({})
    if not is_passed(config):
        log.warning("%s", _NOT_PASSED)
        return run, TaskReport({}, [_NOT_PASSED])
    task = problems.of(lambda: TaskSettings.read(config))
    applied = problems.of(lambda: task.below(run)) if task else None
    if not (task and applied):
        return run, TaskReport({})
    merged, replaced = applied
    notes = [*task.notes, *replaced]
    for note in notes:
        log.warning("%s", note)
    if task.gpus and parameters["train_gpus"] == 0:
        count, resource = task.gpus, task.settings["gpu_resource"]
        notes.append(f"train_gpus is {count}, from the task's accelerator {resource}")
        log.info("%s", notes[-1])
    return merged, TaskReport(task.settings, notes)
