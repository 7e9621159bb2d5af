"""Finds the run parameter to change from the messages of the scheduler and of quotas."""

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
    """A use of a Secret, or of a key in it, and the run parameter that names it, if any."""

    name: str
    key: str
    parameter: str


def remedy(
    verdict: Verdict,
    spec: JobSpec,
    pods: Iterable[Object],
    events: Iterable[Object],
) -> str:
    """Return a remedy for pods that wait for nodes or a quota; "" if no parameter helps."""
    if verdict not in (Verdict.UNSCHEDULABLE, Verdict.PARTLY_PLACED):
        return ""
    partly = verdict == Verdict.PARTLY_PLACED
    lower = ["train_workers"] if partly else []
    others: list[str] = []
    for pod in pods:
        for message in waiting_reasons.scheduler_says(pod):
            lower += _too_much(spec, role_of(pod), message)
            others += _elsewhere(spec, role_of(pod), message)
    names = set()
    for name, resources in waiting_reasons.exceeded_quotas(events):
        names.add(name)
        for resource in resources:
            lower += _of_quota(spec, resource)
    others += [f"have the ResourceQuota {name} raised" for name in sorted(names)]
    ways = [f"lower {' or '.join(dict.fromkeys(lower))}"] if lower else []
    ways += dict.fromkeys(others)
    if partly:
        ways.append(_TOGETHER)
    elif lower and not names:
        ways.append("add larger or more nodes")
    return ", or ".join(ways)


def secret_remedy(
    spec: JobSpec, missing: Iterable[waiting_reasons.MissingSecret], namespace: str = ""
) -> str:
    """Return a remedy for missing Secrets."""
    ways = []
    for item in missing:
        uses = [it for it in secrets_of(spec) if it.name == item.name]
        uses = [it for it in uses if item.key in ("", it.key)]
        if not uses:  # a webhook names it
            uses = [SecretUse(item.name, item.key or "KEY", "")]
        ways.append(secret_fix(uses, bool(item.key), namespace))
    return "; ".join(dict.fromkeys(ways))


def secrets_of(spec: JobSpec) -> list[SecretUse]:
    """Return every use of a Secret by a run's pods, each once."""
    settings = {role: spec.pod.of(role) for role in spec.counts}
    found = [SecretUse(spec.storage_secret, key, "storage_secret") for key in _STORE_KEYS]
    for role, its in settings.items():
        if its.image_pull_secret:
            where = key(spec, role, "image_pull_secret")
            found.append(SecretUse(its.image_pull_secret, "", where))
        for secret in filter(None, (it.secret_name for it in its.volumes or ())):
            found.append(SecretUse(secret, "", key(spec, role, _VOLUMES)))
        own = getattr(spec.pod, role).env or {}
        for name, value in (its.env or {}).items():
            if isinstance(value, SecretKey):
                where = f"pod.{role if name in own else 'all'}.env.{name}"
                found.append(SecretUse(value.secret, value.key, where))
    return list(dict.fromkeys(found))


def secret_fix(uses: Sequence[SecretUse], exists: bool, namespace: str = "") -> str:
    """Return what to do about a Secret that does not exist, or that lacks keys."""
    keys = list(dict.fromkeys(it.key for it in uses if it.key))
    is_mounted = any(it.parameter.endswith(_VOLUMES) for it in uses)
    make = f"create the Secret: `{_create_secret(uses[0].name, keys, is_mounted, namespace)}`"
    if exists:
        many = "s" if len(keys) > 1 else ""
        make = f"add the key{many} {' and '.join(keys)} to Secret {uses[0].name}"
    wrong = " and ".join(dict.fromkeys(it.parameter for it in uses if it.parameter))
    return f"{make}, or correct {wrong}" if wrong else make


def _create_secret(name: str, keys: Iterable[str], is_mounted: bool, namespace: str) -> str:
    given = [*(f"--from-literal={key}=..." for key in keys), *["--from-file=..."] * is_mounted]
    values = " ".join(given) or "--docker-server=... --docker-username=... --docker-password=..."
    kind = "generic" if "--from" in values else "docker-registry"
    return f"kubectl {f'-n {namespace} ' if namespace else ''}create secret {kind} {name} {values}"


def key(spec: JobSpec, role: str, field: str) -> str:
    """Return the parameter that sets a field of a role: its own, or the one under `all`."""
    own = getattr(getattr(spec.pod, role), field)
    return f"pod.{'all' if own is None else role}.{field}"


def parameter(spec: JobSpec, role: str, resource: str) -> str:
    """Return the parameter that sets a replica's request for a resource, and its value, or ""."""
    settings = spec.pod.of(role)
    if field := NATIVE_RESOURCES.get(resource):
        return f"{key(spec, role, field)} (now {getattr(settings, field)})"
    if amount := (settings.resources or {}).get(resource):
        own = role if resource in (getattr(spec.pod, role).resources or {}) else "all"
        return f"pod.{own}.resources.{resource} (now {amount})"
    if resource != settings.gpu_resource:
        return ""
    name = f"pod.{role}.gpus" if role in ("ps", "evaluator") else "train_gpus"
    return f"{name} (now {spec.gpus_of(role)})"


def _too_much(spec: JobSpec, role: str, message: str) -> Iterator[str]:
    for resource in waiting_reasons.insufficient(message):
        if found := parameter(spec, role, resource):
            yield found


def _elsewhere(spec: JobSpec, role: str, message: str) -> Iterator[str]:
    if "node affinity/selector" in message or "node selector" in message:
        settings = spec.pod.of(role)
        field = "affinity" if settings.affinity and not settings.node_selector else "node_selector"
        yield f"correct {key(spec, role, field)}"
    if "taint" in message:
        yield f"tolerate the taints of more nodes with {key(spec, role, 'tolerations')}"
    if "persistentvolumeclaim" in message.lower():
        own = role == "chief" and spec.pod.chief.output_claim
        yield f"correct {'pod.chief.output_claim or ' if own else ''}{key(spec, role, 'volumes')}"


def _of_quota(spec: JobSpec, resource: str) -> Iterator[str]:
    name = resource.removeprefix("requests.").removeprefix("limits.")
    if spec.workers:
        yield f"train_workers (now {spec.workers})"
    if found := parameter(spec, "worker" if spec.workers else "chief", name):
        yield found
