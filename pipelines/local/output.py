"""Filters the output of kfp.local: only the steps' own lines, by step."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from kfp_tfjob.storage.escaping import lines as safe_lines

_TASK = re.compile(r"Executing task '([^']+)'")
_ENDED = re.compile(r" - INFO - Task '[^']+' ")
_INDENT = "    "


def readable(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield (step, text) for every line that a step printed, and (step, "") when one begins.

    kfp.local indents the lines of the steps and adds messages of its executor. After one of these
    messages it prints the whole input of the step as JSON.
    """
    step, in_input = "", False
    for line in lines:
        line = safe_lines(line.rstrip("\n"))
        if task := _TASK.search(line):
            step = task.group(1).replace("-", "_")
            yield step, ""
            continue
        if _ENDED.search(line):
            step = ""  # its outputs follow, printed by kfp.local
        if not line.startswith(_INDENT) or not line.strip():
            continue
        text = line.removeprefix(_INDENT)
        if in_input:
            in_input = text != "}"
        elif text.startswith("[KFP Executor"):
            in_input = "Got executor_input" in text
        elif step:
            yield step, text
