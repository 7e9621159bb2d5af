"""The result of a check: a problem with a status, for preflight, `doctor` and `submit`'s plan.

A check does not decide whether a run may start; the programs that run it do, by the status.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum

from kfp_tfjob.common.errors import Problem


class Status(StrEnum):
    """The consequence of a finding for a run."""

    OK = "ok"
    UNKNOWN = "unknown"  # it could not be checked from here
    WARNING = "warning"  # the run starts
    WAITS = "waits"  # the run's pods wait until the cluster changes
    PROBLEM = "problem"  # the run would fail


@dataclass(frozen=True)
class Finding(Problem):
    """One thing that was checked, and its consequence for a run."""

    status: Status = Status.PROBLEM

    @classmethod
    def of(cls, problem: Problem | str, status: Status = Status.PROBLEM) -> Finding:
        """Return a problem as a finding; a problem that is a finding keeps its own status."""
        if isinstance(problem, Finding):
            return problem
        if isinstance(problem, str):
            return cls(problem, status=status)
        parts = {field.name: getattr(problem, field.name) for field in fields(Problem)}
        return cls(**parts, status=status)

    @property
    def text(self) -> str:
        """The whole message on one line, without a full stop at the end."""
        return str(self).removesuffix(".")


def ok(sentence: str) -> Finding:
    """Return the finding that a checked thing is in order."""
    return Finding(sentence, status=Status.OK)


def warning(sentence: str, fix: str = "") -> Finding:
    """Return the finding of a probable mistake with which the run still starts."""
    return Finding(sentence, fix=fix, status=Status.WARNING)


def waits(sentence: str, fix: str) -> Finding:
    """Return the finding of a condition that keeps the run's pods waiting."""
    return Finding(sentence, fix=fix, status=Status.WAITS)


def unknown(sentence: str, received: object = None, fix: str = "") -> Finding:
    """Return the finding that something could not be checked."""
    return Finding(sentence, received, fix=fix, status=Status.UNKNOWN)


def only(findings: Iterable[Finding], *statuses: Status) -> list[Finding]:
    """Return the findings with one of these statuses."""
    return [finding for finding in findings if finding.status in statuses]


def local_paths(addresses: Mapping[str, str]) -> Iterator[Finding]:
    """Yield a finding for each address, by its parameter, that is not in a store."""
    for name, address in addresses.items():
        if not address.strip().startswith("s3://"):
            yield Finding(
                f"{name} is a path on this machine, which a pod on the cluster cannot read",
                received=address,
                expected="an address s3://BUCKET/KEY",
                fix=f"copy it to the store and correct {name}; `kfp-tfjob run` takes a path",
                path=name,
                name="not-an-s3-address",
            )
