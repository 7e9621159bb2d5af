"""Checks `gate` against schema.json: its metrics, and the columns and edges of its slices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kfp_tfjob.features.schema import Schema, SchemaLabel
from kfp_tfjob.options.gate import Slice, check_metrics, parse_gate
from kfp_tfjob.options.metric_names import OF_SEVERAL_CLASSES
from kfp_tfjob.storage.errors import ConfigurationError, Problem, Problems
from kfp_tfjob.storage.formatting import choices, did_you_mean, nearest


def check_gate(gate: Mapping[str, Any], schema: Schema) -> None:
    """Check that the metrics and slices of `gate` fit the data.

    Args:
        gate: As in the form.
        schema: The content of schema.json.

    Raises:
        ConfigurationError: One problem for everything that does not.
    """
    found, options = Problems(), parse_gate(gate)
    found.of(lambda: check_metrics(options, schema.task, schema.classes))
    for one in options.slices if options else ():
        problem = _slice_problem(one, schema)
        if options and not problem:
            problem = _one_class(one, options.primary_metric, schema.label)
        if problem:
            found.append(problem)
    if found:
        raise ConfigurationError(*found)


def _slice_problem(one: Slice, schema: Schema) -> Problem | None:
    """Return why a slice does not fit the columns of schema.json; None if it does."""
    label = schema.label.name
    known = [*schema.names, label]
    if one.column not in known:
        meant = nearest(one.column, known)
        return Problem(
            f"the data has no column {one.column!r}",
            received=one.column,
            expected=f"one of {choices(known, meant)}",
            fix=did_you_mean(meant, "name one of these columns"),
            path="gate.slices",
        )
    if not one.edges:
        return None
    are_dates = isinstance(one.edges[0], str)
    shown, edges = repr(one.column), _edges(one.column, schema)
    if edges is None:
        why = f"is {schema.type_of(one.column).nouns[0]}" if one.column != label else "has classes"
        what = f"{shown} {why}, so edges do not divide it"
        fix = "remove the edges, so that each value becomes a slice"
    elif are_dates == (edges is str):
        return None
    elif are_dates:
        what, fix = f"{shown} contains numbers, but its edges are dates", "use numbers as edges"
    else:
        what = f"{shown} contains dates, but its edges are numbers"
        fix = 'use dates such as "2026-01-31" as edges'
    return Problem(what, received=one.edges, fix=fix, path="gate.slices")


def _one_class(one: Slice, metric: str, label: SchemaLabel) -> Problem | None:
    """Return that the metric has no value in any slice; None if it may have one."""
    classes = label.classes or ()
    metric = "auc" if metric == "auto" and len(classes) == 2 else metric
    each_class = one.column == label.name and classes and not one.edges
    if not each_class or metric not in OF_SEVERAL_CLASSES or one.thresholds:
        return None
    return Problem(
        f"each slice of {one.column!r} has one class, so {metric} has no value there",
        received=metric,
        expected="a metric that one class is enough for, or thresholds",
        fix="set gate.primary_metric to accuracy, give these slices thresholds for it, or remove"
        " them",
        path="gate.slices",
    )


def _edges(column: str, schema: Schema) -> type | None:
    """Return what divides a column's values into ranges; None if nothing does."""
    if column == schema.label.name:
        return None if schema.label.classes else float
    return schema.type_of(column).edge_type
