"""Defines rules about the commands of the containers, which it reads but never runs."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kfp_tfjob.jobs.tfjob import TFJOB
from kfp_tfjob.lint.document import Path
from kfp_tfjob.lint.job import Container, Job, text
from kfp_tfjob.lint.rule import Found, error

# Kubernetes expands $(NAME) but not $$(NAME). Shell commands are in lowercase.
_REFERENCE = re.compile(r"(?<!\$)(?:\$\$)*\$\(([A-Z_][A-Z0-9_]*)\)")
# They differ from pod to pod, so no ConfigMap or Secret of envFrom has them.
_OF_EACH_POD = {"HOSTNAME", "POD_NAME", "NODE_NAME", "POD_IP"}
_EXIT = re.compile(r"[;\n]\s*exit\s+0\b")
_SWALLOW = re.compile(r"\|\|\s*(true|:|exit\s+0)\s*;?\s*$")
_CAREFUL = re.compile(r"\bset\s+-[a-z]*e|^-[a-z]{0,2}e[a-z]{0,3}$")
# Commands before an `exit 0` that are not the work of the script.
_BLOCK = re.compile(r"\b(?:then|do|else)\b|[{(]")
_NO_WORK = re.compile(r"(#|trap\b|echo\b|printf\b|sleep\b|date\b|true\b|:|\w+=\S*$|$)|.*\|\|")
_PIPE = re.compile(r"(?<!\|)\|(?!\|)&?\s*tee\b")
_PIPE_STATUS = re.compile(r"pipefail|PIPESTATUS")


@error("define it in env, or write ${NAME} for a variable of the shell")
def undefined_variable(job: Job) -> Iterator[Found]:
    """Kubernetes expands $(NAME) only where NAME is in the env of that container.

    Otherwise it stays, and a shell runs it as a command: $(HOSTNAME) is then empty, and equal in
    all runs.
    """
    for replica, container in job.every_container():
        own = [text(variable, "name") for variable in container.env]
        given = set(TFJOB.variables) if container == replica.trainer and job.total > 1 else set()
        elsewhere = bool(container.body.get("envFrom"))
        for path, word in container.words:
            yield from _undefined(container, path, word, given | set(own), elsewhere)
        for i, variable in enumerate(container.env):
            path = (*container.path, "env", i, "value")
            earlier = given | set(own[:i])
            yield from _undefined(container, path, text(variable, "value"), earlier, elsewhere)


@error("let the script end with the exit code of its work: set -e, and no exit 0")
def always_green(job: Job) -> Iterator[Found]:
    """The container always exits with code 0, so a failed job or upload counts as a success."""
    for _, container in job.every_container():
        careful = any(_CAREFUL.search(word) for _, word in container.words)
        for path, word in container.words:
            if _SWALLOW.search(word) or (not careful and _exits_green(word)):
                yield Found(
                    path, f"the script of {container.name} exits with code 0 after a failure"
                )


@error("write set -o pipefail, or remove tee: the log of the container is kept anyway")
def piped_away(job: Job) -> Iterator[Found]:
    """A pipe has the exit code of tee, so a failed training counts as a success."""
    for _, container in job.every_container():
        for path, word in container.words:
            if _PIPE.search(word) and not _PIPE_STATUS.search(word):
                yield Found(path, f"{container.name} pipes its output into tee")


def _exits_green(word: str) -> bool:
    """Tell whether an `exit 0` follows the work of the script, or ends the script."""
    for found in _EXIT.finditer(word):
        before = word[: found.start()]
        if not word[found.end() :].strip(" ;\n"):
            return True
        block = _BLOCK.split(before)[-1]
        if not all(_NO_WORK.match(line.strip()) for line in re.split(r"[;\n]", block)):
            return True
    return False


def _undefined(
    container: Container, path: Path, word: str, given: set[str], elsewhere: bool
) -> Iterator[Found]:
    """Yield undefined names; with `elsewhere`, envFrom may define some of them."""
    for name in dict.fromkeys(_REFERENCE.findall(word)):
        service = name.endswith(("_SERVICE_HOST", "_SERVICE_PORT"))
        may_be = elsewhere and name not in _OF_EACH_POD
        if name not in given and not service and not may_be:
            yield Found(path, f"$({name}) is not defined")
