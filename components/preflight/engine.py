"""Checks everything a run needs before it costs anything, and stores the run's copy of the code."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kfp_tfjob.checks import step_pods
from kfp_tfjob.checks.finding import Finding, Status, local_paths, only, warning
from kfp_tfjob.checks.step_pods import StepPod
from kfp_tfjob.checks.store import check_store
from kfp_tfjob.cluster.backend import is_local
from kfp_tfjob.components.code_copy import check_code, code_of_run, keep_code
from kfp_tfjob.components.launch_tfjob.records import Records, require_same
from kfp_tfjob.components.preflight import parameters as run_parameters
from kfp_tfjob.components.preflight import unchanged
from kfp_tfjob.components.prepare_data.source import resolve as sources
from kfp_tfjob.components.prepare_data.source.digest import source_digest
from kfp_tfjob.components.prepare_data.source.readers import own_reader
from kfp_tfjob.components.step import FailureReport, Step, open_step
from kfp_tfjob.components.summary import unchanged_summary
from kfp_tfjob.components.task_claim import claim_task
from kfp_tfjob.components.webhook import Webhook
from kfp_tfjob.jobs.spec import JobSpec
from kfp_tfjob.judging.evaluator_code import EvaluatorCode
from kfp_tfjob.options import address_fields
from kfp_tfjob.options import parse as parameters
from kfp_tfjob.options.address_fields import Tick
from kfp_tfjob.options.data import DataOptions
from kfp_tfjob.options.gate import GateOptions, parse_gate
from kfp_tfjob.options.images import TRAIN
from kfp_tfjob.options.no_data import has_data
from kfp_tfjob.options.parameter_masking import plain_secrets
from kfp_tfjob.options.pipeline import RunParameters, completed
from kfp_tfjob.storage.errors import (
    ConfigurationError,
    DataError,
    Problem,
    StepError,
    StoreUnavailableError,
)
from kfp_tfjob.storage.escaping import code as code_span
from kfp_tfjob.storage.escaping import prose
from kfp_tfjob.storage.options import WEBHOOK_KEY
from kfp_tfjob.storage.retry import Patience
from kfp_tfjob.storage.run_folder import claim
from kfp_tfjob.storage.store import Store
from kfp_tfjob.storage.training_cache import TrainedRun
from kfp_tfjob.user_code.model_code import Code, ModelCode
from kfp_tfjob.user_code.own_code import place_of

log = logging.getLogger(__name__)

# A wrong endpoint is reported within seconds: a store that is silent this long does not exist.
_PATIENCE = Patience(seconds=15, silence=15)
_SECRET_IN_A_PARAMETER = (
    "`{}` looks like a secret, and Kubeflow Pipelines shows every parameter; in `pod`, set the"
    ' variable from a Kubernetes Secret: `{{"secret": "NAME", "key": "KEY"}}`'
)
_PLAIN = "kfp_tfjob.trainer.models:mlp"
_OF_PICTURES = "kfp_tfjob.trainer.models:cnn"


@dataclass(frozen=True)
class Checked:
    """The outputs for later steps, as the component describes them, and the table for people."""

    data_uri: str
    source_digest: str
    model_entry: str
    code_uri: str
    changed: bool
    evaluate: bool
    inputs_digest: str
    job_kind: str
    table: str
    step_pods: tuple[Any, ...]


def run(
    report: FailureReport,
    run_id: str,
    values: Mapping[str, Any],
    scheduled_time: str = "",
    task_key: str = "",
    step_resources: Mapping[str, Mapping[str, str]] | None = None,
) -> Checked:
    """Check a run; the component describes the arguments.

    Raises:
        ConfigurationError: Parameters, credentials or code are wrong; it lists every problem.
        DataError: The source is missing or its header is unusable.
        StoreUnavailableError: The store does not answer.
    """
    given = completed(values, {"train_image": values["train_image"] or TRAIN})
    try:
        run_parameters.check(given)
        pods = _step_pods(given, step_resources or {})
        tick = _tick(given, scheduled_time)
    except ConfigurationError:
        report.step = _place_of_report(run_id, given, task_key)
        raise
    values = completed(given, {"data_uri": address_fields.fill(str(given["data_uri"]), tick)})
    step = _open_step(run_id, values, task_key)
    folder = _folder(step, values, tick)
    if folder:
        step = replace(step, place=step.layout.run(step.run_id, folder))
    notified, found = _check_webhook()
    found += [warning(_SECRET_IN_A_PARAMETER.format(path)) for path in plain_secrets(values)]
    kind = ""
    if not is_local():
        kind, of_cluster = _check_cluster(step.run_id, values, task_key, pods)
        found += of_cluster
    try:
        found += check_store(step.store, step.run.base, step.layout.root)
    except StepError as error:
        away = isinstance(error, StoreUnavailableError)
        if not away:
            report.step = step
        # The findings may report a missing Secret, which explains the missing keys.
        others = only(found, Status.PROBLEM)
        kind_of_error = StoreUnavailableError if away and not others else ConfigurationError
        raise kind_of_error(*error.problems, *others, notes=_notes(found)) from error
    log.info("%s can be written and read", step.layout.root)
    if folder:
        step = replace(step, place=claim(step.store, step.layout, step.run_id, folder))
        log.info("the folder of this run is %s", step.run.base)
    report.step = step

    records = Records(step)
    trained = records.trained()
    spec = run_parameters.job_spec(values, trained)
    code, of_code = check_code(step, values)
    found += of_code
    for it in only(found, Status.WARNING, Status.WAITS):
        log.warning("%s", it)
    evaluator, wrong_code = check_evaluator(step.store, parse_gate(values["gate"]))
    source, wrong_data = None, []
    if has_data(values):
        source, wrong_data = _check_data(step, values, tick if values != given else None)
    else:
        log.info("data_uri is empty: this run has no data, so its model is not evaluated")
    problems = only(found, Status.PROBLEM)
    if wrong_code or problems:
        raise ConfigurationError(*problems, *wrong_code, *wrong_data, notes=_notes(found))
    if wrong_data:
        raise DataError(*wrong_data, notes=_notes(found))
    entry = ModelCode.of_run(values).entry(code.module)
    if source and source.pictures and entry == _PLAIN:
        entry = _OF_PICTURES
        found.append(
            warning(
                f"the rows are images, so this run uses {_OF_PICTURES} instead of the default"
                " model, which is for tables"
            )
        )
    digest = source_digest(source) if source else ""
    if not code.in_image:
        claim_task(step, _PATIENCE.seconds)
    spec = replace(spec, model_entry=entry)
    dataset = _dataset_digest(values, digest)
    # Before anything replaces the records of a run that has trained.
    require_same(trained, {**records.inputs(spec), "data": dataset})
    code = code_of_run(step, code)
    inputs, earlier = _earlier(step, values, spec, code, dataset, evaluator)
    head = unchanged_summary(step, str(values["model_name"]), earlier) if earlier else ""
    if not earlier:
        head = "".join(f"**Warning:** {prose(it)}\n\n" for it in only(found, Status.WAITS))
    return Checked(
        data_uri=str(values["data_uri"]),
        source_digest=digest,
        model_entry=entry,
        code_uri="" if earlier else keep_code(step, code),
        changed=not earlier,
        evaluate=not earlier and run_parameters.evaluates(values, spec),
        inputs_digest=inputs,
        job_kind=kind,
        table=head
        + run_parameters.table(given, spec)
        + _resolved(step, values, given, tick)
        + (f"\n**Kind of job:** {kind}\n" if kind else "")
        + ("" if source else "\n**Data:** none, so the model is not evaluated\n")
        + f"\n**Notifications:** {notified}.\n"
        + "".join(f"\n**Note:** {prose(it)}\n" for it in only(found, Status.WARNING)),
        step_pods=step_pods.outputs(pods),
    )


def _step_pods(
    values: RunParameters, compiled: Mapping[str, Mapping[str, str]]
) -> dict[str, StepPod]:
    """Return the pods of steps."""
    found = step_pods.step_pods(run_parameters.job_spec(values).pod, compiled)
    if not is_local():
        ConfigurationError.raise_if(step_pods.check(found))
    elif asked := [it.key for it in step_pods.asked_for(found)]:
        log.info("%s: no effect in a local run", " and ".join(asked))
    return found


def _notes(found: Sequence[Finding]) -> list[str]:
    """Return what is no reason to fail, for the message of an error."""
    return [it.text for it in only(found, Status.WAITS, Status.WARNING)]


def _check_webhook() -> tuple[str, list[Finding]]:
    """Return who is notified of the end, and a warning if that cannot work."""
    try:
        webhook = Webhook.from_environment()
    except ConfigurationError as error:
        return "off", [Finding.of(it, Status.WARNING) for it in error.problems]
    if webhook is None:
        return f"off; the key {code_span(WEBHOOK_KEY)} of the Secret turns them on", []
    return f"on, to {code_span(webhook.host)}", []


def _tick(values: RunParameters, scheduled_time: str) -> Tick | None:
    """Return the run's tick; None if the back end gives none and no field needs it."""
    try:
        return Tick.parse(scheduled_time)
    except ConfigurationError as error:
        parameters = ("data_uri", "output_uri")
        dated = [it for it in parameters if address_fields.has_time(str(values[it]))]
        if not dated:
            return None
        raise ConfigurationError(
            Problem(
                f"{dated[0]} contains a date field, but the back end does not pass this run's time",
                received=f"{address_fields.TICK} {scheduled_time!r}",
                expected="the scheduled time, which Kubeflow Pipelines 2.17 passes",
                fix=f"upgrade Kubeflow Pipelines, or write the date itself into {dated[0]}",
                path=dated[0],
            )
        ) from error


def _folder(step: Step, values: RunParameters, tick: Tick | None) -> str:
    """Return the folders between `runs/` and this run; empty if output_uri shapes none."""
    name = str(values["model_name"]).strip()
    return address_fields.folder(step.layout.template, tick, name, values["train_gpus"])


def _resolved(step: Step, values: RunParameters, given: RunParameters, tick: Tick | None) -> str:
    """Return what the fields of this run stand for, in Markdown; empty if it has none."""
    found = {"the data of this run": values["data_uri"]} if values != given else {}
    if step.layout.template:
        found["the folder of this run"] = str(step.run.base)
    if not found:
        return ""
    when = [f"**This run's tick:** {code_span(tick)}, in UTC"] if tick else []
    where = [f"**{name[0].upper()}{name[1:]}:** {code_span(uri)}" for name, uri in found.items()]
    return "\n" + "\n\n".join([*when, *where]) + "\n"


def _open_step(run_id: str, values: RunParameters, task_key: str) -> Step:
    storage = (values["storage_endpoint"], values["storage_region"])
    where = (run_id, values["output_uri"], *storage, task_key)
    return open_step("preflight", *where, patience=_PATIENCE)


def _place_of_report(run_id: str, values: RunParameters, task_key: str) -> Step | None:
    """Return where to store the report; None if the store's parameters are wrong."""
    try:
        return _open_step(run_id, values, task_key)
    except StepError:
        return None


def _check_cluster(
    run_id: str, values: RunParameters, task_key: str, pods: Mapping[str, StepPod]
) -> tuple[str, list[Finding]]:
    """Check the cluster, and refuse paths that exist only on the user's machine.

    Returns:
        The kind of the job, if the cluster said it, and the findings.
    """
    # They load the Kubernetes client.
    from kfp_tfjob.checks.engine import At, check
    from kfp_tfjob.checks.subject import Subject, open_cluster

    given = {"data_uri": str(values["data_uri"])} if has_data(values) else {}
    if not ModelCode.of_run(values).in_image:
        given["model_code"] = values["model_code"]
    gate = parse_gate(values["gate"])
    given |= own_reader.place(_data_options(values))
    given |= place_of(EvaluatorCode.path, (gate and gate.evaluator) or "")
    found = list(local_paths(given))
    spec = run_parameters.job_spec(values)
    try:
        api = open_cluster(_PATIENCE.seconds, spec.kind)
    except StepError as error:
        return "", [*found, *map(Finding.of, error.problems)]
    asked = step_pods.asked_for(pods)
    subject = Subject(api, spec, run_id=run_id, task_key=task_key, step_pods=asked)
    found += check(subject, At.RUN)
    if only(found, Status.PROBLEM):
        return "", found  # the run ends; a cluster that did not respond is not asked again
    try:
        return subject.settled.spec.kind.name, found
    except StepError:  # which the check has found, too
        return "", found


def _check_data(
    step: Step, values: RunParameters, tick: Tick | None
) -> tuple[sources.Source | None, list[Problem | str]]:
    """Return the files and their problems; the tick is given if it decides which data is read."""
    options = _data_options(values)
    try:
        source = sources.list_source(step.store, values["data_uri"], options)
    except DataError as error:
        return None, list(_no_data_at(tick, values) if tick else error.problems)
    except StepError as error:
        return None, list(error.problems)
    try:
        return source, list(sources.check_header(source, values["data_label"], options))
    except StepError as error:
        return None, list(error.problems)


def check_evaluator(store: Store, gate: GateOptions | None) -> tuple[str, list[Problem | str]]:
    """Return the digest of the code of `gate.evaluator`, empty without one, and its problems."""
    if not (gate and gate.evaluator):
        return "", []
    try:
        return EvaluatorCode.read(gate.evaluator, store).digest, []
    except ConfigurationError as error:
        return "", list(error.problems)


def _data_options(values: RunParameters) -> DataOptions:
    return parameters.parse(DataOptions, "data_options", values["data_options"])


def _dataset_digest(values: RunParameters, source_digest: str) -> str:
    """Return the name of the run's dataset; empty without data, as in a claim."""
    if not source_digest:
        return ""
    return _data_options(values).dataset_digest(source_digest, values["data_label"])


def _no_data_at(tick: Tick, values: RunParameters) -> Iterator[Problem]:
    yield Problem(
        f"there is no data for the tick {tick}",
        received=repr(values["data_uri"]),
        expected="a file or a folder with data, written before the tick",
        fix="write the data, then retry this run, which keeps its tick; or schedule the run"
        " later; or read older data, for example with {date-1d} instead of {date}",
        path="data_uri",
    )


def _earlier(
    step: Step,
    values: RunParameters,
    spec: JobSpec,
    code: Code,
    dataset: str,
    evaluator_digest: str,
) -> tuple[str, TrainedRun | None]:
    """Return the digest of the inputs, and the earlier run that makes training unnecessary.

    The digest is empty for a run that continues: an earlier try may have trained its model with
    another image, other variables or other replicas.
    """
    digest = unchanged.inputs_digest(values, spec, code, dataset, evaluator_digest)
    skips = spec.options.when_unchanged == "skip"
    gate = (parse_gate(values["gate"]), evaluator_digest)
    found = unchanged.earlier(step, str(values["model_name"]), digest, gate) if skips else None
    unchanged.keep(step, found)
    if found:
        log.info("nothing has changed since run %s: this run does not train", found.run_id)
    elif step.store.numbers(step.run.attempts):
        log.info("this run was continued, so `when_unchanged` does not compare later runs with it")
        digest = ""
    return digest, found
