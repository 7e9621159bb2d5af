"""Checks in seconds what a run needs from the cluster: rights, the job kind, objects and GPUs."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kubernetes.client import ApiClient

from kfp_tfjob.checks.findings import Findings
from kfp_tfjob.checks.shortage import parameter as decided_by
from kfp_tfjob.checks.shortage import secret_fix, secrets_of
from kfp_tfjob.cluster import capacity, rights, support
from kfp_tfjob.cluster.backend import Object
from kfp_tfjob.cluster.client import PATIENCE, ClusterClient
from kfp_tfjob.cluster.create_job import lost_field, lost_fields
from kfp_tfjob.cluster.errors import ForbiddenError
from kfp_tfjob.jobs.kind import JobKind
from kfp_tfjob.jobs.manifest import Identity, build_job
from kfp_tfjob.jobs.spec import JobSpec
from kfp_tfjob.jobs.status import replicas
from kfp_tfjob.storage.credentials import SecretVolume
from kfp_tfjob.storage.errors import Problem, StepError

log = logging.getLogger(__name__)

_ASK = (
    "ask an administrator to run `kfp-tfjob install --apply` for this namespace and this account,"
    " or to apply deploy/base"
)
_SHARED = "nvidia.com/gpu.sharing-strategy"


def check(api: ClusterClient, spec: JobSpec, run_id: str, task_key: str = "") -> Findings:
    """Run every check on the cluster, even after the first problem.

    Args:
        api: The cluster, with the patience of a person.
        spec: The job.
        run_id: The run.
        task_key: The key of the task that launches the job; usually empty.
    """
    identity = Identity(run_id, 1, task_key=task_key)
    problems: list[Problem | str] = [*lost_affinity(spec)]
    warnings: list[str] = []
    for ask in (_rights, _version, _job, missing_objects):
        try:
            for found in ask(api, spec, identity):
                if isinstance(found, str):
                    warnings.append(found)
                else:
                    problems.append(found)
        except StepError as error:
            problems.extend(error.problems)
    warnings += _storage_secret(spec, api.namespace)
    nodes = nodes_of(api)
    problems += shared_gpus(spec, nodes or [])
    # Without the ClusterRole of deploy/optional/nodes, nodes cannot be listed: no warning.
    waits = list(too_small(spec, nodes)) if nodes is not None else []
    for warning in (*waits, *warnings):
        log.warning("%s", warning)
    return Findings(problems, warnings, waits)


def _rights(api: ClusterClient, spec: JobSpec, identity: Identity) -> Iterator[Problem | str]:
    needed = rights.to_run(api.kind)
    known = {(right.group, right.resource): right for right in needed}
    for lacking in rights.missing(api, needed):
        right = known[lacking.group, lacking.resource]
        yield Problem(
            f"the service account of this step lacks rights on {right.resource}",
            received=f"no {', '.join(lacking.verbs)} in namespace {api.namespace}",
            expected=f"{right} of the API group {right.group or 'core'}",
            fix=_ASK,
        )
    for lacking in rights.missing(api, rights.TO_STOP):
        yield _terminate_is_late(lacking, spec, _ASK)


def _terminate_is_late(lacking: rights.Right, spec: JobSpec, fix: str) -> str:
    """Return a warning that Terminate cannot stop the job at once."""
    lacks = f"the service account may not {lacking}"
    if lacking.resource == "pods":
        seconds = spec.pod.of("chief").grace_seconds
        return (
            f"{lacks}: after Terminate, the chief may run for its grace period, {seconds} s; {fix}"
        )
    seconds = spec.options.orphan_timeout_seconds
    return (
        f"{lacks}: if the back end ends the exit task with the run, the job stops only when its"
        " heartbeat times out, train_options.orphan_timeout_seconds"
        f" ({seconds} s) after Terminate; {fix}"
    )


def _version(api: ClusterClient, spec: JobSpec, identity: Identity) -> Iterator[Problem]:
    try:
        yield from support.too_old(api.request("GET", "/version", {}))
    except ForbiddenError:
        return


def lost_affinity(spec: JobSpec) -> Iterator[Problem]:
    """Yield the fields that the SDK would drop; no other parameter holds parts of a manifest."""
    for role, settings in spec.pod.of_replicas.items():
        if found := settings.affinity:
            given = found.model_dump(exclude_none=True)
            for path, value in lost_fields(ApiClient(), given, "V1Affinity"):
                yield lost_field(f"pod.{role}.affinity{path}", value)


def _job(api: ClusterClient, spec: JobSpec, identity: Identity) -> Iterator[Problem]:
    try:
        yield from support.try_job(api, build_job(spec, identity))
    except ForbiddenError:
        return  # reported by _rights


def missing_objects(
    api: ClusterClient, spec: JobSpec, identity: Identity | None = None
) -> Iterator[Problem | str]:
    """Yield a problem for each object that the job names and that does not exist."""
    hidden = set()
    for kind, name, parameter in sorted(set(_named(spec))):
        try:
            found = api.get(api.core(kind, name))
        except ForbiddenError:
            hidden.add(kind)
            continue
        if found is not None:
            continue
        yield Problem(
            f"{_KINDS[kind]} {name} does not exist in namespace {api.namespace}",
            received=name,
            expected="the name of an existing object",
            fix=f"create it, or correct {parameter}",
        )
    for kind in sorted(hidden):
        yield f"this account may not read {kind}, so it is unknown whether they exist"


def _storage_secret(spec: JobSpec, namespace: str) -> Iterator[str]:
    """Check the mounted Secret of the store; a missing Secret gives an empty mount.

    It is read as a file: deploy/ gives the account of a run no right to read Secrets.
    """
    if not SecretVolume.from_environment().has_keys():
        # Without it, the standard AWS credential chain applies, which may be intended.
        uses = [it for it in secrets_of(spec) if it.parameter == "storage_secret"]
        yield (
            f"Secret {spec.storage_secret} does not exist in namespace {namespace}, or is empty;"
            " replicas get their keys from the node or the service account. If that is not"
            f" intended, {secret_fix(uses, False, namespace)}"
        )


_KINDS = {
    "persistentvolumeclaims": "claim",
    "serviceaccounts": "service account",
}


def _named(spec: JobSpec) -> Iterator[tuple[str, str, str]]:
    """Yield kind, name and parameter of each required object; pods report missing Secrets."""
    if claim := spec.pod.chief.output_claim:
        yield "persistentvolumeclaims", claim, "pod.chief.output_claim"
    for role, settings in spec.pod.of_replicas.items():
        for volume in settings.volumes or ():
            yield "persistentvolumeclaims", volume.claim, f"pod.{role}.volumes"
        if settings.service_account:
            yield "serviceaccounts", settings.service_account, f"pod.{role}.service_account"


def nodes_of(api: ClusterClient) -> list[Object] | None:
    """Return the nodes; None if they cannot be listed."""
    try:
        return api.list("/api/v1/nodes")
    except StepError:
        return None


def too_small(spec: JobSpec, nodes: Sequence[Object]) -> Iterator[str]:
    """Compare the replicas' requests with the nodes that fit; more nodes may appear when needed."""
    found = list(_too_small_for_one(spec, nodes))
    yield from found
    together = capacity.lacks_room(build_job(spec, Identity("run", 1)), nodes)
    if nodes and together and not found:
        yield f"{together}: the pods will wait for nodes"


def _too_small_for_one(spec: JobSpec, nodes: Sequence[Object]) -> Iterator[str]:
    for role, pod, count in _templates(spec):
        gpus, resource = spec.gpus_of(role), str(spec.pod.of(role).gpu_resource)
        if not (gpus or nodes):
            continue  # a cluster that scales from zero may add nodes of any size
        asked = capacity.of_pod(pod)
        fitting = [node for node in nodes if capacity.fits(node, pod)]
        most = capacity.room(fitting, asked)
        if most >= count:
            continue
        each = f" with {gpus} {resource} each" if gpus else ""
        room = f"the nodes that fit have room for {most} now"
        if nodes and not fitting:
            room = "no current node fits its node selector and tolerations"
        elif small := capacity.too_much(fitting, asked) if fitting else {}:
            room = "the largest node that fits is too small: " + "; ".join(
                f"one {role} requests {capacity.shown(name, asked[name])} {name} in all, set by"
                f" {decided_by(spec, role, name)}, and node {node} can allocate"
                f" {capacity.shown(name, largest)}"
                for name, (largest, node) in small.items()
            )
        yield (
            f"{count} {role}{'s' * (count > 1)}{each} requested, but {room}: the pods will wait"
            " for nodes"
        )


def _templates(spec: JobSpec) -> Iterator[tuple[str, Mapping[str, Any], int]]:
    """Yield the role, the spec and the number of each kind of pod."""
    for item in replicas(build_job(spec, Identity("run", 1))):
        yield item.role, item.pod, item.count


def shared_gpus(spec: JobSpec, nodes: Sequence[Object]) -> Iterator[Problem]:
    """Refuse slices of a GPU for all-reduce: NCCL does not run between them."""
    if spec.options.command or spec.replicas * spec.gpus < 2:
        return
    for role, pod, _ in _templates(spec):
        if role not in ("chief", "worker"):
            continue
        resource = str(spec.pod.of(role).gpu_resource)
        fitting = [node for node in nodes if capacity.fits(node, pod)]
        labels = [node["metadata"].get("labels") or {} for node in fitting]
        sliced = any(item.get(_SHARED, "none") not in ("", "none") for item in labels)
        if "/mig-" in resource or resource.endswith(".shared") or sliced:
            yield Problem(
                f"a {role} would get a part of a GPU, but all-reduce needs whole GPUs",
                received=resource + (f" on nodes with {_SHARED}" if sliced else ""),
                expected="whole GPUs, or one replica with one part of a GPU",
                fix="correct pod.all.gpu_resource or node_selector, or set train_workers to 0",
            )
            return


def local_paths(given: Mapping[str, Any]) -> Iterator[Problem]:
    """Refuse paths on the user's machine, which no pod can read.

    Args:
        given: The parameters that name a place, by name.
    """
    for name, value in ((name, str(value)) for name, value in given.items()):
        if not value.strip().startswith("s3://"):
            yield Problem(
                f"{name} is a local path, which a pod on the cluster cannot read",
                received=value,
                expected="an address s3://BUCKET/KEY",
                fix=f"upload it and correct {name}",
                path=name,
            )


def open_cluster(seconds: float, kind: JobKind) -> ClusterClient:
    """Return the cluster this step runs on, with the patience of a person who waits.

    Raises:
        ConfigurationError: This step does not run on a cluster.
    """
    return ClusterClient.from_environment(replace(PATIENCE, seconds=seconds), kind)
