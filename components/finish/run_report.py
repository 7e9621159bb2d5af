"""Renders how a run ended, in Markdown for a panel 500 px wide.

In that panel, fenced lines do not wrap, lists lack bullets, and an underscore outside backticks
starts italics. So each item is a paragraph, and every name is in backticks. Called by finish's
engine, and by a local run when it ends.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import groupby

from kfp_tfjob.common.errors import ended
from kfp_tfjob.common.escaping import code, fence, prose, row
from kfp_tfjob.jobs.attempt_record import AttemptEnd, EndedContainer, EndedPod
from kfp_tfjob.jobs.failure_record import Failure
from kfp_tfjob.jobs.kinds import kind_named

from .leftover_jobs import ClusterReport
from .workflow import FailedTask

_SHOWN_LINES = 12  # the panel is small, and the command for the whole log follows
_MOST_IN_CELL = 500  # characters; a longer cell pushes the other columns out of the panel


def describe(failure: Failure) -> list[str]:
    """Return the failure, its fix and its documentation, with a paragraph for each part."""
    first = f"{code(failure.verdict)} (exit code {failure.code})"
    return [first, "", *problems(failure), f"**Docs:** {code(failure.docs_address)}", ""]


def problems(failure: Failure) -> Iterator[str]:
    """Yield the lines about what is wrong; an old record has only a message."""
    for number, problem in enumerate(failure.problems, 1):
        if len(failure.problems) > 1:
            yield from (f"### Problem {number}", "")
        yield from _text(problem.what if "\n" in problem.what else ended(problem.what))
        for name, value in (
            ("Received", problem.received),
            ("Expected", problem.expected),
            ("Fix", problem.fix),
        ):
            if value:
                yield from (f"**{name}:** {prose(ended(value))}", "")
        yield from _block(problem.examples)
    if not failure.problems:
        yield from _text(failure.message)
    for note in failure.notes:
        yield from (prose(note), "")
    if failure.last_lines:
        yield from ("Its last lines:", "", *_block(failure.last_lines))


def _text(text: str) -> Iterator[str]:
    """Yield a paragraph for each line; indented lines are a block."""
    for quoted, lines in groupby(text.split("\n"), lambda line: line.startswith("    ")):
        if quoted:
            yield from _block([line[4:] for line in lines])
        else:
            yield from (part for line in lines for part in (prose(line), ""))


def _block(quoted: Sequence[str]) -> list[str]:
    return [*fence(quoted), ""] if quoted else []


def about(cluster: ClusterReport, run_id: str) -> list[str]:
    """Return the first line: the time that the page describes, and the newest result's place.

    An exit task that has succeeded does not run again after a retry.
    """
    ends = [_time(task.ended) for task in cluster.failed if task.ended]
    end_time = ends[0] if ends else f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"
    return [
        f"This page describes this run as it ended at {end_time}, and Kubeflow Pipelines does not"
        " update it. If the run has been retried since, its newest result is on the page of its"
        f" last step: {code(f'kfp-tfjob why {run_id[:8]}')} shows it.",
        "",
    ]


def last_words(tasks: Sequence[FailedTask]) -> list[str]:
    """Return the last log lines of the failed tasks."""
    lines = []
    for task in tasks:
        source = f"the driver of `{task.step}`" if task.driver else f"`{task.step}`"
        lines += [f"## Output of {source}", ""]
        lines += [
            f"Argo says: {prose(task.message)}" if task.message else "Argo gives no reason.",
            "",
        ]
        if words := task.last_words[-_SHOWN_LINES:]:
            lines += ["The last lines of its log:", "", *fence(words), ""]
        if task.pod:
            lines += ["To see more while the pod still exists:", ""]
            lines += [code(f"kubectl logs {task.pod} -c main"), ""]
    return lines


def on_cluster(cluster: ClusterReport) -> list[str]:
    """Return table rows: the jobs that were ended, errors of the cluster, and a user's Terminate.

    A row without content is omitted.
    """
    ended = ", ".join(code(name) for name in cluster.cancelled)
    return [
        *([row("ended on the cluster", ended)] if ended else []),
        *(
            [row("could not read from the cluster", prose(cluster.trouble))]
            if cluster.trouble
            else []
        ),
        *([row("a user terminated the run", "yes")] if cluster.terminated else []),
    ]


def _time(rfc3339: str) -> str:
    return f"{rfc3339.replace('T', ' ').removesuffix('Z')} UTC"


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
        reason = "; ".join(filter(None, [*reasons, container.reason, container.message]))
        again = f", {container.restarts} restarts" if container.restarts else ""
        state = f"{container.state}{again}"
        yield row(*first, code(container.name), state, number, _cell(reason))


def _commands(end: AttemptEnd) -> Iterator[str]:
    kind = kind_named(end.kind)
    where = f"-n {shlex.quote(end.namespace)}"
    yield f"kubectl {where} describe {kind.name.lower()} {end.job}"
    for pod in end.pods:
        failed = [item.name for item in pod.containers if item.exit_code]
        for name in failed or [item.name for item in pod.containers[-1:]]:
            yield f"kubectl {where} logs {pod.name} -c {name}"


def _cell(text: str) -> str:
    return prose(" ".join(text.split()), _MOST_IN_CELL)
