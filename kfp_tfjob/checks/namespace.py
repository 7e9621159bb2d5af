"""Checks of the runs' namespace: its account's rights, pod admission, Secrets and other objects.

They find problems that would otherwise show as pods that never start or a Terminate that comes
late, hours after the run was started.
"""

from __future__ import annotations

from collections.abc import Iterator

from kfp_tfjob.cluster import rights
from kfp_tfjob.cluster.api_errors import ForbiddenError
from kfp_tfjob.cluster.backend import JobRefusedError
from kfp_tfjob.cluster.client import ClusterClient
from kfp_tfjob.cluster.manifests import MULTI_USER, STANDALONE
from kfp_tfjob.common.errors import ConfigurationError, Problem
from kfp_tfjob.jobs.kind import JobKind
from kfp_tfjob.jobs.objects import Object
from kfp_tfjob.jobs.spec import JobSpec
from kfp_tfjob.jobs.status import replicas
from kfp_tfjob.options import container_images
from kfp_tfjob.options.parameters import PARAMETERS
from kfp_tfjob.storage.credentials import OTHER_NAMES, SecretVolume

from .finding import Finding, ok, unknown, waits, warning
from .remedies import secret_fix, secrets_of
from .subject import Subject

_ENFORCE = "pod-security.kubernetes.io/enforce"
_OWN_KEYS = "so pods use the keys of their node or service account instead"


def account_of(api: ClusterClient) -> str:
    """Return Kubeflow Pipelines' service account in the namespace; empty if there is none."""
    names = (STANDALONE, MULTI_USER)
    return next((name for name in names if api.get(api.core("serviceaccounts", name))), "")


def level_of(api: ClusterClient) -> str:
    """Return the Pod Security level that the namespace enforces; empty if it may not be read.

    It is `privileged` for a namespace without the label, or one that does not exist. Called by
    `admission` and by `kfp-tfjob doctor`.
    """
    try:
        namespace = api.get(f"/api/v1/namespaces/{api.namespace}")
    except ForbiddenError:
        return ""  # a namespace is a cluster's object, which many accounts may not read
    labels = (namespace or {"metadata": {}})["metadata"].get("labels") or {}
    return str(labels.get(_ENFORCE, "privileged"))


def exists(subject: Subject) -> Iterator[Finding]:
    """Check that the namespace and the runs' account exist."""
    api = subject.api
    if api.get(f"/api/v1/namespaces/{api.namespace}") is None:
        yield Finding(
            f"there is no namespace {api.namespace}",
            fix="pass the runs' namespace with --namespace",
            name="namespace-not-found",
        )
    elif api.get(api.core("serviceaccounts", subject.account)) is None:
        yield Finding(
            f"there is no service account {subject.account} in namespace {api.namespace}",
            fix="pass the runs' account with --service-account: Kubeflow Pipelines uses"
            f" {STANDALONE}, and {MULTI_USER} in a profile",
        )


def _kind(subject: Subject) -> JobKind:
    """Return the kind of the job; if the cluster runs none, the kind that was configured."""
    try:
        return subject.settled.api.kind
    except ConfigurationError:
        return subject.api.kind  # `cluster.job_kind` reports the error


def account(subject: Subject) -> Iterator[Finding]:
    """Check the rights of the runs' account."""
    api, where = subject.api, f"in namespace {subject.api.namespace}"
    needed = rights.to_run(_kind(subject))
    to_run = rights.missing(api, needed, subject.account)
    to_stop = rights.missing(api, rights.TO_STOP, subject.account)
    to_explain = rights.missing(api, rights.TO_EXPLAIN, subject.account)
    name = subject.account or rights.own_account(api)
    who = f"service account {name}" if name else "this account"
    fix = f"ask an administrator to run `{_install_command(api, name)}`, or to apply deploy/base"
    if not (to_run or to_stop or to_explain):
        yield ok(f"{who} has the permissions that the steps need")
    if to_run:
        yield Finding(
            f"{who} may not {'; '.join(map(str, to_run))} {where}: no run can start",
            expected="; ".join(
                f"{right} of the API group {right.group or 'core'}" for right in needed
            ),
            fix=fix,
            name="missing-permission",
        )
    for right in to_stop:
        delay = _explain_late_stop(right, subject.spec)
        yield warning(f"{who} may not {right} {where}: {delay}", fix)
    if to_explain:
        yield warning(
            f"{who} may not {'; '.join(map(str, to_explain))}, so messages will lack details", fix
        )


def _install_command(api: ClusterClient, account: str) -> str:
    """Return the command that gives an account its rights."""
    argument = f" --service-account {account}" if account not in ("", STANDALONE) else ""
    command = f"kfp-tfjob install --namespace {api.namespace}{argument}"
    return f"{command} | kubectl apply --server-side -f -"


def _explain_late_stop(missing: rights.Right, spec: JobSpec) -> str:
    """Return a clause about the time after Terminate at which the job stops without a right."""
    if missing.resource == "pods":
        seconds = spec.pod.of("chief").grace_seconds
        return f"after Terminate, the chief may run for its grace period, {seconds} s"
    return (
        "if the back end ends the exit task with the run, the job stops only when its heartbeat"
        " times out, train_options.orphan_timeout_seconds"
        f" ({spec.options.orphan_timeout_seconds} s) after Terminate"
    )


def admission(subject: Subject) -> Iterator[Finding]:
    """Create one pod of each role as a dry run, so that the namespace's policies accept it or not.

    These are Pod Security, limit ranges, quotas and webhooks.
    """
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
    for name, pod in _example_pods(subject):
        try:
            # A new client: one that has created a pod takes a refusal for a starting API server.
            api.with_patience(0).request("POST", api.core("pods"), {"dryRun": "All"}, pod)
        except (ForbiddenError, JobRefusedError) as error:
            refused = True  # the other pods are tested too, so that all problems are reported
            yield from _explain_rejection(name, error.problems)
    if not refused:
        yield ok(f"Pod Security level {level} admits the pods of the steps and the job")


def _explain_rejection(name: str, problems: tuple[Problem | str, ...]) -> Iterator[Finding]:
    """Yield a finding, with its remedy, for each reason why a pod was rejected."""
    for problem in problems:
        message = str(problem.received if isinstance(problem, Problem) else problem)
        if "exceeded quota" in message:
            yield waits(
                f"a quota does not currently admit the pod of {name}: {message}",
                "delete finished jobs, lower the requests in pod, or have the ResourceQuota raised",
            )
        elif "violates PodSecurity" in message:
            yield Finding(
                f"Pod Security rejects the pod of {name}",
                message,
                fix="for a step, compile with --run-as-user; for the job, correct"
                " pod.all.run_as_user",
                name="pod-security",
            )
        else:
            yield Finding(
                f"the namespace rejects the pod of {name}",
                message,
                fix="correct what the message describes",
            )


def _example_pods(subject: Subject) -> Iterator[tuple[str, Object]]:
    """Yield the name and manifest of a pod of each role and of each step to check."""
    kind = {"apiVersion": "v1", "kind": "Pod"}
    for replica in replicas(subject.job):
        metadata = {"generateName": "kfp-tfjob-doctor-"}
        yield replica.role, kind | {"metadata": metadata, "spec": dict(replica.pod)}
    step: Object = {"image": container_images.TOOLS, "command": ["true"]}
    if container_images.RUN_AS_USER != "none":
        # As Kubeflow Pipelines 2.16 and later fill it in for a task with a user id.
        step["securityContext"] = {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "runAsNonRoot": True,
            "runAsUser": int(container_images.RUN_AS_USER),
            "seccompProfile": {"type": "RuntimeDefault"},
        }
    common = {"serviceAccountName": subject.account, "restartPolicy": "Never"}
    for step_pod in subject.step_pods:
        container = step_pod.spec["containers"][0] | step
        spec = step_pod.spec | common | {"containers": [container]}
        metadata = {"generateName": "kfp-tfjob-doctor-"}
        yield step_pod.step, kind | {"metadata": metadata, "spec": spec}


def secrets(subject: Subject) -> Iterator[Finding]:
    """Check every Secret that the job refers to, and its keys; values are not shown."""
    if not subject.account:
        return  # no runs are in this namespace
    api, all_uses = subject.api, secrets_of(subject.spec)
    for name in dict.fromkeys(use.name for use in all_uses):
        secret = api.get(api.core("secrets", name))
        keys = {key for key, content in ((secret or {}).get("data") or {}).items() if content}
        failing = [use for use in all_uses if use.name == name]
        if secret is not None:
            failing = [use for use in failing if use.key and not keys & _spellings(use.key)]
        if not failing:
            yield ok(f"Secret {name} has {', '.join(sorted(keys)) or 'no keys'}")
            continue
        sentence = f"Secret {name} does not exist in namespace {api.namespace}"
        if secret is not None:
            sentence = f"Secret {name} has no {' and no '.join(use.key for use in failing)}"
        fix = secret_fix(failing, secret is not None, api.namespace)
        # Without the store's keys, the standard AWS credential chain applies, which may be
        # intended. A Secret that the user named on purpose must exist.
        is_stores = {use.parameter for use in failing} == {"storage_secret"}
        if is_stores and (secret is not None or name == PARAMETERS["storage_secret"].default):
            yield warning(f"{sentence}, {_OWN_KEYS}", fix)
        else:
            yield waits(sentence, fix)


def _spellings(key: str) -> set[str]:
    """Return a key of a Secret, and its name in Kubeflow Pipelines' Secret."""
    return {key, OTHER_NAMES.get(key, key)}


def mounted_secret(subject: Subject) -> Iterator[Finding]:
    """Check that this pod has the store's keys; a missing Secret is an empty mount.

    They are read as files, because deploy/ does not allow a run's account to read Secrets.
    """
    if not SecretVolume.from_environment().has_keys():
        # Without it, the standard AWS credential chain applies, which may be intended.
        name, namespace = subject.spec.storage_secret, subject.api.namespace
        uses = [use for use in secrets_of(subject.spec) if use.parameter == "storage_secret"]
        yield warning(
            f"Secret {name} does not exist in namespace {namespace}, or is empty, {_OWN_KEYS}",
            f"if that is not intended, {secret_fix(uses, False, namespace)}",
        )


_KIND_WORDS = {
    "configmaps": "ConfigMap",
    "persistentvolumeclaims": "claim",
    "serviceaccounts": "service account",
}


def referenced_objects(subject: Subject) -> Iterator[Finding]:
    """Check that the claims, ConfigMaps and accounts that the job refers to exist."""
    api = subject.api
    forbidden: ForbiddenError | None = None
    for kind, name, parameter in sorted(set(_references(subject.spec))):
        try:
            stored = api.get(api.core(kind, name))
        except ForbiddenError as error:
            forbidden = error  # raised at the end, so that the other objects are checked
            continue
        if stored is None:
            yield Finding(
                f"{_KIND_WORDS[kind]} {name} does not exist in namespace {api.namespace}",
                received=name,
                expected="the name of an existing object",
                fix=f"create it, or correct {parameter}",
            )
    if forbidden:
        raise forbidden


def _references(spec: JobSpec) -> Iterator[tuple[str, str, str]]:
    """Yield kind, name and parameter of each required object; pods report missing Secrets."""
    if claim := spec.pod.chief.output_claim:
        yield "persistentvolumeclaims", claim, "pod.chief.output_claim"
    for role, settings in spec.pod.of_replicas.items():
        volumes = settings.volumes or ()
        for claim in filter(None, (volume.claim for volume in volumes)):
            yield "persistentvolumeclaims", claim, f"pod.{role}.volumes"
        for name in filter(None, (volume.config_map for volume in volumes)):
            yield "configmaps", name, f"pod.{role}.volumes"
        if settings.service_account:
            yield "serviceaccounts", settings.service_account, f"pod.{role}.service_account"
