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
from kfp_tfjob.common.errors import (
    ConfigurationError,
    DataError,
    Problem,
    StepError,
    StoreUnavailableError,
)
from kfp_tfjob.common.escaping import code as code_span
from kfp_tfjob.common.escaping import prose
from kfp_tfjob.jobs.spec import JobSpec
from kfp_tfjob.judging.evaluator_code import EvaluatorCode
from kfp_tfjob.options import address_fields
from kfp_tfjob.options.address_fields import Tick
from kfp_tfjob.options.container_images import TRAIN
from kfp_tfjob.options.gate import GateOptions
from kfp_tfjob.options.parameters import completed
from kfp_tfjob.options.pod import PodOptions
from kfp_tfjob.options.train import NPY, images_as_npy
from kfp_tfjob.registry.run_folder import claim
from kfp_tfjob.storage.retry import Patience
from kfp_tfjob.storage.secret_keys import WEBHOOK_KEY
from kfp_tfjob.storage.store import Store
from kfp_tfjob.user_code.own_code import code_address_of

from ..code_copy import check_code, code_of_run, save_code
from ..launch_tfjob.records import Records, require_same
from ..prepare_data.images.image_list import with_images
from ..prepare_data.source import resolve as sources
from ..prepare_data.source.digest import source_digest
from ..prepare_data.source.readers import own_reader
from ..step import FailureReport, Step, open_step
from ..summary import unchanged_summary
from ..task_claim import claim_task
from ..webhook import Webhook
from . import parameters as run_parameters
from . import unchanged
from .plan import Output, RunData, RunPlan
from .unchanged import UsedGate

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
        plan = RunPlan.parse(requested)
        pods = _step_pods(plan.job.pod, step_resources or {})
        tick = _tick(plan.dated_addresses, scheduled_time)
    except ConfigurationError:
        report.step = _try_open_step(run_id, Output.of_run(requested), task_key)
        raise
    data = plan.data.at(tick) if plan.data else None
    is_dated = data != plan.data
    plan = replace(plan, data=data)
    step = _open_step(run_id, plan.output, task_key)
    # The path between `runs/` and the run's folder; empty for a plain output_uri.
    run_path = address_fields.folder(step.layout.template, tick, plan.model_name, plan.job.gpus)
    if run_path:
        step = replace(step, folder=step.layout.run(step.run_id, run_path))
    notified, findings = _check_webhook()
    findings += [warning(_SECRET_IN_A_PARAMETER.format(path)) for path in plan.secret_paths]
    job_kind = ""
    if not is_local():
        addresses = _input_addresses(plan)
        job_kind, cluster_findings = _check_cluster(
            step.run_id, plan.job, addresses, task_key, pods
        )
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
    trained = records.trained_inputs()
    spec = plan.job.continued(trained)
    code, code_findings = check_code(
        step, plan.model_code, spec.image, spec.options.command, spec.hyperparameters
    )
    findings += code_findings
    for finding in only(findings, Status.WARNING, Status.WAITS):
        log.warning("%s", finding)
    evaluator_digest, evaluator_problems = check_evaluator(step.store, plan.gate)
    source, data_problems = None, []
    if data:
        source, data_problems = _check_data(step, data, tick if is_dated else None)
    else:
        log.info("data_uri is empty: this run has no data, so its model is not evaluated")
    problems = [*only(findings, Status.PROBLEM), *evaluator_problems]
    if source and source.pictures and spec.options.stage_data == NPY:
        problems.append(images_as_npy())
    if problems:
        raise ConfigurationError(*problems, *data_problems, notes=_notes(findings))
    if data_problems:
        raise DataError(*data_problems, notes=_notes(findings))
    entry = plan.model_code.entry(code.module)
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
    # Empty without data, as in an attempt's claim.
    dataset_digest = data.digest(digest) if data and digest else ""
    # Before anything replaces the records of a run that has trained.
    require_same(trained, {**records.inputs(spec), "data": dataset_digest})
    code = code_of_run(step, code)
    gate = UsedGate(plan.gate, evaluator_digest)
    inputs_digest = unchanged.inputs_digest(spec, code, dataset_digest, plan.contract, gate)
    earlier = None
    if spec.options.when_unchanged == "skip":
        earlier = unchanged.find_earlier_run(step, plan.model_name, inputs_digest, gate)
    unchanged.record_earlier_run(step, earlier)
    if not earlier and step.store.numbers(step.run.attempts):
        # An earlier attempt may have trained its model with another image, other variables or other
        # replicas.
        log.info("this run was continued, so `when_unchanged` does not compare later runs with it")
        inputs_digest = ""
    if earlier:
        head = unchanged_summary(step, plan.model_name, earlier)
    else:
        waits = only(findings, Status.WAITS)
        head = "".join(f"**Warning:** {prose(finding)}\n\n" for finding in waits)
    return Checked(
        data_uri=data.uri if data else "",
        source_digest=digest,
        model_entry=entry,
        code_uri="" if earlier else save_code(step, code),
        changed=not earlier,
        evaluate=not earlier and plan.evaluates,
        inputs_digest=inputs_digest,
        job_kind=job_kind,
        table=head
        + run_parameters.table(plan.parameters, spec)
        + _resolved_addresses(step, data.uri if data and is_dated else "", tick)
        + (f"\n**Kind of job:** {job_kind}\n" if job_kind else "")
        + ("" if source else "\n**Data:** none, so the model is not evaluated\n")
        + f"\n**Notifications:** {notified}.\n"
        + "".join(f"\n**Note:** {prose(finding)}\n" for finding in only(findings, Status.WARNING)),
        step_pods=step_pods.outputs(pods),
    )


def _step_pods(pod: PodOptions, compiled: Mapping[str, Mapping[str, str]]) -> dict[str, StepPod]:
    """Return the pods of prepare_data, evaluate and publish by step, after checking them."""
    pods = step_pods.step_pods(pod, compiled)
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


def _tick(addresses: Mapping[str, str], scheduled_time: str) -> Tick | None:
    """Return the run's tick; None without a valid time if no address has a date field.

    Args:
        addresses: The addresses that may have one, by parameter.
        scheduled_time: The tick from the back end.
    """
    try:
        return Tick.parse(scheduled_time)
    except ConfigurationError as error:
        dated = [name for name, uri in addresses.items() if address_fields.has_time(uri)]
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


def _resolved_addresses(step: Step, data_uri: str, tick: Tick | None) -> str:
    """Return the tick and the addresses with their fields filled in, as Markdown.

    Args:
        step: The run and its store.
        data_uri: The data's address if it had fields; otherwise empty.
        tick: The run's tick.

    Returns:
        The paragraphs; empty if no address has a field.
    """
    resolved = {"the data of this run": data_uri} if data_uri else {}
    if step.layout.template:
        resolved["the folder of this run"] = str(step.run.base)
    if not resolved:
        return ""
    paragraphs = [f"**This run's tick:** {code_span(tick)}, in UTC"] if tick else []
    for name, uri in resolved.items():
        paragraphs.append(f"**{name[0].upper()}{name[1:]}:** {code_span(uri)}")
    return "\n" + "\n\n".join(paragraphs) + "\n"


def _open_step(run_id: str, output: Output, task_key: str) -> Step:
    return open_step(
        "preflight",
        run_id,
        output.uri,
        storage_endpoint=output.endpoint,
        storage_region=output.region,
        task_key=task_key,
        patience=_PATIENCE,
    )


def _try_open_step(run_id: str, output: Output, task_key: str) -> Step | None:
    """Return the step, to store the failure in; None if the store's parameters are invalid."""
    try:
        return _open_step(run_id, output, task_key)
    except StepError:
        return None


def _input_addresses(plan: RunPlan) -> dict[str, str]:
    """Return the addresses of the data and of all code outside the images, by parameter."""
    addresses = {"data_uri": plan.data.uri} if plan.data else {}
    if not plan.model_code.in_image:
        addresses["model_code"] = plan.parameters["model_code"]
    if plan.data:
        addresses |= own_reader.code_address(plan.data.options)
    return addresses | code_address_of(
        EvaluatorCode.path, (plan.gate and plan.gate.evaluator) or ""
    )


def _check_cluster(
    run_id: str,
    spec: JobSpec,
    addresses: Mapping[str, str],
    task_key: str,
    pods: Mapping[str, StepPod],
) -> tuple[str, list[Finding]]:
    """Check the cluster, and reject addresses that exist only on the user's machine.

    Returns:
        The kind of job that the cluster offers, empty if that is unknown, and the findings.
    """
    # They load the Kubernetes client, which a local run does not need.
    from kfp_tfjob.checks.engine import At, check
    from kfp_tfjob.checks.subject import Subject, open_cluster

    findings = list(local_paths(addresses))
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
    step: Step, data: RunData, tick: Tick | None
) -> tuple[sources.Source | None, list[Problem | str]]:
    """List the source and check its header.

    Args:
        step: The run and its store.
        data: The data.
        tick: The run's tick if data_uri contains it; then missing data may only be late.

    Returns:
        The source, None if it cannot be listed, and the problems.
    """
    try:
        source = sources.list_source(step.store, data.uri, data.options)
    except DataError as error:
        return None, list(_no_data_at(tick, data.uri) if tick else error.problems)
    except StepError as error:
        return None, list(error.problems)
    try:
        source = with_images(source, data.label, data.options)
        return source, list(sources.check_header(source, data.label, data.options))
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


def _no_data_at(tick: Tick, data_uri: str) -> Iterator[Problem]:
    yield Problem(
        f"there is no data for the tick {tick}",
        received=repr(data_uri),
        expected="a file or a folder with data, written before the tick",
        fix="write the data, then retry this run, which keeps its tick; or schedule the run"
        " later; or read older data, for example with {date-1d} instead of {date}",
        path="data_uri",
        name="no-data-for-tick",
    )
