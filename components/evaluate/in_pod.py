"""Does the work of evaluate in a pod of its own, which `pod.evaluate` asks for.

The step reads verdict, report and what else it shows from the store.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from kfp_tfjob.components.evaluate.engine import Evaluation, run
from kfp_tfjob.components.step import Step
from kfp_tfjob.components.step_job import GPUS, JOB_UID
from kfp_tfjob.components.step_job_pod import work
from kfp_tfjob.storage.errors import ObjectNotFoundError, Problem, StepError


def evaluate(step: Step, inputs: Mapping[str, Any]) -> None:
    """Judge the model, and store what the step shows besides verdict and report.

    Args:
        step: The run and its store.
        inputs: The arguments of `engine.run`.
    """
    done = run(step, **inputs, gpus=int(os.environ.get(GPUS, 0)))
    shown = {
        "job_uid": os.environ[JOB_UID],
        "blessed": done.blessed,
        "metrics": done.metrics,
        "confusion": done.confusion,
        "roc": done.roc,
    }
    step.store.write(step.run.shown, json.dumps(shown).encode(), "application/json")


def run_or_read(
    step: Step,
    elsewhere: Callable[[Mapping[str, Any]], str] | None,
    dataset_uri: str,
    model_name: str,
    model_uri: str,
    gate: Mapping[str, Any],
    inputs_digest: str,
) -> Evaluation:
    """Judge the model of a run here, or in a pod of its own.

    Args:
        step: The run and its store.
        elsewhere: Does the work in a pod of its own, and returns the uid of its Job; None to do it
            here.
        dataset_uri: As of `engine.run`, like all that follow.
        model_name: The name used to look up the champion.
        model_uri: The SavedModel.
        gate: As in the form.
        inputs_digest: From preflight.

    Raises:
        StepError: As of `engine.run`, or the pod failed.
    """
    if elsewhere is None:
        return run(step, dataset_uri, model_name, model_uri, gate, inputs_digest)
    inputs = {"dataset_uri": dataset_uri, "model_name": model_name, "model_uri": model_uri}
    return _result(step, elsewhere({**inputs, "gate": gate, "inputs_digest": inputs_digest}))


def _result(step: Step, job_uid: str) -> Evaluation:
    """Return what the pod of a Job has stored.

    Args:
        step: The run and its store.
        job_uid: The Job; a pod of an earlier one may have stored something, too.

    Raises:
        StepError: The pod has stored nothing.
    """
    try:
        shown = json.loads(step.store.read(step.run.shown))
    except ObjectNotFoundError:
        shown = {}
    if shown.get("job_uid") != job_uid:
        raise StepError(
            Problem(
                "the pod of evaluate has ended, but its result is not in the store",
                received=f"{step.run.shown} of Job {shown.get('job_uid')}",
                expected=f"the result of Job {job_uid}",
                fix="start the run again",
            )
        )
    return Evaluation(
        blessed=shown["blessed"],
        verdict_uri=str(step.run.verdict),
        metrics=shown["metrics"],
        html=step.store.read(step.run.report).decode(),
        confusion=shown["confusion"] and tuple(shown["confusion"]),
        roc=shown["roc"] and tuple(shown["roc"]),
    )


if __name__ == "__main__":
    sys.exit(work("evaluate", evaluate))
