"""Compares runs: what was different, and what came of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kfp_tfjob.pipelines.kubeflow.records import Records
from kfp_tfjob.pipelines.kubeflow.runs import Run


@dataclass(frozen=True)
class Metric:
    """A metric on the test rows of a run.

    Attributes:
        value: Its value; None if it has none.
        low: Lower end of its interval; None if unknown.
        high: Upper end.
    """

    value: float | None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Compared:
    """One run of a comparison.

    Attributes:
        run: The run, with its verdict.
        dataset: The digest of its prepared dataset; empty if unknown.
        rows: Its test rows; None if unknown.
        primary: The metric that the gate decides by; empty if unknown.
        metrics: By name.
        checks: What the gate said, check by check.
        training_seconds: How long its jobs ran; None if unknown.
        gpu_hours: What they held; None if unknown.
        attempts: How many jobs it took; None if unknown.
        note: Why something is unknown; empty if nothing is.
    """

    run: Run
    dataset: str = ""
    rows: int | None = None
    primary: str = ""
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    checks: tuple[str, ...] = ()
    training_seconds: float | None = None
    gpu_hours: float | None = None
    attempts: int | None = None
    note: str = ""


@dataclass(frozen=True)
class Comparison:
    """Several runs.

    Attributes:
        runs: In the order given.
        parameters: The parameters that differ, down to the key, with the value of each run; None
            for one that a run does not say, so that it has the default of its pipeline.
        same_data: Whether all have the same dataset; None if unknown.
    """

    runs: tuple[Compared, ...]
    parameters: Mapping[str, tuple[Any, ...]]
    same_data: bool | None


def compare(runs: Iterable[Run], endpoint: str = "") -> Comparison:
    """Return what differs between runs.

    Args:
        runs: At least two.
        endpoint: URL of the store as this machine reaches it.
    """
    found = tuple(_compared(run, Records(run, endpoint)) for run in runs)
    digests = [it.dataset for it in found]
    return Comparison(
        found,
        differing([it.run.parameters for it in found]),
        len(set(digests)) == 1 if all(digests) else None,
    )


def differing(parameters: list[Mapping[str, Any]]) -> dict[str, tuple[Any, ...]]:
    """Return the parameters that differ, by their path, with every run's value."""
    flat = [dict(_flat(values)) for values in parameters]
    paths = sorted({path for values in flat for path in values})
    rows = {path: tuple(values.get(path) for values in flat) for path in paths}
    return {path: row for path, row in rows.items() if any(value != row[0] for value in row)}


def _flat(values: Mapping[str, Any], above: str = "") -> Iterable[tuple[str, Any]]:
    for name, value in values.items():
        path = f"{above}.{name}" if above else str(name)
        if isinstance(value, Mapping) and value:
            yield from _flat(value, path)
        elif value != {}:
            yield path, value


def _compared(run: Run, records: Records) -> Compared:
    run = records.judged()
    ends = [end for end in records.ends().values() if end]
    verdict = records.verdict()
    seconds = sum(sum(end.seconds.values()) for end in ends) if ends else None
    gpus = sum(sum(end.gpu_seconds.values()) for end in ends) / 3600 if ends else None
    spent = {"training_seconds": seconds, "gpu_hours": gpus, "attempts": len(ends) or None}
    if verdict is None:
        note = records.trouble or "it has no verdict"
        return Compared(run, note=note, **spent)
    intervals = verdict.get("intervals") or {}
    return Compared(
        run,
        dataset=verdict["dataset_digest"],
        rows=verdict["rows"],
        primary=verdict["primary_metric"],
        metrics={
            name: Metric(value, *(intervals.get(name) or (None, None)))
            for name, value in verdict["metrics"].items()
        },
        checks=tuple(str(check["explanation"]) for check in verdict["checks"]),
        **spent,
    )
