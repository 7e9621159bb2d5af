"""Checks whether a run's pods fit on the nodes: sizes, selectors, tolerations, shared GPUs.

More nodes may appear when pods wait for them, so these checks warn and do not end a run. Only parts
of a GPU are rejected, because all-reduce between them never works. Called by the table of checks,
and by the launcher for a job whose pods wait.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from kubernetes.client import ApiClient

from kfp_tfjob.cluster import capacity
from kfp_tfjob.cluster.api_errors import ForbiddenError
from kfp_tfjob.cluster.create_job import lost_field, lost_fields
from kfp_tfjob.common.errors import StepError
from kfp_tfjob.common.formatting import counted
from kfp_tfjob.jobs.job_identity import Identity
from kfp_tfjob.jobs.kind import Replica
from kfp_tfjob.jobs.manifest import build_job
from kfp_tfjob.jobs.objects import Object
from kfp_tfjob.jobs.spec import JobSpec
from kfp_tfjob.jobs.status import replicas

from .finding import Finding, ok, unknown, waits
from .remedies import parameter as decided_by
from .step_pods import too_large
from .subject import Subject

_SHARED = "nvidia.com/gpu.sharing-strategy"
_LESS = "request less, such as pod.all.cpu=1 and pod.all.memory=4Gi, or add nodes"
_TOLERATE = "tolerate the taints of more nodes with pod.all.tolerations, or add nodes"


def affinity(subject: Subject) -> Iterator[Finding]:
    """Yield a finding for each field of an affinity that the SDK would drop.

    No other parameter holds parts of a manifest.
    """
    for role, settings in subject.spec.pod.of_replicas.items():
        if declared := settings.affinity:
            manifest = declared.model_dump(exclude_none=True)
            for path, value in lost_fields(ApiClient(), manifest, "V1Affinity"):
                yield Finding.of(lost_field(f"pod.{role}.affinity{path}", value))


def nodes(subject: Subject) -> Iterator[Finding]:
    """Check that the replicas and the steps' pods fit on the nodes."""
    try:
        existing = subject.nodes
    except StepError as error:
        yield from shared_gpus(subject.spec, [])
        if isinstance(error, ForbiddenError):
            raise
        # The comparison warns; it must not end a run.
        yield unknown("whether the job fits on the nodes was not checked", str(error))
        return
    yield ok(counted(len(existing), "node"))
    yield from shared_gpus(subject.spec, existing)
    sentences = list(too_small(subject.spec, existing))
    yield from (waits(sentence, remedy(subject.spec, existing)) for sentence in sentences)
    for pod in subject.step_pods:
        fix = f"lower {pod.key}, or add nodes"
        yield from (waits(sentence, fix) for sentence in too_large(pod, existing))


def remedy(spec: JobSpec, nodes: Sequence[Object]) -> str:
    """Return the fix for replicas that do not fit on the nodes: smaller ones, or tolerations."""
    without_taints = [{**node, "spec": {}} for node in nodes]
    return _LESS if list(too_small(spec, without_taints)) else _TOLERATE


def too_small(spec: JobSpec, nodes: Sequence[Object]) -> Iterator[str]:
    """Yield a sentence for each role, or for the whole job, that does not fit on the nodes."""
    if spec.pod.all.queue:
        # Kueue adds its flavor's tolerations and selector when it admits the job.
        nodes = [{**node, "spec": {}} for node in nodes]
    shortages = list(_too_small_for_one(spec, nodes))
    yield from shortages
    total_shortage = capacity.lacks_room(build_job(spec, Identity("run", 1)), nodes)
    if nodes and total_shortage and not shortages:
        yield f"{total_shortage}, so the pods will wait for nodes"


def _too_small_for_one(spec: JobSpec, nodes: Sequence[Object]) -> Iterator[str]:
    """Yield a sentence for each role whose pods do not fit, even if nothing else runs."""
    for replica in _replicas(spec):
        role, count, settings = replica.role, replica.count, spec.pod.of(replica.role)
        devices = {str(settings.gpu_resource): spec.gpus_of(role)} if spec.gpus_of(role) else {}
        devices |= settings.resources or {}
        if not (devices or nodes):
            continue  # a cluster that scales from zero may add nodes of any size
        set_by = partial(decided_by, spec, role)
        if reason := capacity.no_room(replica.pod, count, nodes, f"one {role}", set_by):
            each = " and ".join(f"{amount} {name}" for name, amount in devices.items())
            each = f" with {each} each" if each else ""
            yield (
                f"{count} {role}{'s' * (count > 1)}{each} requested, but {reason}, so the pods will"
                " wait for nodes"
            )


def _replicas(spec: JobSpec) -> list[Replica]:
    return replicas(build_job(spec, Identity("run", 1)))


def shared_gpus(spec: JobSpec, nodes: Sequence[Object]) -> Iterator[Finding]:
    """Reject parts of a GPU for all-reduce, because NCCL does not run between them."""
    if spec.options.command or spec.replicas * spec.gpus < 2:
        return
    for replica in _replicas(spec):
        role, pod = replica.role, replica.pod
        if role not in ("chief", "worker"):
            continue
        resource = str(spec.pod.of(role).gpu_resource)
        fitting = [node for node in nodes if capacity.fits(node, pod)]
        fitting = [] if spec.pod.all.queue else fitting  # the queue's flavor chooses the nodes
        labels = [node["metadata"].get("labels") or {} for node in fitting]
        is_shared = any(of_node.get(_SHARED, "none") not in ("", "none") for of_node in labels)
        if "/mig-" in resource or resource.endswith(".shared") or is_shared:
            yield Finding(
                f"a {role} would get a part of a GPU, but all-reduce needs whole GPUs",
                received=resource + (f" on nodes with {_SHARED}" if is_shared else ""),
                expected="whole GPUs, or one replica with one part of a GPU",
                fix="correct pod.all.gpu_resource or node_selector, or set train_workers to 0",
            )
            return
