"""Checks the namespace of the runs: the rights of their account, what it admits, the Secrets."""

from __future__ import annotations

from collections.abc import Iterator

from kfp_tfjob.checks.finding import Finding, ok, unknown, waits, warning
from kfp_tfjob.checks.remedies import secret_fix, secrets_of
from kfp_tfjob.checks.subject import Subject
from kfp_tfjob.cluster import rights
from kfp_tfjob.cluster.backend import JobRefusedError
from kfp_tfjob.cluster.client import ClusterClient
from kfp_tfjob.cluster.errors import ForbiddenError
from kfp_tfjob.cluster.manifests import MULTI_USER, STANDALONE
from kfp_tfjob.jobs.kind import JobKind
from kfp_tfjob.jobs.objects import Object
from kfp_tfjob.jobs.spec import JobSpec
from kfp_tfjob.jobs.status import replicas
from kfp_tfjob.options import images
from kfp_tfjob.options.pipeline import PARAMETERS
from kfp_tfjob.storage.credentials import OTHER_NAMES, SecretVolume
from kfp_tfjob.storage.errors import ConfigurationError, Problem

_ENFORCE = "pod-security.kubernetes.io/enforce"
_OWN_KEYS = "so pods use the keys of their node or service account instead"


def account_of(api: ClusterClient) -> str:
    """Return the account that Kubeflow Pipelines uses in the namespace; empty if it has none."""
    names = (STANDALONE, MULTI_USER)
    return next((it for it in names if api.get(api.core("serviceaccounts", it))), "")


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
    if api.get(f"/api/v1/namespaces/{api.namespace}") is None:
        yield Finding(
            f"there is no namespace {api.namespace}",
            fix="pass the runs' namespace with --namespace",
        )
    elif api.get(api.core("serviceaccounts", subject.account)) is None:
        yield Finding(
            f"there is no service account {subject.account} in namespace {api.namespace}",
            fix="pass the runs' account with --service-account: Kubeflow Pipelines uses"
            f" {STANDALONE}, and {MULTI_USER} in a profile",
        )


def _kind(subject: Subject) -> JobKind:
    """Return the kind of the job; a cluster without any is a finding of `cluster.job_kind`."""
    try:
        return subject.settled.api.kind
    except ConfigurationError:
        return subject.api.kind


def account(subject: Subject) -> Iterator[Finding]:
    """Ask for the rights of the account of the runs."""
    api, where = subject.api, f"in namespace {subject.api.namespace}"
    needed = rights.to_run(_kind(subject))
    lacking = rights.missing(api, needed, subject.account)
    late = rights.missing(api, rights.TO_STOP, subject.account)
    silent = rights.missing(api, rights.TO_EXPLAIN, subject.account)
    name = subject.account or rights.own_account(api)
    who = f"service account {name}" if name else "this account"
    fix = f"ask an administrator to run `{_install(api, name)}`, or to apply deploy/base"
    if not (lacking or late or silent):
        yield ok(f"{who} has the permissions that the steps need")
    if lacking:
        yield Finding(
            f"{who} may not {'; '.join(map(str, lacking))} {where}: no run can start",
            expected="; ".join(f"{it} of the API group {it.group or 'core'}" for it in needed),
            fix=fix,
        )
    for it in late:
        yield warning(f"{who} may not {it} {where}: {_terminate_is_late(it, subject.spec)}", fix)
    if silent:
        yield warning(
            f"{who} may not {'; '.join(map(str, silent))}, so messages will lack details", fix
        )


def _install(api: ClusterClient, account: str) -> str:
    """Return the command that gives an account its rights."""
    other = f" --service-account {account}" if account not in ("", STANDALONE) else ""
    command = f"kfp-tfjob install --namespace {api.namespace}{other}"
    return f"{command} | kubectl apply --server-side -f -"


def _terminate_is_late(lacking: rights.Right, spec: JobSpec) -> str:
    """Return when the job stops after Terminate."""
    if lacking.resource == "pods":
        seconds = spec.pod.of("chief").grace_seconds
        return f"after Terminate, the chief may run for its grace period, {seconds} s"
    return (
        "if the back end ends the exit task with the run, the job stops only when its heartbeat"
        " times out, train_options.orphan_timeout_seconds"
        f" ({spec.options.orphan_timeout_seconds} s) after Terminate"
    )


def admission(subject: Subject) -> Iterator[Finding]:
    """Create one pod of each kind as a dry run: Pod Security, limit ranges and quotas decide."""
    api = subject.api
    level = level_of(api) or "unknown"
    if rights.missing(api, [rights.Right("", "pods", ("create",))]):
        yield unknown(
            f"Pod Security level {level}; you may not create pods here, so pod admission was not"
            " tested",
            fix="run doctor as an editor of the namespace",
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
        yield ok(f"Pod Security level {level} admits the pods of the steps and the job")


def _refused(name: str, problems: tuple[Problem | str, ...]) -> Iterator[Finding]:
    for problem in problems:
        said = str(problem.received if isinstance(problem, Problem) else problem)
        if "exceeded quota" in said:
            yield waits(
                f"a quota does not currently admit the pod of {name}: {said}",
                "delete finished jobs, lower the requests in pod, or have the ResourceQuota raised",
            )
        elif "violates PodSecurity" in said:
            yield Finding(
                f"Pod Security rejects the pod of {name}",
                said,
                fix="for a step, compile with --run-as-user; for the job, correct"
                " pod.all.run_as_user",
            )
        else:
            yield Finding(
                f"the namespace rejects the pod of {name}",
                said,
                fix="correct what the message describes",
            )


def _pods(subject: Subject) -> Iterator[tuple[str, Object]]:
    """Yield a pod of each role of the job, and one like that of a step."""
    kind = {"apiVersion": "v1", "kind": "Pod"}
    for item in replicas(subject.job):
        metadata = {"generateName": "kfp-tfjob-doctor-"}
        yield item.role, kind | {"metadata": metadata, "spec": dict(item.pod)}
    step: Object = {"image": images.TOOLS, "command": ["true"]}
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


def secrets(subject: Subject) -> Iterator[Finding]:
    """Look for every Secret that the job names, and for its keys; values are not shown."""
    if not subject.account:
        return  # no runs are in this namespace
    api, uses = subject.api, secrets_of(subject.spec)
    for name in dict.fromkeys(it.name for it in uses):
        found = api.get(api.core("secrets", name))
        has = {key for key, value in ((found or {}).get("data") or {}).items() if value}
        lacking = [it for it in uses if it.name == name]
        if found is not None:
            lacking = [it for it in lacking if it.key and not has & _names_of(it.key)]
        if not lacking:
            yield ok(f"Secret {name} has {', '.join(sorted(has)) or 'no keys'}")
            continue
        what = f"Secret {name} does not exist in namespace {api.namespace}"
        if found is not None:
            what = f"Secret {name} has no {' and no '.join(it.key for it in lacking)}"
        fix = secret_fix(lacking, found is not None, api.namespace)
        of_the_store = {it.parameter for it in lacking} == {"storage_secret"}
        if of_the_store and (found is not None or name == PARAMETERS["storage_secret"].default):
            yield warning(f"{what}, {_OWN_KEYS}", fix)
        else:
            yield waits(what, fix)


def _names_of(key: str) -> set[str]:
    """Return a key of a Secret, and its name in the Secret of Kubeflow Pipelines."""
    return {key, OTHER_NAMES.get(key, key)}


def mounted_secret(subject: Subject) -> Iterator[Finding]:
    """Look for the keys of the store in this pod; a missing Secret gives an empty mount.

    It is read as a file: deploy/ gives a run's account no right to read Secrets.
    """
    if not SecretVolume.from_environment().has_keys():
        # Without it, the standard AWS credential chain applies, which may be intended.
        name, namespace = subject.spec.storage_secret, subject.api.namespace
        uses = [it for it in secrets_of(subject.spec) if it.parameter == "storage_secret"]
        yield warning(
            f"Secret {name} does not exist in namespace {namespace}, or is empty, {_OWN_KEYS}",
            f"if that is not intended, {secret_fix(uses, False, namespace)}",
        )


_KINDS = {
    "configmaps": "ConfigMap",
    "persistentvolumeclaims": "claim",
    "serviceaccounts": "service account",
}


def named(subject: Subject) -> Iterator[Finding]:
    """Look for the claims, ConfigMaps and accounts that the job names."""
    api = subject.api
    hidden: ForbiddenError | None = None
    for kind, name, parameter in sorted(set(_named(subject.spec))):
        try:
            found = api.get(api.core(kind, name))
        except ForbiddenError as error:
            hidden = error
            continue
        if found is None:
            yield Finding(
                f"{_KINDS[kind]} {name} does not exist in namespace {api.namespace}",
                received=name,
                expected="the name of an existing object",
                fix=f"create it, or correct {parameter}",
            )
    if hidden:
        raise hidden


def _named(spec: JobSpec) -> Iterator[tuple[str, str, str]]:
    """Yield kind, name and parameter of each required object; pods report missing Secrets."""
    if claim := spec.pod.chief.output_claim:
        yield "persistentvolumeclaims", claim, "pod.chief.output_claim"
    for role, settings in spec.pod.of_replicas.items():
        for claim in filter(None, (it.claim for it in settings.volumes or ())):
            yield "persistentvolumeclaims", claim, f"pod.{role}.volumes"
        for name in filter(None, (it.config_map for it in settings.volumes or ())):
            yield "configmaps", name, f"pod.{role}.volumes"
        if settings.service_account:
            yield "serviceaccounts", settings.service_account, f"pod.{role}.service_account"
