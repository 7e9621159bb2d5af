"""Makes corrections that cannot change the intent; each returns what it did."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kfp_tfjob.jobs.tfjob import TFJOB
from kfp_tfjob.lint.document import Path, show
from kfp_tfjob.lint.job import Job, Replica

Correction = Callable[[], str]


def sets(body: dict[str, Any], key: str, value: Any) -> Correction:
    """Set a key."""

    def correct() -> str:
        before, body[key] = body.get(key), value
        return f"{key}: {value}" + (f" in place of {before}" if before else "")

    return correct


def renames(job: Job, replica: Replica, role: str) -> Correction:
    """Rename a replica type without moving it."""

    def correct() -> str:
        specs = job.spec[TFJOB.replicas_key]
        renamed = {role if key == replica.key else key: body for key, body in specs.items()}
        specs.clear()
        specs.update(renamed)
        return f"renamed {replica.key} to {role}"

    return correct


def replaces(job: Job, path: Path, right: Any) -> Correction:
    """Replace the value at a path with the same value in a different type."""

    def correct() -> str:
        parent: Any = job.body
        for part in path[len(job.path) : -1]:
            parent = parent[part]
        parent[path[-1]] = right
        kind = {str: "text", int: "number", bool: "true or false"}[type(right)]
        return f"{show(path[len(job.path) :])} is {kind}"

    return correct


def removes(body: dict[str, Any], key: str, why: str) -> Correction:
    """Remove a key that has no effect."""

    def correct() -> str:
        return f"removed {key}: {body.pop(key)}, {why}"

    return correct
