"""Checks task keys; a key becomes a folder in the store, a label, and part of a job's name."""

from __future__ import annotations

import re

from kfp_tfjob.storage.errors import Problem

# A job's name has at most 50 characters. This leaves room for the kind, the run and the attempt.
LONGEST = 20
_KEY = re.compile(rf"[a-z0-9](?:[a-z0-9-]{{0,{LONGEST - 2}}}[a-z0-9])?")


def check_task_key(key: str) -> list[Problem]:
    """Return the problems of a task key; an empty one is valid."""
    if not key or _KEY.fullmatch(key):
        return []
    return [
        Problem(
            "task_key is not valid",
            received=repr(key),
            expected=f"at most {LONGEST} lowercase letters, digits and -, with a letter or digit at"
            " the ends; or nothing",
            fix="set task_key to such a name, for instance eu",
            path="task_key",
        )
    ]
