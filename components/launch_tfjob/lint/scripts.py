"""What the commands of the containers say, as far as it can be read without running them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from components.launch_tfjob.lint.corrections import Correction
from components.launch_tfjob.lint.document import Path
from components.launch_tfjob.lint.job import Container, Job, Replica, ensure_list, items, text
from components.launch_tfjob.lint.rule import Found, error

# Kubernetes expands $(NAME); $$( is left alone. Commands of a shell are in small letters.
_REFERENCE = re.compile(r"(?<!\$)(?:\$\$)*\$\(([A-Z_][A-Z0-9_]*)\)")
# What a pod knows of itself, by the names people give it.
_FIELDS = {
    "HOSTNAME": "metadata.name",
    "POD_NAME": "metadata.name",
    "POD_NAMESPACE": "metadata.namespace",
    "NAMESPACE": "metadata.namespace",
    "NODE_NAME": "spec.nodeName",
    "POD_IP": "status.podIP",
}
_EXIT = re.compile(r"[;\n]\s*exit\s+0\s*;?\s*$")
_SWALLOW = re.compile(r"\|\|\s*(true|:|exit\s+0)\s*;?\s*$")
_CAREFUL = re.compile(r"\bset\s+-[a-z]*e")
_PIPE = re.compile(r"(?<!\|)\|(?!\|)&?\s*tee\b")
_PIPE_STATUS = re.compile(r"pipefail|PIPESTATUS")
_WAIT = re.compile(
    r"\b(?:while|until)\b[^\n;]*(?:\[|\btest)\s+(?:!\s+)?-[efs]\s+[\"']?([^\s\"'\]]+)"
)
_LASTING = ("persistentVolumeClaim", "hostPath", "nfs", "csi")


@error("define it in env, or write ${NAME} for a variable of the shell")
def undefined_variable(job: Job) -> Iterator[Found]:
    """Kubernetes expands $(NAME) only where NAME is in the env of that container.

    Otherwise it stays, and a shell takes it for a command: $(HOSTNAME) is then empty, the same
    for all runs.
    """
    for replica, container in job.every_container():
        if container.body.get("envFrom"):
            continue  # what that defines is not in the manifest
        own = [text(variable, "name") for variable in container.env]
        given = {"TF_CONFIG"} if container == replica.trainer and job.total > 1 else set()
        for path, word in container.words:
            yield from _undefined(container, path, word, given | set(own))
        for i, variable in enumerate(container.env):
            path = (*container.path, "env", i, "value")
            earlier = given | set(own[:i])
            yield from _undefined(container, path, text(variable, "value"), earlier)


@error("let the script end with the exit code of its work: set -e, and no exit 0")
def always_green(job: Job) -> Iterator[Found]:
    """Whatever happened before, the container ends with 0: a failed job or upload is green."""
    for _, container in job.every_container():
        for path, word in container.words:
            if _SWALLOW.search(word) or (_EXIT.search(word) and not _CAREFUL.search(word)):
                yield Found(path, f"the script of {container.name} always ends with 0")


@error("write set -o pipefail, or leave tee out: the log of the container is kept anyway")
def piped_away(job: Job) -> Iterator[Found]:
    """A pipe ends with the exit code of tee, so a training that failed is green."""
    for _, container in job.every_container():
        for path, word in container.words:
            if _PIPE.search(word) and not _PIPE_STATUS.search(word):
                yield Found(path, f"{container.name} pipes its output into tee")


@error("put the run into the path, or use an emptyDir")
def stale_marker(job: Job) -> Iterator[Found]:
    """A volume that outlives the pod still has the file of the run before.

    What waits for it goes on at once, with the old result.
    """
    for replica, container in job.every_container():
        lasting = _lasting_mounts(replica, container)
        for path, word in container.words:
            for marker in _WAIT.findall(word):
                if any(marker.startswith(mount) for mount in lasting):
                    yield Found(path, f"{container.name} waits for {marker}")


def _undefined(container: Container, path: Path, word: str, given: set[str]) -> Iterator[Found]:
    for name in dict.fromkeys(_REFERENCE.findall(word)):
        service = name.endswith(("_SERVICE_HOST", "_SERVICE_PORT"))
        if name not in given and not service:
            correct = _defines(container, name) if name in _FIELDS else None
            yield Found(path, f"$({name}) is not defined", correct)


def _defines(container: Container, name: str) -> Correction:
    def correct() -> str:
        reference = {"fieldRef": {"fieldPath": _FIELDS[name]}}
        env: list[Any] = ensure_list(container.body, "env")
        env[:] = [item for item in env if item.get("name") != name]
        env.insert(0, {"name": name, "valueFrom": reference})
        return f"{container.name}: {name} from {_FIELDS[name]}"

    return correct


def _lasting_mounts(replica: Replica, container: Container) -> list[str]:
    lasting = replica.volumes(*_LASTING)
    mounts = items(container.body, "volumeMounts")
    return [
        text(mount, "mountPath").rstrip("/") + "/"
        for mount in mounts
        if mount.get("name") in lasting
    ]
