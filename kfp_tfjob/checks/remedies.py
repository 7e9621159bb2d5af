"""Remedies for pods that do not start: the run parameter to change, and its current value.

The scheduler and quotas name resources of Kubernetes, such as `requests.nvidia.com/gpu`. A user set
`train_gpus`, so the remedy names that. Called by the checks of quotas and nodes, and by the
launcher for a job whose pods wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from kfp_tfjob.cluster import waiting_reasons
from kfp_tfjob.jobs.objects import Object
from kfp_tfjob.jobs.spec import JobSpec
from kfp_tfjob.jobs.status import role_of
from kfp_tfjob.jobs.verdict import Verdict
from kfp_tfjob.options.pod import NATIVE_RESOURCES, SecretKey

_STORE_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
_VOLUMES = "volumes"
_TOGETHER = (
    "place all pods of a job together: with Kueue (pod.all.queue), or with Volcano or the"
    " coscheduling plugin (pod.all.scheduler)"
)


@dataclass(frozen=True)
class SecretUse:
    """A reference of a run's pods to a Secret.

    Attributes:
        name: The Secret.
        key: The key in it; empty if a pod uses the whole Secret.
        parameter: The run parameter that names it; empty if a webhook added the reference.
    """

    name: str
    key: str
    parameter: str


def remedy(
    verdict: Verdict,
    spec: JobSpec,
    pods: Iterable[Object],
    events: Iterable[Object],
) -> str:
    """Return a remedy for pods that wait for nodes or a quota; "" if no parameter helps.

    Args:
        verdict: The verdict on the job; only a waiting job has a remedy here.
        spec: The job.
        pods: The waiting pods, with the scheduler's messages.
        events: The namespace's events, with the messages of quotas.
    """
    if verdict not in (Verdict.UNSCHEDULABLE, Verdict.PARTLY_PLACED):
        return ""
    partly_placed = verdict == Verdict.PARTLY_PLACED
    to_lower = ["train_workers"] if partly_placed else []
    corrections: list[str] = []
    for pod in pods:
        for message in waiting_reasons.scheduler_says(pod):
            to_lower += _excessive_requests(spec, role_of(pod), message)
            corrections += _placement_corrections(spec, role_of(pod), message)
    quotas = set()
    for name, resources in waiting_reasons.exceeded_quotas(events):
        quotas.add(name)
        for resource in resources:
            to_lower += _parameters_in_quota(spec, resource)
    corrections += [f"have the ResourceQuota {name} raised" for name in sorted(quotas)]
    ways = [f"lower {' or '.join(dict.fromkeys(to_lower))}"] if to_lower else []
    ways += dict.fromkeys(corrections)
    if partly_placed:
        ways.append(_TOGETHER)
    elif to_lower and not quotas:
        ways.append("add larger or more nodes")
    return ", or ".join(ways)


def secret_remedy(
    spec: JobSpec, missing: Iterable[waiting_reasons.MissingSecret], namespace: str = ""
) -> str:
    """Return a remedy for the Secrets, or their keys, that pods wait for."""
    fixes = []
    for secret in missing:
        uses = [use for use in secrets_of(spec) if use.name == secret.name]
        uses = [use for use in uses if secret.key in ("", use.key)]
        if not uses:  # a webhook added the reference
            uses = [SecretUse(secret.name, secret.key or "KEY", "")]
        fixes.append(secret_fix(uses, bool(secret.key), namespace))
    return "; ".join(dict.fromkeys(fixes))


def secrets_of(spec: JobSpec) -> list[SecretUse]:
    """Return every reference of a run's pods to a Secret, without duplicates."""
    uses = [SecretUse(spec.storage_secret, name, "storage_secret") for name in _STORE_KEYS]
    for role, settings in {role: spec.pod.of(role) for role in spec.counts}.items():
        if settings.image_pull_secret:
            path = key(spec, role, "image_pull_secret")
            uses.append(SecretUse(settings.image_pull_secret, "", path))
        for secret in filter(None, (volume.secret_name for volume in settings.volumes or ())):
            uses.append(SecretUse(secret, "", key(spec, role, _VOLUMES)))
        # `settings.env` merges the role with `all`; the path names where the variable was set.
        role_env = getattr(spec.pod, role).env or {}
        for name, content in (settings.env or {}).items():
            if isinstance(content, SecretKey):
                path = f"pod.{role if name in role_env else 'all'}.env.{name}"
                uses.append(SecretUse(content.secret, content.key, path))
    return list(dict.fromkeys(uses))


def secret_fix(uses: Sequence[SecretUse], exists: bool, namespace: str = "") -> str:
    """Return the remedy for a Secret that does not exist, or that lacks keys.

    Args:
        uses: The failing uses of one Secret; at least one.
        exists: Whether the Secret exists, so that only keys are missing.
        namespace: The namespace for the command; empty for the current one.
    """
    keys = list(dict.fromkeys(use.key for use in uses if use.key))
    is_mounted = any(use.parameter.endswith(_VOLUMES) for use in uses)
    command = _create_command(uses[0].name, keys, is_mounted, namespace)
    fix = f"create the Secret: `{command}`"
    if exists:
        plural = "s" if len(keys) > 1 else ""
        fix = f"add the key{plural} {' and '.join(keys)} to Secret {uses[0].name}"
    parameters = " and ".join(dict.fromkeys(use.parameter for use in uses if use.parameter))
    return f"{fix}, or correct {parameters}" if parameters else fix


def _create_command(name: str, keys: Iterable[str], is_mounted: bool, namespace: str) -> str:
    """Return the kubectl command that creates a Secret, with placeholders for the content.

    A Secret without keys that is not mounted contains the password of a registry of images.
    """
    sources = [f"--from-literal={key}=..." for key in keys]
    if is_mounted:
        sources.append("--from-file=...")
    kind, options = "generic", " ".join(sources)
    if not sources:
        kind = "docker-registry"
        options = "--docker-server=... --docker-username=... --docker-password=..."
    in_namespace = f"-n {namespace} " if namespace else ""
    return f"kubectl {in_namespace}create secret {kind} {name} {options}"


def key(spec: JobSpec, role: str, field: str) -> str:
    """Return the path of the parameter that sets a role's field: under the role, or under `all`."""
    own = getattr(getattr(spec.pod, role), field)
    return f"pod.{'all' if own is None else role}.{field}"


def parameter(spec: JobSpec, role: str, resource: str) -> str:
    """Return the parameter that sets a replica's request for a resource, with its current value.

    It is empty if no parameter sets it.
    """
    settings = spec.pod.of(role)
    if field := NATIVE_RESOURCES.get(resource):
        return f"{key(spec, role, field)} (now {getattr(settings, field)})"
    if amount := (settings.resources or {}).get(resource):
        group = role if resource in (getattr(spec.pod, role).resources or {}) else "all"
        return f"pod.{group}.resources.{resource} (now {amount})"
    if resource != settings.gpu_resource:
        return ""
    name = f"pod.{role}.gpus" if role in ("ps", "evaluator") else "train_gpus"
    return f"{name} (now {spec.gpus_of(role)})"


def _excessive_requests(spec: JobSpec, role: str, message: str) -> Iterator[str]:
    """Yield the parameters of the resources that the scheduler calls insufficient."""
    for resource in waiting_reasons.insufficient(message):
        if path := parameter(spec, role, resource):
            yield path


def _placement_corrections(spec: JobSpec, role: str, message: str) -> Iterator[str]:
    """Yield corrections of parameters that exclude nodes, by the scheduler's message."""
    if "node affinity/selector" in message or "node selector" in message:
        settings = spec.pod.of(role)
        field = "affinity" if settings.affinity and not settings.node_selector else "node_selector"
        yield f"correct {key(spec, role, field)}"
    if "taint" in message:
        yield f"tolerate the taints of more nodes with {key(spec, role, 'tolerations')}"
    if "persistentvolumeclaim" in message.lower():
        own = role == "chief" and spec.pod.chief.output_claim
        yield f"correct {'pod.chief.output_claim or ' if own else ''}{key(spec, role, 'volumes')}"


def _parameters_in_quota(spec: JobSpec, resource: str) -> Iterator[str]:
    """Yield the parameters that lower the job's part of a quota."""
    name = resource.removeprefix("requests.").removeprefix("limits.")
    if spec.workers:
        yield f"train_workers (now {spec.workers})"
    if path := parameter(spec, "worker" if spec.workers else "chief", name):
        yield path
