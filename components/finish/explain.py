"""Explains in Markdown why training failed, with the cluster's messages and useful commands."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator

from kfp_tfjob.jobs.kinds import kind_named
from kfp_tfjob.jobs.record import AttemptEnd, EndedContainer, EndedPod
from kfp_tfjob.storage.escaping import code, fence, prose, row

_MOST_IN_CELL = 500  # characters


def explain(ends: Iterable[AttemptEnd]) -> str:
    """Return a section for each attempt, the newest of a task first; nothing without attempts."""
    ordered = sorted(ends, key=lambda end: (end.task_key, -end.attempt))
    return "".join(f"{line}\n" for end in ordered for line in _attempt(end))


def _attempt(end: AttemptEnd) -> Iterator[str]:
    yield ""
    task = f" of task {code(end.task_key)}" if end.task_key else ""
    yield f"## Attempt {end.attempt}{task}: {prose(end.verdict)}"
    yield ""
    where = f" in namespace {code(end.namespace)}" if end.namespace else ""
    name = f"{end.kind} {code(end.job)}" if end.job else "Recorded by its chief"
    yield from (f"{name}{where}", "")
    yield from (f"**What happened:** {prose(end.sentence)}", "")
    yield from (f"**What to do:** {prose(end.remedy)}", "")
    if end.seconds:
        spent = ", ".join(f"{name} {value:.0f} s" for name, value in end.seconds.items() if value)
        yield from (f"**Time:** {spent or 'less than a second'}", "")
    if any(end.gpu_seconds.values()):
        hours = ", ".join(f"{n} {value / 3600:.2f} h" for n, value in end.gpu_seconds.items())
        yield from (f"**GPUs held:** {hours}", "")
    if end.conditions:
        yield row("condition", "status", "since", "message")
        yield "|---|---|---|---|"
        for item in end.conditions:
            cells = (item.get(key, "") for key in ("type", "status", "lastTransitionTime"))
            yield row(*map(prose, cells), _cell(str(item.get("message", ""))))
        yield ""
    if end.pods:
        yield row("pod", "phase", "node", "container", "state", "exit code", "reason")
        yield "|---|---|---|---|---|---|---|"
        for pod in end.pods:
            yield from _rows(pod)
        yield ""
    for pod in end.pods:
        for container in pod.containers:
            if container.last_lines and _is_of_interest(pod, container):
                yield from (f"Last lines of {code(container.name)} of {code(pod.replica)}:", "")
                yield from (*fence(container.last_lines), "")
    if end.namespace:
        yield "To see more while the job still exists:"
        for command in _commands(end):
            yield from ("", code(command))


def _is_of_interest(pod: EndedPod, container: EndedContainer) -> bool:
    return bool(container.exit_code) or pod.phase == "Failed" or container.state == "running"


def _rows(pod: EndedPod) -> Iterator[str]:
    first = (code(pod.replica), prose(pod.phase), code(pod.node or "none"))
    reasons = [pod.reason] if pod.reason else []
    if not pod.containers:
        yield row(*first, "", "", "", _cell("; ".join(reasons)))
    for container in pod.containers:
        number = "" if container.exit_code is None else str(container.exit_code)
        said = "; ".join(filter(None, [*reasons, container.reason, container.message]))
        again = f", {container.restarts} restarts" if container.restarts else ""
        state = f"{container.state}{again}"
        yield row(*first, code(container.name), state, number, _cell(said))


def _commands(end: AttemptEnd) -> Iterator[str]:
    kind = kind_named(end.kind)
    where = f"-n {shlex.quote(end.namespace)}"
    yield f"kubectl {where} describe {kind.name.lower()} {end.job}"
    yield f"kubectl {where} get pods -l {kind.pods_of(end.job)} -o wide"
    yield f"kubectl {where} get events --field-selector involvedObject.name={end.job}"
    for pod in end.pods:
        failed = [item.name for item in pod.containers if item.exit_code]
        for name in failed or [item.name for item in pod.containers[-1:]]:
            yield f"kubectl {where} logs {pod.name} -c {name}"


def _cell(text: str) -> str:
    return prose(" ".join(text.split()), _MOST_IN_CELL)
