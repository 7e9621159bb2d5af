"""Converts the pods of a role into `pod.<role>`, and the roles into `pod`.

Fields without an equivalent in a run get a note. Fields without which the program would read or
train something else are reasons to reject the job. Called by `conversion.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from kfp_tfjob.jobs.labels import INJECT, MANAGER_LABEL, QUEUE_LABEL
from kfp_tfjob.jobs.spec import RESERVED
from kfp_tfjob.jobs.user_pod_schema import (
    DEFAULT_MODE,
    Container,
    Mount,
    Resources,
    Variable,
    Volume,
    is_scratch,
)
from kfp_tfjob.options.parameter_masking import looks_secret
from kfp_tfjob.options.pod import (
    CHIEF_GRACE,
    DEFAULTS,
    NATIVE_RESOURCES,
    PodSettings,
    Toleration,
)

from .addresses import OF_OPERATORS
from .main_container import GPU
from .output import Output
from .report import Report
from .source_job import SourceRole

POD = ("pod",)
# Variables of a program that are also run parameters.
CONVERTED = {
    "EPOCHS": "train_epochs",
    "BATCH_SIZE": "train_batch_size",
    "HYPERPARAMETERS": "model_hyperparameters",
}
# Folders that a run gives to the program under the same name.
_FOLDERS = {"HOME", "TMPDIR", "OUTPUT_DIR"}
_SILENT_FIELDS = {
    *("terminationMessagePath", "terminationMessagePolicy", "stdin", "stdinOnce", "tty"),
    *("serviceAccount", "dnsPolicy", "enableServiceLinks", "automountServiceAccountToken"),
}
_FIELDS = {
    "imagePullPolicy": ("the kubelet's default applies", "name the image by its digest"),
    "ports": ("replicas use the job's own port", ""),
    "livenessProbe": (
        "the launcher watches the chief's log instead",
        "train_options.stall_timeout_seconds",
    ),
    "readinessProbe": ("it would hide a replica from the others until it passes", ""),
    "startupProbe": ("it would hide a replica from the others until it passes", ""),
    "lifecycle": ("the supervisor forwards SIGTERM to the program", "handle SIGTERM"),
    "hostNetwork": ("a run's pods meet the Pod Security level restricted", ""),
    "hostIPC": ("a run's pods meet the Pod Security level restricted", "pod.all.shared_memory"),
    "hostPID": ("a run's pods meet the Pod Security level restricted", ""),
    "capabilities": ("a run's pods meet the Pod Security level restricted", ""),
    "topologySpreadConstraints": ("a run has no such setting", "pod.all.affinity"),
    "runtimeClassName": (
        "a run has no such setting",
        "make it the default of the GPU nodes' container runtime",
    ),
    "dnsConfig": ("a run has no such setting", ""),
    "hostAliases": ("a run has no such setting", ""),
}
_NAMED = ("env", "labels", "annotations", "node_selector")  # dicts that `all` and a role merge
# Labels and annotations that the controllers of jobs set themselves.
_CONTROLLERS = re.compile(
    r"^(training\.kubeflow\.org|jobset\.sigs\.k8s\.io|batch\.kubernetes\.io)/"
)


def settings_of(
    role: SourceRole, main: Container, output: Output, store_secret: str, report: Report
) -> dict[str, Any]:
    """Return the settings of a role's pods; keys without a value in the job are omitted.

    Args:
        role: The role.
        main: Its container that trains.
        output: The chief's output, whose volume the run replaces.
        store_secret: The Secret in storage_secret, which gives the program the store's keys.
        report: Receives notes and problems.
    """
    spec = role.template.spec
    settings: dict[str, Any] = {}
    settings |= _resources(role, main, report)
    settings |= _volumes(role, main, output, report)
    settings["env"] = _environment(role, main, store_secret, report)
    settings["node_selector"] = dict(spec.node_selector)
    settings["tolerations"] = _tolerations(role, report)
    settings["affinity"] = dict(spec.affinity)
    settings["priority_class"] = spec.priority_class_name
    settings["scheduler"] = spec.scheduler_name.removeprefix("default-scheduler")
    settings["service_account"] = _service_account(role, report)
    settings["image_pull_secret"] = _pull_secret(role, report)
    settings["labels"] = user_labels(role.template.metadata.labels)
    settings["annotations"] = _annotations(role, report)
    settings["run_as_user"] = _user(role, main, report)
    settings["grace_seconds"] = _grace(role, report)
    _note_unread_fields(role, main, report)
    return {name: value for name, value in settings.items() if value not in (None, "", {}, [])}


def merged(settings: Mapping[str, Mapping[str, Any]], shared: Mapping[str, str]) -> dict[str, Any]:
    """Return `pod`, with the settings common to all roles under `all` and others under each role.

    Args:
        settings: The settings of each role.
        shared: The job's own labels. Labels under `all` are also set on the job, so only these
            may go there.
    """
    pod: dict[str, dict[str, Any]] = {"all": {}} | {role: {} for role in settings}
    for name in PodSettings.model_fields:
        by_role = {role: role_settings.get(name) for role, role_settings in settings.items()}
        if name in _NAMED:
            common = dict(shared) if name == "labels" else _common_entries(by_role)
            specific = {
                role: {
                    key: entry for key, entry in (entries or {}).items() if common.get(key) != entry
                }
                for role, entries in by_role.items()
            }
        else:
            first, *following = by_role.values()
            is_common = first is not None and all(setting == first for setting in following)
            common = first if is_common else None
            specific = {role: None if is_common else setting for role, setting in by_role.items()}
        for role, setting in {"all": common, **specific}.items():
            if setting not in (None, {}, [], ""):
                pod[role][name] = setting
    return {role: role_settings for role, role_settings in pod.items() if role_settings}


def _common_entries(by_role: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries that all roles have; empty if moving them to `all` changes an order.

    The order counts because a variable may refer to earlier ones.
    """
    dicts = [entries or {} for entries in by_role.values()]
    common = {
        name: entry
        for name, entry in dicts[0].items()
        if all(name in entries and entries[name] == entry for entries in dicts)
    }
    for entries in dicts:
        specific = {name: entry for name, entry in entries.items() if name not in common}
        if list(common | specific) != list(entries):
            return {}
    return common


def gpus_of(resources: Resources, name: str, report: Report) -> tuple[str, int]:
    """Return the resource name and the number of a container's GPUs.

    Args:
        resources: The container's resources.
        name: The role's name, for messages.
        report: Receives a problem if there are GPUs of several kinds.
    """
    extended = [resource for resource in resources.names if resource not in NATIVE_RESOURCES]
    kinds = [resource for resource in extended if GPU.search(resource)]
    if len(kinds) > 1:
        report.refuse(
            f"{name}.resources", ", ".join(kinds), "GPUs of one kind", "request one of them"
        )
    if not kinds:
        return "", 0
    count = resources.of(kinds[0])
    if not count.isdecimal():
        report.refuse(f"{name}.resources.{kinds[0]}", count, "a whole number", "correct it")
        return kinds[0], 0
    return kinds[0], int(count)


def _resources(role: SourceRole, main: Container, report: Report) -> dict[str, Any]:
    resources = main.resources
    settings: dict[str, Any] = {key: resources.of(name) for name, key in NATIVE_RESOURCES.items()}
    kind, count = gpus_of(resources, role.name, report)
    settings["gpu_resource"] = kind if count and kind != DEFAULTS["gpu_resource"] else ""
    extended = {
        name: resources.of(name)
        for name in resources.names
        if name not in NATIVE_RESOURCES and not GPU.search(name)
    }
    if extended:
        settings["resources"] = extended
    for name in resources.names:
        request, limit = resources.requests.get(name), resources.limits.get(name)
        if request and limit and request != limit:
            report.note(
                f"{role.name}.resources.requests.{name}: {request}",
                f"a run requests what it limits, here {limit}",
                "lower the value, if nodes are too small",
                POD,
            )
        if request and not limit:
            report.note(
                f"{role.name}.resources.requests.{name}: {request}",
                "the job has no limit, and a run limits a pod to what it requests",
                "raise the value to the most that the program uses",
                POD,
            )
    if missing := [name for name in ("cpu", "memory") if not settings[name]]:
        defaults = ", ".join(f"{name} {DEFAULTS[name]}" for name in missing)
        report.note(
            f"{' and '.join(missing)}",
            "the job has no limit, and a run always has one",
            f"the defaults ({defaults} for each pod), or set pod.all.{missing[0]}",
            POD,
        )
    return settings


def _volumes(role: SourceRole, main: Container, output: Output, report: Report) -> dict[str, Any]:
    settings: dict[str, Any] = {"shared_memory": "", "volumes": [], "output_path": ""}
    shared_memory_reason = "without a volume, containers have 64 MiB"
    for mount in main.volume_mounts:
        volume = role.template.spec.volume(mount.name)
        if mount.name == output.volume and role.role == "chief":
            continue
        if volume and mount.is_shared_memory:
            if volume.empty_dir:
                settings["shared_memory"] = volume.empty_dir.size_limit
                shared_memory_reason = "only the memory of the pod or node limited it"
            else:
                source = next(iter(volume.source), "") or _unknown_source(volume)
                shared_memory_reason = f"it was a volume ({source}), which a run replaces"
            continue
        if is_scratch(mount, volume) and role.role != "chief" and not settings["output_path"]:
            settings["output_path"] = mount.mount_path  # it is not stored, as an emptyDir is not
            continue
        if converted := _volume(role, mount, volume, report):
            settings["volumes"].append(converted)
    if not settings["shared_memory"]:
        report.note(
            "shared memory",
            f"the job sets no size of /dev/shm; {shared_memory_reason}",
            f"{DEFAULTS['shared_memory']}, or set pod.all.shared_memory",
            POD,
        )
    return settings


def _volume(
    role: SourceRole, mount: Mount, volume: Volume | None, report: Report
) -> dict[str, Any] | None:
    """Return a mounted volume as an entry of `pod.all.volumes`; None if a run cannot mount it."""
    where = f"{role.name}.volumes.{mount.name} at {mount.mount_path}"
    if mount.sub_path or mount.others.get("subPathExpr"):
        report.refuse(
            where,
            f"subPath {mount.sub_path or mount.others['subPathExpr']}",
            "a mount of a whole volume",
            "mount the whole volume, and change the path in the command",
        )
        return None
    if volume and volume.source:
        if volume.is_optional:
            report.note(f"{where}: optional", "a run's pods wait for it", "", POD)
        if volume.changed_mode:
            report.note(
                f"{where}: defaultMode {volume.changed_mode}",
                f"a run mounts files with the mode {DEFAULT_MODE}",
                "start a script by its interpreter, and copy a file that needs another mode to"
                " $TMPDIR",
                POD,
            )
        return volume.mounted(mount.mount_path, mount.read_only)
    if volume and volume.empty_dir and mount.mount_path.rstrip("/") == "/tmp":
        report.note(where, "the program can write to /tmp in any case", "", POD)
        return None
    report.refuse(
        where,
        _unknown_source(volume),
        "a claim, a Secret or a ConfigMap",
        "write temporary files to $TMPDIR, and output to $OUTPUT_DIR"
        if volume and volume.empty_dir
        else "put the files on a claim (PVC), or into a Secret or ConfigMap without items",
    )
    return None


def _unknown_source(volume: Volume | None) -> str:
    """Return the source of a volume that a run cannot mount, for a message."""
    if volume is None:
        return "no such volume"
    if volume.empty_dir:
        return "emptyDir"
    return "configMap" if volume.config_map else ", ".join(volume.others) or "a Secret with items"


def _environment(
    role: SourceRole, main: Container, store_secret: str, report: Report
) -> dict[str, Any]:
    """Return the variables of a role's program that `pod.<role>.env` must set."""
    variables: dict[str, Any] = {}
    dropped = []
    for source in main.env_from:
        secret = source.secret_ref.name if source.secret_ref else ""
        if secret and secret == store_secret and not source.prefix:
            report.note(
                f"{role.name}.envFrom: {secret}",
                "the program gets the store's keys (AWS_...) from storage_secret, and no other key",
                "name each other key that it reads in pod.all.env",
                ("storage_secret",),
            )
            continue
        config_map = source.config_map_ref.name if source.config_map_ref else ""
        report.refuse(
            f"{role.name}.envFrom",
            f"all keys of {f'Secret {secret}' if secret else f'ConfigMap {config_map}'}",
            "variables that are named one by one",
            "list the variables that the program reads under env, then import again",
        )
    for variable in main.env:
        name = variable.name
        if name in OF_OPERATORS:
            report.note(
                f"{role.name}.env.{name}",
                "the replicas of a run find each other through it",
                "the supervisor sets it",
                POD,
            )
        elif name in CONVERTED and not variable.value_from:
            continue
        elif name in _FOLDERS:
            report.note(
                f"{role.name}.env.{name}: {variable.value}",
                "a run sets it to a folder of its own",
                "",
                POD,
            )
        elif name in RESERVED:
            report.refuse(
                f"{role.name}.env.{name}",
                variable.value or "valueFrom",
                "a name that a run does not set itself",
                "give the variable another name in the program and in the file",
            )
        elif (value := _value(role, variable, report)) is None:
            dropped.append(name)
        else:
            variables[name] = value
    plain_values = (content for content in variables.values() if isinstance(content, str))
    text = " ".join([main.text, *plain_values])
    for name in dropped:
        if re.search(rf"\$(\({name}\)|\{{{name}\}}|{name}\b)", text):
            report.refuse(
                f"{role.name}.env.{name}",
                "a value of its own for each pod, which the command uses",
                "a plain value, or a key of a Secret",
                "use HOSTNAME, RANK or MASTER_ADDR instead",
            )
    return variables


def _value(role: SourceRole, variable: Variable, report: Report) -> Any:
    """Return a variable's value for `pod`; None if a run cannot set it or sets it otherwise."""
    source, where = variable.value_from, f"{role.name}.env.{variable.name}"
    if source is None:
        if looks_secret(variable.name, variable.value):
            report.note(
                where,
                "Kubeflow Pipelines prints parameters, so none should hold a secret",
                'put the value into a Kubernetes Secret, and write {"secret": NAME, "key": KEY}',
                POD,
            )
        return variable.value
    if secret := source.secret_key_ref:
        if secret.optional:
            report.note(
                f"{where}: optional", "a run fails without a Secret that a variable names", "", POD
            )
        return {"secret": secret.name, "key": secret.key}
    if config_map := source.config_map_key_ref:
        report.refuse(
            where,
            f"key {config_map.key} of ConfigMap {config_map.name}",
            "a plain value, or a key of a Secret",
            "write the value into the file",
        )
        return None
    path = (source.field_ref or {}).get("fieldPath", "")
    if "job-completion-index" not in path:  # the command gets it
        report.note(
            f"{where}: {path or 'resourceFieldRef'}",
            "a run's variables have plain values, or are keys of Secrets",
            "HOSTNAME is the pod's name"
            if path == "metadata.name"
            else "write the value, if the program needs it",
            POD,
        )
    return None


def _tolerations(role: SourceRole, report: Report) -> list[dict[str, Any]]:
    for toleration in role.template.spec.tolerations:
        for field in sorted(set(toleration) - set(Toleration.model_fields)):
            report.note(f"{role.name}.tolerations.{field}", "a toleration has no such field")
    return [
        {key: entry for key, entry in toleration.items() if key in Toleration.model_fields}
        for toleration in role.template.spec.tolerations
    ]


def _service_account(role: SourceRole, report: Report) -> str:
    name = role.template.spec.service_account_name
    if name and name != "default":
        report.note(
            f"{role.name}.serviceAccountName: {name}",
            "a run mounts no token, so the program cannot use the Kubernetes API",
            "access to a store through the account works",
            POD,
        )
    return "" if name == "default" else name


def _pull_secret(role: SourceRole, report: Report) -> str:
    names = [reference.name for reference in role.template.spec.image_pull_secrets]
    if names[1:]:
        report.note(
            f"{role.name}.imagePullSecrets: {', '.join(names[1:])}",
            "a run uses one Secret for private registries",
            f"put all registries into {names[0]}",
            POD,
        )
    return names[0] if names else ""


def user_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the labels of a job or its pods that a run's job or pods need too."""
    return {
        name: label
        for name, label in labels.items()
        if not _CONTROLLERS.match(name) and name not in (QUEUE_LABEL, MANAGER_LABEL, INJECT)
    }


def _annotations(role: SourceRole, report: Report) -> dict[str, str]:
    annotations = dict(role.template.metadata.annotations)
    if annotations.pop(INJECT, "false") != "false":
        report.note(
            f"{role.name}.annotations.{INJECT}",
            "a proxy would outlive the program, and replicas talk on plain ports",
            "",
            POD,
        )
    return {name: text for name, text in annotations.items() if not _CONTROLLERS.match(name)}


def _user(role: SourceRole, main: Container, report: Report) -> int | None:
    pod, own = role.template.spec.security_context, main.security_context
    user = own.run_as_user if own.run_as_user is not None else pod.run_as_user
    if user == 0 or own.privileged:
        report.refuse(
            f"{role.name}.securityContext",
            "privileged" if own.privileged else "runAsUser 0",
            "a user id above 0, as the Pod Security level restricted demands",
            "set runAsUser to a user that can read the program, or remove it to use"
            f" {DEFAULTS['run_as_user']}",
        )
        return None
    if user is None:
        report.note(
            "user",
            f"a run's programs have the user id {DEFAULTS['run_as_user']}, not the image's user,"
            " which is often root",
            "set pod.all.run_as_user, if the program needs another one that is not root",
            POD,
        )
    return user


def _grace(role: SourceRole, report: Report) -> int | None:
    seconds = role.template.spec.termination_grace_period_seconds
    default = CHIEF_GRACE if role.role == "chief" else DEFAULTS["grace_seconds"]
    if seconds is None or seconds > default:
        return seconds
    if seconds < default:
        report.note(
            f"{role.name}.terminationGracePeriodSeconds: {seconds}",
            "the chief's sidecar needs time to store what is left"
            if role.role == "chief"
            else "a replica may save first",
            f"{default} seconds",
            POD,
        )
    return None


def _note_unread_fields(role: SourceRole, main: Container, report: Report) -> None:
    """Note every field of a role's pods that no other function here reads."""
    spec = role.template.spec
    parts = [spec, main, spec.security_context, main.security_context]
    if spec.restart_policy not in ("", "Never"):
        report.note(
            f"{role.name}.template.spec.restartPolicy: {spec.restart_policy}",
            "Kubernetes restarts nothing in a run's job",
            "after a failure of the infrastructure, the run starts all replicas again"
            " (max_attempts)",
            ("train_options",),
        )
    if main.resources.others.get("claims"):
        report.refuse(
            f"{role.name}.resources.claims",
            json.dumps(main.resources.others["claims"]),
            "GPUs as an extended resource",
            "request a device plugin's resource, such as nvidia.com/gpu",
        )
    for name, content in [field for part in parts for field in part.others.items()]:
        if name in _SILENT_FIELDS:
            continue
        reason, instead = _FIELDS.get(name, ("a run has no such setting", ""))
        if name in ("fsGroup", "runAsGroup", "runAsNonRoot", "seccompProfile"):
            reason, instead = "a run sets it itself", "pod.all.run_as_user"
        text = content if isinstance(content, str | int) else json.dumps(content)[:80]
        report.note(f"{role.name}.{name}: {text}", reason, instead, POD)


def first_value(mains: Sequence[Container], name: str) -> str:
    """Return the plain value of a variable in the first container that sets it; "" if none does."""
    return next((text for container in mains if (text := container.value(name))), "")
