"""What a check finds: one type for preflight, `doctor` and the plan of `submit`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum

from kfp_tfjob.storage.errors import Problem


class Status(StrEnum):
    """What a finding means for a run."""

    OK = "ok"
    UNKNOWN = "unknown"  # it could not be checked from here
    WARNING = "warning"  # the run starts
    WAITS = "waits"  # its pods wait until the cluster changes
    PROBLEM = "problem"  # the run would fail


@dataclass(frozen=True)
class Finding(Problem):
    """One thing that was checked, and what it means for a run."""

    status: Status = Status.PROBLEM

    @classmethod
    def of(cls, problem: Problem | str, status: Status = Status.PROBLEM) -> Finding:
        """Return a problem as a finding; one that is a finding keeps its own status."""
        if isinstance(problem, Finding):
            return problem
        if isinstance(problem, str):
            return cls(problem, status=status)
        given = {field.name: getattr(problem, field.name) for field in fields(Problem)}
        return cls(**given, status=status)

    @property
    def text(self) -> str:
        """Everything on one line, without a full stop at the end."""
        return str(self).removesuffix(".")


def ok(what: str) -> Finding:
    """Return a finding that needs no fix."""
    return Finding(what, status=Status.OK)


def warning(what: str, fix: str = "") -> Finding:
    """Return a finding that may be wrong."""
    return Finding(what, fix=fix, status=Status.WARNING)


def waits(what: str, fix: str) -> Finding:
    """Return a finding that keeps pods waiting."""
    return Finding(what, fix=fix, status=Status.WAITS)


def unknown(what: str, received: object = None, fix: str = "") -> Finding:
    """Return a finding about something that could not be checked."""
    return Finding(what, received, fix=fix, status=Status.UNKNOWN)


def only(found: Iterable[Finding], *statuses: Status) -> list[Finding]:
    """Return the findings with one of these statuses."""
    return [it for it in found if it.status in statuses]


def local_paths(given: Mapping[str, str]) -> Iterator[Finding]:
    """Yield a finding for each parameter that names a place outside of a store."""
    for name, value in given.items():
        if not value.strip().startswith("s3://"):
            yield Finding(
                f"{name} is a path on this machine, which a pod on the cluster cannot read",
                received=value,
                expected="an address s3://BUCKET/KEY",
                fix=f"copy it to the store and correct {name}; `kfp-tfjob run` takes a path",
                path=name,
            )
