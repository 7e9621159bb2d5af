"""Renders how a run ended, in Markdown for a panel 500 px wide.

In that panel, a fenced line does not wrap, a list has no bullets, and an underscore outside
backticks starts italics. So each item is a paragraph, and every name is in backticks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from kfp_tfjob.components.finish.cluster import Left
from kfp_tfjob.components.finish.workflow import FailedTask
from kfp_tfjob.components.step import Failure
from kfp_tfjob.storage.errors import LABELS
from kfp_tfjob.storage.text import code, fence, prose, row

_NUMBERED = re.compile(r"  (\d+)\. (.*)")
_QUOTED = "    "
_NAMES = [label.strip() for label in LABELS.values() if label]
_PARTS = re.compile(rf" (?=(?:{'|'.join(_NAMES)}) )")
_SHOWN_LINES = 12


def describe(failure: Failure) -> list[str]:
    """Return the failure and its fix, with a paragraph for each part of the message."""
    return [
        f"{code(failure.verdict)} (exit code {failure.code})",
        "",
        *message(failure.message),
    ]


def message(said: str) -> Iterator[str]:
    """Yield the lines of an error message, which may list several problems."""
    quoted: list[str] = []
    for text in said.split("\n"):
        if text.startswith(_QUOTED):
            quoted.append(text.removeprefix(_QUOTED))
            continue
        yield from _block(quoted)
        quoted = []
        if number := _NUMBERED.fullmatch(text):
            yield from (f"### Problem {number[1]}", "")
            text = number[2]
        for part in _PARTS.split(text):
            if part.strip():
                yield from (_part(part), "")
    yield from _block(quoted)


def _part(text: str) -> str:
    for name in _NAMES:
        if text.startswith(f"{name} "):
            return f"**{name}** {prose(text.removeprefix(name))}"
    return prose(text)


def _block(quoted: Sequence[str]) -> list[str]:
    return [*fence(quoted), ""] if quoted else []


def about(left: Left, folder: str) -> list[str]:
    """Return which attempt the page describes, and where to read the run's status.

    An exit task runs once: after a manual retry, its page still describes the earlier attempt.

    Args:
        left: The state of the run on the cluster.
        folder: The folder of the run's output.
    """
    now = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"
    ends = [_time(task.ended) for task in left.failed if task.ended]
    ended = f" that ended at {ends[0]}" if ends else ""
    return [
        "## The attempt that this page describes",
        "",
        f"Written at {now} for the attempt{ended}. A retry of this run does not update it.",
        "",
        f"The current status of the run: {code(folder)}, which has `failure.json` only if the last"
        " attempt failed, and the page of the last step of the run.",
        "",
    ]


def last_words(tasks: Sequence[FailedTask]) -> list[str]:
    """Return the last log lines of the failed tasks."""
    shown = []
    for task in tasks:
        what = f"the driver of `{task.step}`" if task.driver else f"`{task.step}`"
        shown += [f"## What {what} left", ""]
        shown += [f"Argo says: {prose(task.said)}" if task.said else "Argo gives no reason.", ""]
        if words := task.last_words[-_SHOWN_LINES:]:
            shown += ["The last lines of its log:", "", *fence(words), ""]
        if task.pod:
            shown += ["To see more while the pod still exists:", ""]
            shown += [code(f"kubectl logs {task.pod} -c main"), ""]
    return shown


def on_cluster(left: Left) -> list[str]:
    """Return table rows for what was found and done on the cluster."""
    ended = ", ".join(code(name) for name in left.cancelled)
    return [
        *([row("ended on the cluster", ended)] if ended else []),
        *([row("could not read from the cluster", prose(left.trouble))] if left.trouble else []),
        *([row("a person terminated the run", "yes")] if left.terminated else []),
    ]


def _time(rfc3339: str) -> str:
    return f"{rfc3339.replace('T', ' ').removesuffix('Z')} UTC"
