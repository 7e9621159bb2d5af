"""Renders a run's result, in Markdown for a panel 500 px wide.

The last step of a successful run shows it, because the exit task never runs twice: after a retry,
its page may describe an earlier attempt. All data comes from the steps' records in the store, so
any step can render it. Called by preflight, sync_output, evaluate, publish and finish.
"""

from __future__ import annotations

import logging
import os
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path

from kfp_tfjob.common.errors import ObjectNotFoundError, StepError
from kfp_tfjob.common.escaping import MOST, code, prose
from kfp_tfjob.common.formatting import counted
from kfp_tfjob.jobs.attempt_record import read_ends
from kfp_tfjob.judging.formatting import leaked_rows_note, number
from kfp_tfjob.options.metric_names import in_short
from kfp_tfjob.registry.champion import read_champion
from kfp_tfjob.registry.outcome import Outcome, outcome_of
from kfp_tfjob.registry.training_cache import TrainedRun
from kfp_tfjob.registry.verdict_record import verdict_in_force
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import LONGEST_SCHEMA, SCHEMA, SUSPICIOUS, RunLayout
from kfp_tfjob.storage.store import Store

from .step import FAILURE_FILE, Step

log = logging.getLogger(__name__)

WHY_NOT_EVALUATED = "train_options.evaluate is false"
WHY_NO_DATA = "the run has no data"


def read_outcome(step: Step) -> Outcome:
    """Return how the step's run, or its task in that run, ended; raises as `outcome_of`."""
    return outcome_of(step.store, step.layout, step.run, (step.run_id, step.task_key))


def suspicious_columns(store: Store, dataset_uri: str) -> str:
    """Return prepare_data's warning about columns that reveal the label; empty without one."""
    try:
        return store.read(S3Address.parse(dataset_uri) / SUSPICIOUS).decode()
    except ObjectNotFoundError:
        return ""


def summary(step: Step, model_name: str) -> str:
    """Return the summary of a run that has a verdict.

    On any error, the summary is shorter but the step does not fail: the model may already be
    published.
    """
    paragraphs: list[str] = []
    try:
        for paragraph in _paragraphs(step, model_name):
            paragraphs.append(paragraph)  # in a loop, so that an error keeps those before it
    except Exception as error:  # the step's outputs matter more than its summary
        _warn(error)
        paragraphs = paragraphs or [f"# Run {code(step.run_id)}"]
        paragraphs.append(f"All its output: {code(step.run.base)}")
    return "\n\n".join(paragraphs) + "\n"


def _warn(error: Exception) -> None:
    """Log why a summary is incomplete, with the traceback of a bug."""
    is_bug = not isinstance(error, StepError)
    log.warning("the run's summary is incomplete: %s", error, exc_info=is_bug)


def unchanged_summary(step: Step, model_name: str, earlier: TrainedRun) -> str:
    """Return the summary of a run that did not train because an earlier run had the same inputs."""
    paragraphs = [
        f"# Nothing has changed: {code(model_name)} was not trained again",
        f"**The same as in run** {code(earlier.run_id)}**:** the content of the data, the label and"
        " the data options, the model code and its hyperparameters, the train options that decide"
        " the result, epochs, batch size, replicas, image and gate.",
    ]
    try:
        verdict = verdict_in_force(step.store, RunLayout(S3Address.parse(earlier.run_uri)))
        outcome = "blessed" if verdict.blessed else "not blessed"
        paragraphs.append(f"**That run was {outcome}:** {prose(verdict.reason)}.")
        champion = read_champion(step.store, step.layout, model_name)
        if champion:
            trained_by = f"of run {code(champion.run_id)}"
            paragraphs.append(f"**Champion:** version {champion.version}, {trained_by}")
            paragraphs.append(f"**Its model:** {code(champion.version_uri)}")
        else:
            paragraphs.append("**Champion:** none yet")
    except Exception as error:  # the decision not to train does not depend on this summary
        _warn(error)
    paragraphs.append(f"**All output of that run:** {code(earlier.run_uri)}")
    paragraphs.append("To train anyway, set `train_options.when_unchanged` to `train`.")
    return "\n\n".join(paragraphs) + "\n\n"


def proven_summary(step: Step, why: str) -> str:
    """Return the summary of a run whose output was verified and whose model is not evaluated.

    Args:
        step: The run and its store.
        why: Why the model is not evaluated, such as WHY_NO_DATA.
    """
    paragraphs = [
        f"**Not evaluated:** {prose(why)}, so no model was evaluated or published.",
        f"**Training:** {'; '.join(_attempts(step)) or 'no attempt was recorded'}.",
        f"**All output of this run:** {code(step.run.base)}",
        f"**TensorBoard, on your machine:** {code(tensorboard_command(step), MOST)}",
    ]
    return "\n\n".join(paragraphs)


def tensorboard_command(step: Step) -> str:
    """Return the command that shows the curves of a run, during and after training."""
    if record := os.environ.get(FAILURE_FILE):  # a local run, whose store may run only with it
        home = str(Path(record).parents[2])
        return shlex.join(["kfp-tfjob", "tensorboard", step.run_id, "--home", home])
    endpoint = ["--endpoint", step.store.endpoint] if step.store.endpoint else []
    return shlex.join(["kfp-tfjob", "tensorboard", str(step.run.base), *endpoint])


def _paragraphs(step: Step, model_name: str) -> Iterator[str]:
    """Yield the paragraphs of an evaluated run's summary, the most important first."""
    outcome = read_outcome(step)
    verdict = outcome.verdict
    assert verdict is not None
    champion = read_champion(step.store, step.layout, model_name)
    if outcome.record:
        yield f"# Published: {code(model_name)}, version {outcome.record.version}"
    elif outcome.lost:
        yield f"# Not published: {code(model_name)} lost the race"
        yield f"**What happened:** {prose(outcome.lost.message)}."
    elif verdict.blessed:
        yield f"# Blessed: {code(model_name)}"
        yield "The step `publish` makes it the champion; its summary replaces this one."
    else:
        yield f"# Not published: {code(model_name)}"
    if winner := verdict.again:
        yield (
            f"**Evaluated again:** run {code(winner['run_id'])} was promoted as version"
            f" {winner['version']} after the first verdict, so the model was compared with that"
            " champion."
        )
    yield f"**Why:** {prose(verdict.reason)}."
    if note := leaked_rows_note(verdict.also_in_train, verdict.rows):
        yield f"**Known rows:** {note}."
    if suspicious := suspicious_columns(step.store, verdict.dataset_uri):
        yield f"**SUSPICIOUS:** {prose(suspicious)}."
    yield f"**On {counted(verdict.rows, 'test row')}:** {_metrics(verdict.metrics)}"
    dataset = S3Address.parse(verdict.dataset_uri)
    yield f"**Trained on:** {_dataset(step.store.read(dataset / SCHEMA, LONGEST_SCHEMA))}"
    yield f"**Training:** {'; '.join(_attempts(step)) or 'no attempt was recorded'}."
    if champion:
        yield f"**Champion:** version {champion.version}, {code(champion.version_uri)}"
        record = step.layout.model(model_name).champion(champion.number)
        yield f"**Champion record:** {code(record)}"
    else:
        yield "**Champion:** none yet"
    yield f"**Dataset:** {code(dataset)}"
    yield f"**Model of this run:** {code(step.run.model)}"
    yield f"**Verdict and report:** {code(step.run.evaluation)}"
    yield f"**All output of this run:** {code(step.run.base)}"
    yield f"**TensorBoard, on your machine:** {code(tensorboard_command(step), MOST)}"


def _metrics(metrics: Mapping[str, float | None]) -> str:
    main_metrics = in_short(metrics)
    return ", ".join(f"{code(name)} {number(metric)}" for name, metric in main_metrics.items())


def _dataset(schema_json: bytes) -> str:
    """Describe a dataset's features, label and rows in one line."""
    from kfp_tfjob.features.schema import Schema  # it loads pyarrow, which most steps do not need

    schema = Schema.from_bytes(schema_json)
    rows = ", ".join(f"{name} {count:,}" for name, count in schema.rows.items())
    features = counted(len(schema.features), "feature")
    if schema.picture:
        features = f"images of {' x '.join(map(str, schema.picture.shape))} values"
    return f"{features} for the label {code(schema.label.name)}; rows: {rows}"


def _attempts(step: Step) -> Iterator[str]:
    """Yield every attempt's job, outcome and seconds as one line, the newest last."""
    for attempt, end in read_ends(step.store, step.run).items():
        if end is None:
            yield f"attempt {attempt} has no record of its end"
            continue
        durations = ", ".join(
            f"{phase} {seconds:.0f} s" for phase, seconds in end.seconds.items() if seconds
        )
        namespace = f" in namespace {code(end.namespace)}" if end.namespace else ""
        job = code(end.job or "recorded by its chief")
        yield (
            f"attempt {attempt} {end.verdict.replace('_', ' ')}, {counted(len(end.pods), 'pod')},"
            f" {durations or 'less than a second'}, {job}{namespace}"
        )
