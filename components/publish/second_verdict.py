"""Judges a model a second time, because a different run was promoted after its verdict."""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path

from kfp_tfjob.components.step import Step
from kfp_tfjob.storage.formatting import counted
from kfp_tfjob.storage.verdict_record import ModelVerdict, keep_second

log = logging.getLogger(__name__)


def store_second_verdict(step: Step, dataset_uri: str, gpus: int = 0) -> None:
    """Judge the model of a run against the champion of now, and store the second verdict.

    Args:
        step: The run and its store.
        dataset_uri: The dataset that it was evaluated on.
        gpus: How many GPUs the models may use.

    Raises:
        ConfigurationError: There are fewer GPUs.
        DataError: The model or the dataset is gone or damaged.
    """
    from kfp_tfjob.judging.judge import Given, judge

    first = ModelVerdict.read(step.store, step.run.verdict)
    given = Given.parse(first.model_name, first.model_uri, dataset_uri, first.gate)
    with tempfile.TemporaryDirectory(prefix="publish-") as scratch:
        judged = judge(step.store, step.layout, given, Path(scratch), gpus)
    keep_second(step.store, step.run, judged.verdict)
    rows = counted(judged.verdict.rows, "test row")
    log.info("second verdict on %s: %s", rows, judged.decision.line)
