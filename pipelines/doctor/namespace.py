"""Checks the namespace of the runs: the rights of their account, what it admits, the Secret."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

from kfp_tfjob.checks.job import missing_objects
from kfp_tfjob.cluster import capacity, quota, rights
from kfp_tfjob.cluster.backend import JobRefusedError
from kfp_tfjob.cluster.client import ClusterClient
from kfp_tfjob.cluster.errors import ForbiddenError
from kfp_tfjob.cluster.manifests import MULTI_USER, STANDALONE
from kfp_tfjob.jobs.status import replicas
from kfp_tfjob.options import images
from kfp_tfjob.pipelines.doctor.finding import Finding, fail, failures, ok, warn
from kfp_tfjob.pipelines.doctor.subject import Subject
from kfp_tfjob.storage.errors import Problem

_ENFORCE = "pod-security.kubernetes.io/enforce"
_RBAC = "rbac.authorization.k8s.io"
_TO_INSTALL = (
    rights.Right(_RBAC, "roles", ("create", "patch")),
    rights.Right(_RBAC, "rolebindings", ("create", "patch")),
    rights.Right("networking.k8s.io", "networkpolicies", ("create", "patch")),
)
# The names in the project's Secret, and in that of Kubeflow Pipelines.
_KEYS = (("AWS_ACCESS_KEY_ID", "accesskey"), ("AWS_SECRET_ACCESS_KEY", "secretkey"))


def account_of(api: ClusterClient) -> str:
    """Return the account that Kubeflow Pipelines uses in the namespace."""
    try:
        standalone = api.get(api.core("serviceaccounts", STANDALONE))
        profile = standalone or api.get(api.core("serviceaccounts", MULTI_USER))
    except ForbiddenError:
        return STANDALONE
    return MULTI_USER if profile and not standalone else STANDALONE


def level_of(api: ClusterClient) -> str:
    """Return the Pod Security level that the namespace enforces; empty if unknown."""
    try:
        found = api.get(f"/api/v1/namespaces/{api.namespace}")
    except ForbiddenError:
        return ""
    labels = (found or {"metadata": {}})["metadata"].get("labels") or {}
    return str(labels.get(_ENFORCE, "privileged"))


def exists(subject: Subject) -> Iterator[Finding]:
    """Look for the namespace and the account of the runs."""
    api = subject.api
    try:
        if api.get(f"/api/v1/namespaces/{api.namespace}") is None:
            yield fail(
                f"there is no namespace {api.namespace}",
                "name the namespace of the runs with --namespace",
            )
        elif api.get(api.core("serviceaccounts", subject.account)) is None:
            yield fail(
                f"there is no service account {subject.account} in namespace {api.namespace}",
                "name the account of the runs with --service-account: Kubeflow Pipelines uses"
                f" {STANDALONE}, and {MULTI_USER} in a profile",
            )
    except ForbiddenError:
        return  # the other checks say what follows


def account(subject: Subject) -> Iterator[Finding]:
    """Ask for the rights of the account of the runs."""
    api, name = subject.api, f"service account {subject.account}"
    needed = rights.to_run(api.kind)
    try:
        lacking = rights.missing(api, needed, subject.account)
        late = rights.missing(api, rights.TO_STOP, subject.account)
        silent = rights.missing(api, rights.TO_EXPLAIN, subject.account)
    except ForbiddenError:
        yield warn(
            f"you may not ask for the rights of {name}; preflight checks them in a run",
            f"ask an administrator of the namespace to run: {subject.install}",
        )
        return
    if not (lacking or late or silent):
        yield ok(f"{name} has the rights of the steps")
    if lacking:
        may_not = "; ".join(map(str, (*lacking, *late, *silent)))
        yield fail(f"{name} may not {may_not}: no run can start", subject.install)
        return
    for items, effect in (
        (late, "Terminate may end a job late"),
        (silent, "messages explain less"),
    ):
        if items:
            yield warn(f"{name} may not {'; '.join(map(str, items))}: {effect}", subject.install)


def user(subject: Subject) -> Iterator[Finding]:
    """Ask whether the caller may install."""
    lacking = rights.missing(subject.api, _TO_INSTALL)
    if lacking:
        yield warn(
            f"you may not {'; '.join(map(str, lacking))} in namespace {subject.api.namespace}, as"
            " `kfp-tfjob install` does",
            "if rights are missing, send the command to an administrator of the namespace",
        )
    else:
        yield ok(f"you may run `kfp-tfjob install` in namespace {subject.api.namespace}")


def admission(subject: Subject) -> Iterator[Finding]:
    """Create one pod of each kind as a dry run: Pod Security, limit ranges and quotas decide."""
    api = subject.api
    level = level_of(api) or "unknown"
    if rights.missing(api, [rights.Right("", "pods", ("create",))]):
        yield warn(
            f"Pod Security level {level}; you may not create pods here, so no pod was tried",
            "run doctor with the rights of an editor of the namespace",
        )
        return
    refused = False
    for name, pod in _pods(subject):
        try:
            # A new client: one that has created a pod takes a refusal for a starting API server.
            api.within(0).request("POST", api.core("pods"), {"dryRun": "All"}, pod)
        except (ForbiddenError, JobRefusedError) as error:
            refused = True
            yield from _refused(name, error.problems)
    if not refused:
        yield ok(f"Pod Security level {level}: the pods of a step and of the job are admitted")


def _refused(name: str, problems: tuple[Problem | str, ...]) -> Iterator[Finding]:
    for problem in problems:
        said = str(problem.received if isinstance(problem, Problem) else problem)
        if "exceeded quota" in said:
            yield warn(
                f"a quota does not admit the pod of {name} now: {said}",
                "delete finished jobs, lower pod, or have the ResourceQuota raised",
            )
        elif "violates PodSecurity" in said:
            yield fail(
                f"Pod Security refuses the pod of {name}: {said}",
                "for a step, compile with --run-as-user; for the job, correct pod.all.run_as_user",
            )
        else:
            yield fail(f"the namespace refuses the pod of {name}: {said}", "correct what it names")


def _pods(subject: Subject) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield a pod of each role of the job, and one like that of a step."""
    kind = {"apiVersion": "v1", "kind": "Pod"}
    for item in replicas(subject.job):
        metadata = {"generateName": "kfp-tfjob-doctor-"}
        yield item.role, kind | {"metadata": metadata, "spec": dict(item.pod)}
    step: dict[str, Any] = {"image": images.TOOLS, "command": ["true"]}
    if images.RUN_AS_USER != "none":
        # As Kubeflow Pipelines 2.16 and later fill it in for a task with a user id.
        step["securityContext"] = {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "runAsNonRoot": True,
            "runAsUser": int(images.RUN_AS_USER),
            "seccompProfile": {"type": "RuntimeDefault"},
        }
    common = {"serviceAccountName": subject.account, "restartPolicy": "Never"}
    for it in subject.step_pods:
        spec = it.spec | common | {"containers": [it.spec["containers"][0] | step]}
        yield it.step, kind | {"metadata": {"generateName": "kfp-tfjob-doctor-"}, "spec": spec}


def quotas(subject: Subject) -> Iterator[Finding]:
    """Compare the job with what the quotas of the namespace still allow."""
    api = subject.api
    try:
        found = api.list(api.core("resourcequotas"))
    except ForbiddenError:
        yield warn("you may not list quotas, so the job was not compared with them")
        return
    needed = quota.use_of(subject.job)
    for item in found:
        name = item["metadata"]["name"]
        if item["spec"].get("scopes") or item["spec"].get("scopeSelector"):
            yield ok(f"quota {name} counts only some pods, and was not compared")
            continue
        yield from _compared(name, quota.left(item), needed)


def _compared(
    name: str, allowed: Mapping[str, tuple[Decimal, Decimal]], needed: Mapping[str, Decimal]
) -> Iterator[Finding]:
    """Compare one quota with the needs of the job, by the names of quotas."""

    def shown(resource: str, amount: Decimal) -> str:
        return f"{capacity.shown(resource, amount)} {resource}"

    fix = "lower train_workers, train_gpus or pod, or have the ResourceQuota raised"
    short = False
    for resource, (free, total) in allowed.items():
        wanted = needed.get(resource, Decimal(0))
        if wanted <= free:
            continue
        short = True
        asks = f"the job asks for {shown(resource, wanted)}, and quota {name}"
        if wanted > total:
            yield fail(f"{asks} allows {capacity.shown(resource, total)} in all", fix)
        else:
            yield warn(f"{asks} has {capacity.shown(resource, free)} left: it would wait", fix)
    if not short:
        rest = ", ".join(
            f"{capacity.shown(resource, free)} of {shown(resource, total)}"
            for resource, (free, total) in allowed.items()
        )
        yield ok(f"quota {name} has room for the job; left: {rest}")


def secret(subject: Subject) -> Iterator[Finding]:
    """Look for the Secret of the store and its keys; values are not shown."""
    api, name = subject.api, subject.spec.storage_secret
    create = (
        f"export AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, then: {subject.install}"
        f" --secret-from-env --secret {name}"
    )
    try:
        found = api.get(api.core("secrets", name))
    except ForbiddenError:
        yield warn(f"you may not read Secret {name}; preflight looks for it in a run")
        return
    if found is None:
        yield fail(f"there is no Secret {name} in namespace {api.namespace}", create)
        return
    keys = [key for key, value in (found.get("data") or {}).items() if value]
    lacking = [names[0] for names in _KEYS if not set(names) & set(keys)]
    if lacking:
        yield warn(
            f"Secret {name} has no {' and no '.join(lacking)}: pods use the keys of their node or"
            " service account",
            f"if there are none, delete the Secret; {create}",
        )
    else:
        yield ok(f"Secret {name} has {', '.join(sorted(keys))}")


def named(subject: Subject) -> Iterator[Finding]:
    """Look for the claims and accounts that the job names."""
    for found in missing_objects(subject.api, subject.spec):
        if isinstance(found, str):
            yield warn(found)
        else:
            yield from failures([found])
