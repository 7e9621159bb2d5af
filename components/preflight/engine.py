"""Checks everything a run needs before it costs anything, and stores the run's copy of the code.

A wrong label column or a missing Secret would otherwise fail hours later, after data was prepared
and GPUs were booked. So every check that needs no pod runs here, and as many problems as possible
are reported in one error. The parameters come first, because they name the store that a failure is
recorded in; then the cluster, the store, the code and the data. The copy of the code, and whether
an earlier run makes training unnecessary, are stored only after all checks: they would otherwise
replace the records of a run that has trained. Called by preflight's component.
"""

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
from kfp_tfjob.components.code_copy import check_code, code_of_run, save_code
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

# A wrong endpoint is reported within seconds, because a store that is silent for 15 s most likely
# does not exist.
_PATIENCE = Patience(seconds=15, silence=15)
_SECRET_IN_A_PARAMETER = (
    "`{}` looks like a secret, and Kubeflow Pipelines shows every parameter; in `pod`, set the"
    ' variable from a Kubernetes Secret: `{{"secret": "NAME", "key": "KEY"}}`'
)
_TABLE_MODEL = "kfp_tfjob.trainer.models:mlp"  # the default of model_code
_IMAGE_MODEL = "kfp_tfjob.trainer.models:cnn"


@dataclass(frozen=True)
class Checked:
    """The step's outputs, as the component describes them, and the table of parameters."""

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
        ConfigurationError: Parameters, credentials or code are wrong; the error lists all problems.
        DataError: The source is missing or its header is unusable.
        StoreUnavailableError: The store does not answer.
    """
    requested = completed(values, {"train_image": values["train_image"] or TRAIN})
    try:
        run_parameters.check(requested)
        pods = _step_pods(requested, step_resources or {})
        tick = _tick(requested, scheduled_time)
    except ConfigurationError:
        report.step = _try_open_step(run_id, requested, task_key)
        raise
    data_uri = address_fields.fill(str(requested["data_uri"]), tick)
    values = completed(requested, {"data_uri": data_uri})
    step = _open_step(run_id, values, task_key)
    run_path = _path_below_runs(step, values, tick)
    if run_path:
        step = replace(step, folder=step.layout.run(step.run_id, run_path))
    notified, findings = _check_webhook()
    findings += [warning(_SECRET_IN_A_PARAMETER.format(path)) for path in plain_secrets(values)]
    job_kind = ""
    if not is_local():
        job_kind, cluster_findings = _check_cluster(step.run_id, values, task_key, pods)
        findings += cluster_findings
    try:
        findings += check_store(step.store, step.run.base, step.layout.root)
    except StepError as error:
        is_unavailable = isinstance(error, StoreUnavailableError)
        if not is_unavailable:
            report.step = step
        # The findings may report a missing Secret, which explains the missing keys.
        problems = only(findings, Status.PROBLEM)
        # ConfigurationError is final. A later attempt helps only if nothing but the store is wrong.
        error_class = (
            StoreUnavailableError if is_unavailable and not problems else ConfigurationError
        )
        raise error_class(*error.problems, *problems, notes=_notes(findings)) from error
    log.info("%s can be written and read", step.layout.root)
    if run_path:
        # A continued run keeps the folder that its first attempt recorded.
        step = replace(step, folder=claim(step.store, step.layout, step.run_id, run_path))
        log.info("the folder of this run is %s", step.run.base)
    report.step = step

    records = Records(step)
    trained = records.trained()
    spec = run_parameters.job_spec(values, trained)
    code, code_findings = check_code(step, values)
    findings += code_findings
    for finding in only(findings, Status.WARNING, Status.WAITS):
        log.warning("%s", finding)
    evaluator_digest, evaluator_problems = check_evaluator(step.store, parse_gate(values["gate"]))
    source, data_problems = None, []
    if has_data(values):
        source, data_problems = _check_data(step, values, tick if values != requested else None)
    else:
        log.info("data_uri is empty: this run has no data, so its model is not evaluated")
    problems = only(findings, Status.PROBLEM)
    if evaluator_problems or problems:
        raise ConfigurationError(
            *problems, *evaluator_problems, *data_problems, notes=_notes(findings)
        )
    if data_problems:
        raise DataError(*data_problems, notes=_notes(findings))
    entry = ModelCode.of_run(values).entry(code.module)
    if source and source.pictures and entry == _TABLE_MODEL:
        entry = _IMAGE_MODEL
        findings.append(
            warning(
                f"the rows are images, so this run uses {_IMAGE_MODEL} instead of the default"
                " model, which is for tables"
            )
        )
    digest = source_digest(source) if source else ""
    if not code.in_image:
        claim_task(step, _PATIENCE.seconds)
    spec = replace(spec, model_entry=entry)
    dataset_digest = _dataset_digest(values, digest)
    # Before anything replaces the records of a run that has trained.
    require_same(trained, {**records.inputs(spec), "data": dataset_digest})
    code = code_of_run(step, code)
    inputs_digest, earlier = _check_unchanged(
        step, values, spec, code, dataset_digest, evaluator_digest
    )
    if earlier:
        head = unchanged_summary(step, str(values["model_name"]), earlier)
    else:
        waits = only(findings, Status.WAITS)
        head = "".join(f"**Warning:** {prose(finding)}\n\n" for finding in waits)
    return Checked(
        data_uri=str(values["data_uri"]),
        source_digest=digest,
        model_entry=entry,
        code_uri="" if earlier else save_code(step, code),
        changed=not earlier,
        evaluate=not earlier and run_parameters.evaluates(values, spec),
        inputs_digest=inputs_digest,
        job_kind=job_kind,
        table=head
        + run_parameters.table(requested, spec)
        + _resolved_addresses(step, values, requested, tick)
        + (f"\n**Kind of job:** {job_kind}\n" if job_kind else "")
        + ("" if source else "\n**Data:** none, so the model is not evaluated\n")
        + f"\n**Notifications:** {notified}.\n"
        + "".join(f"\n**Note:** {prose(finding)}\n" for finding in only(findings, Status.WARNING)),
        step_pods=step_pods.outputs(pods),
    )


def _step_pods(
    values: RunParameters, compiled: Mapping[str, Mapping[str, str]]
) -> dict[str, StepPod]:
    """Return the pods of prepare_data, evaluate and publish by step, after checking them."""
    pods = step_pods.step_pods(run_parameters.job_spec(values).pod, compiled)
    if not is_local():
        ConfigurationError.raise_if(step_pods.check(pods))
    elif ignored := [pod.key for pod in step_pods.asked_for(pods)]:
        log.info("%s: no effect in a local run", " and ".join(ignored))
    return pods


def _notes(findings: Sequence[Finding]) -> list[str]:
    """Return the warnings, which an error's message lists below its problems."""
    return [finding.text for finding in only(findings, Status.WAITS, Status.WARNING)]


def _check_webhook() -> tuple[str, list[Finding]]:
    """Return where notifications go, as Markdown, and a warning if its address is invalid."""
    try:
        webhook = Webhook.from_environment()
    except ConfigurationError as error:
        # A webhook is a convenience; the run itself does not depend on it.
        return "off", [Finding.of(problem, Status.WARNING) for problem in error.problems]
    if webhook is None:
        return f"off; the key {code_span(WEBHOOK_KEY)} of the Secret turns them on", []
    return f"on, to {code_span(webhook.host)}", []


def _tick(values: RunParameters, scheduled_time: str) -> Tick | None:
    """Return the run's tick; None without a valid time if no address has a date field."""
    try:
        return Tick.parse(scheduled_time)
    except ConfigurationError as error:
        addresses = ("data_uri", "output_uri")
        dated = [name for name in addresses if address_fields.has_time(str(values[name]))]
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


def _path_below_runs(step: Step, values: RunParameters, tick: Tick | None) -> str:
    """Return the path between `runs/` and the run's folder; empty for a plain output_uri."""
    name = str(values["model_name"]).strip()
    return address_fields.folder(step.layout.template, tick, name, values["train_gpus"])


def _resolved_addresses(
    step: Step, values: RunParameters, requested: RunParameters, tick: Tick | None
) -> str:
    """Return the tick and the addresses with their fields filled in, as Markdown.

    Args:
        step: The run and its store.
        values: The parameters with the fields filled in.
        requested: The parameters as the user wrote them.
        tick: The run's tick.

    Returns:
        The paragraphs; empty if no address has a field.
    """
    resolved = {"the data of this run": values["data_uri"]} if values != requested else {}
    if step.layout.template:
        resolved["the folder of this run"] = str(step.run.base)
    if not resolved:
        return ""
    paragraphs = [f"**This run's tick:** {code_span(tick)}, in UTC"] if tick else []
    for name, uri in resolved.items():
        paragraphs.append(f"**{name[0].upper()}{name[1:]}:** {code_span(uri)}")
    return "\n" + "\n\n".join(paragraphs) + "\n"


def _open_step(run_id: str, values: RunParameters, task_key: str) -> Step:
    return open_step(
        "preflight",
        run_id,
        values["output_uri"],
        storage_endpoint=values["storage_endpoint"],
        storage_region=values["storage_region"],
        task_key=task_key,
        patience=_PATIENCE,
    )


def _try_open_step(run_id: str, values: RunParameters, task_key: str) -> Step | None:
    """Return the step, to store the failure in; None if the store's parameters are invalid."""
    try:
        return _open_step(run_id, values, task_key)
    except StepError:
        return None


def _check_cluster(
    run_id: str, values: RunParameters, task_key: str, pods: Mapping[str, StepPod]
) -> tuple[str, list[Finding]]:
    """Check the cluster, and reject paths that exist only on the user's machine.

    Returns:
        The kind of job that the cluster offers, empty if that is unknown, and the findings.
    """
    # They load the Kubernetes client, which a local run does not need.
    from kfp_tfjob.checks.engine import At, check
    from kfp_tfjob.checks.subject import Subject, open_cluster

    addresses = {"data_uri": str(values["data_uri"])} if has_data(values) else {}
    if not ModelCode.of_run(values).in_image:
        addresses["model_code"] = values["model_code"]
    gate = parse_gate(values["gate"])
    addresses |= own_reader.place(_data_options(values))
    addresses |= place_of(EvaluatorCode.path, (gate and gate.evaluator) or "")
    findings = list(local_paths(addresses))
    spec = run_parameters.job_spec(values)
    try:
        api = open_cluster(_PATIENCE.seconds, spec.kind)
    except StepError as error:
        return "", [*findings, *map(Finding.of, error.problems)]
    described_pods = step_pods.asked_for(pods)
    subject = Subject(api, spec, run_id=run_id, task_key=task_key, step_pods=described_pods)
    findings += check(subject, At.RUN)
    if only(findings, Status.PROBLEM):
        return "", findings  # the run ends; a cluster that did not respond is not asked again
    try:
        return subject.settled.spec.kind.name, findings
    except StepError:  # `check` has reported it in the findings
        return "", findings


def _check_data(
    step: Step, values: RunParameters, tick: Tick | None
) -> tuple[sources.Source | None, list[Problem | str]]:
    """List the source and check its header.

    Args:
        step: The run and its store.
        values: The run parameters.
        tick: The run's tick if data_uri contains it; then missing data may only be late.

    Returns:
        The source, None if it cannot be listed, and the problems.
    """
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
    """Return the digest of the evaluator's code, empty without an evaluator, and its problems."""
    if not (gate and gate.evaluator):
        return "", []
    try:
        return EvaluatorCode.read(gate.evaluator, store).digest, []
    except ConfigurationError as error:
        return "", list(error.problems)


def _data_options(values: RunParameters) -> DataOptions:
    return parameters.parse(DataOptions, "data_options", values["data_options"])


def _dataset_digest(values: RunParameters, source_digest: str) -> str:
    """Return the dataset's digest; empty without data, as in an attempt's claim."""
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
        name="no-data-for-tick",
    )


def _check_unchanged(
    step: Step,
    values: RunParameters,
    spec: JobSpec,
    code: Code,
    dataset_digest: str,
    evaluator_digest: str,
) -> tuple[str, TrainedRun | None]:
    """Record whether an earlier run makes training unnecessary.

    Returns:
        The digest of the inputs, and the earlier run, None if this run must train. The digest is
        empty for a continued run, because an earlier attempt may have trained its model with
        another image, other variables or other replicas.
    """
    digest = unchanged.inputs_digest(values, spec, code, dataset_digest, evaluator_digest)
    skips = spec.options.when_unchanged == "skip"
    gate = (parse_gate(values["gate"]), evaluator_digest)
    earlier = None
    if skips:
        earlier = unchanged.find_earlier_run(step, str(values["model_name"]), digest, gate)
    unchanged.record_earlier_run(step, earlier)
    if earlier:
        log.info("nothing has changed since run %s: this run does not train", earlier.run_id)
    elif step.store.numbers(step.run.attempts):
        log.info("this run was continued, so `when_unchanged` does not compare later runs with it")
        digest = ""
    return digest, earlier
