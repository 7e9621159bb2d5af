"""Why a training failed, in Markdown: what the cluster said, and what to paste to see more."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator

from components.launch_tfjob.record import AttemptEnd, EndedContainer, EndedPod


def explain(ends: Iterable[AttemptEnd]) -> str:
    """Return a section for each attempt, the newest first; nothing when there is none."""
    ordered = sorted(ends, key=lambda end: end.attempt, reverse=True)
    return "".join(f"{line}\n" for end in ordered for line in _attempt(end))


def _attempt(end: AttemptEnd) -> Iterator[str]:
    yield ""
    yield f"## Attempt {end.attempt}: {end.verdict}"
    yield ""
    yield f"TFJob `{end.job}`" + (f" in namespace `{end.namespace}`" if end.namespace else "")
    yield ""
    yield f"- what happened: {_plain(end.sentence)}"
    yield f"- what to do: {end.remedy}"
    if end.seconds:
        spent = ", ".join(f"{name} {value:.0f} s" for name, value in end.seconds.items() if value)
        yield f"- time: {spent or 'less than a second'}"
    if any(end.gpu_seconds.values()):
        hours = ", ".join(f"{n} {value / 3600:.2f} h" for n, value in end.gpu_seconds.items())
        yield f"- GPUs held: {hours}"
    if end.conditions:
        yield ""
        yield "| condition | status | since | message |"
        yield "|---|---|---|---|"
        for item in end.conditions:
            cells = (item.get(key, "") for key in ("type", "status", "lastTransitionTime"))
            yield f"| {' | '.join(cells)} | {_cell(item.get('message', ''))} |"
    if end.pods:
        yield ""
        yield "| pod | phase | node | container | state | exit code | reason |"
        yield "|---|---|---|---|---|---|---|"
        for pod in end.pods:
            yield from _rows(pod)
    for pod in end.pods:
        for container in pod.containers:
            if container.last_lines and _is_of_interest(pod, container):
                yield ""
                yield f"Last lines of `{container.name}` of {pod.replica}:"
                yield ""
                yield "```"
                yield from (line.replace("```", "'''") for line in container.last_lines)
                yield "```"
    if end.namespace:
        yield ""
        yield "To see more, as long as the job is there:"
        yield ""
        yield "```"
        yield from _commands(end)
        yield "```"


def _is_of_interest(pod: EndedPod, container: EndedContainer) -> bool:
    return bool(container.exit_code) or pod.phase == "Failed" or container.state == "running"


def _rows(pod: EndedPod) -> Iterator[str]:
    first = f"| {pod.replica} | {pod.phase} | {pod.node or 'none'} "
    reasons = [pod.reason] if pod.reason else []
    if not pod.containers:
        yield f"{first}| | | | {_cell('; '.join(reasons))} |"
    for container in pod.containers:
        code = "" if container.exit_code is None else str(container.exit_code)
        said = "; ".join(filter(None, [*reasons, container.reason, container.message]))
        again = f", {container.restarts} restarts" if container.restarts else ""
        yield f"{first}| {container.name} | {container.state}{again} | {code} | {_cell(said)} |"


def _commands(end: AttemptEnd) -> Iterator[str]:
    where = f"-n {shlex.quote(end.namespace)}"
    yield f"kubectl {where} describe tfjob {end.job}"
    yield f"kubectl {where} get pods -l training.kubeflow.org/job-name={end.job} -o wide"
    yield f"kubectl {where} get events --field-selector involvedObject.name={end.job}"
    for pod in end.pods:
        failed = [item.name for item in pod.containers if item.exit_code]
        for name in failed or [item.name for item in pod.containers[-1:]]:
            yield f"kubectl {where} logs {pod.name} -c {name}"


def _plain(text: str) -> str:
    return text.replace("\n", " ")


def _cell(text: str) -> str:
    return _plain(text).replace("|", "\\|")[:500]
