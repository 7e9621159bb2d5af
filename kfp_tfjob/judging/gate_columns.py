"""Checks `gate` against schema.json: its metrics, and the columns and edges of its slices.

Called by prepare_data as soon as the schema is known, so that a typo fails a run before training,
and by judge.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kfp_tfjob.common.errors import ConfigurationError, Problem, Problems
from kfp_tfjob.common.formatting import choices, did_you_mean, nearest
from kfp_tfjob.features.schema import Schema, SchemaLabel
from kfp_tfjob.options.gate import Slice, check_metrics, parse_gate
from kfp_tfjob.options.metric_names import OF_SEVERAL_CLASSES


def check_gate(gate: Mapping[str, Any], schema: Schema) -> None:
    """Check that the metrics and slices of `gate` fit the data.

    Args:
        gate: The gate as the user wrote it.
        schema: The content of schema.json.

    Raises:
        ConfigurationError: One problem for each metric and slice that does not fit.
    """
    problems, options = Problems(), parse_gate(gate)
    problems.of(lambda: check_metrics(options, schema.task, schema.classes))
    for declared in options.slices if options else ():
        problem = _slice_problem(declared, schema)
        if options and not problem:
            problem = _single_class_problem(declared, options.primary_metric, schema.label)
        if problem:
            problems.append(problem)
    if problems:
        raise ConfigurationError(*problems)


def _slice_problem(declared: Slice, schema: Schema) -> Problem | None:
    """Return the problem of a slice that does not fit the schema's columns; None if it fits."""
    label = schema.label.name
    columns = [*schema.names, label]
    if declared.column not in columns:
        suggestion = nearest(declared.column, columns)
        return Problem(
            f"the data has no column {declared.column!r}",
            received=declared.column,
            expected=f"one of {choices(columns, suggestion)}",
            fix=did_you_mean(suggestion, "name one of these columns"),
            path="gate.slices",
            name="column-not-found",
        )
    if not declared.edges:
        return None
    are_dates = isinstance(declared.edges[0], str)
    quoted, edge_type = repr(declared.column), _edge_type(declared.column, schema)
    if edge_type is None:
        reason = (
            f"is {schema.type_of(declared.column).nouns[0]}"
            if declared.column != label
            else "has classes"
        )
        summary = f"{quoted} {reason}, so edges do not divide it"
        fix = "remove the edges, so that each value becomes a slice"
    elif are_dates == (edge_type is str):
        return None
    elif are_dates:
        summary, fix = f"{quoted} contains numbers, but its edges are dates", "use numbers as edges"
    else:
        summary = f"{quoted} contains dates, but its edges are numbers"
        fix = 'use dates such as "2026-01-31" as edges'
    return Problem(summary, received=declared.edges, fix=fix, path="gate.slices")


def _single_class_problem(declared: Slice, metric: str, label: SchemaLabel) -> Problem | None:
    """Return the problem of slices by class, in which the metric is undefined; otherwise None."""
    classes = label.classes or ()
    metric = "auc" if metric == "auto" and len(classes) == 2 else metric
    each_class = declared.column == label.name and classes and not declared.edges
    if not each_class or metric not in OF_SEVERAL_CLASSES or declared.thresholds:
        return None
    return Problem(
        f"each slice of {declared.column!r} has one class, so {metric} has no value there",
        received=metric,
        expected="a metric that one class is enough for, or thresholds",
        fix="set gate.primary_metric to accuracy, give these slices thresholds for it, or remove"
        " them",
        path="gate.slices",
    )


def _edge_type(column: str, schema: Schema) -> type | None:
    """Return the type of a column's edges, `float` or `str` for dates; None without edges."""
    if column == schema.label.name:
        return None if schema.label.classes else float
    return schema.type_of(column).edge_type
