"""Runs what a command of a release does: its results are lines, its errors a sentence."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable

from kfp_tfjob.common.errors import StepError


def run(name: str, action: Callable[[], Iterable[object]]) -> int:
    """Print the results of an action, one on each line; return the exit code.

    Args:
        name: The command, for the error.
        action: What it does.
    """
    try:
        results = action()
    except StepError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return error.code
    print(*results, sep="\n")
    return 0
