"""Checks `gate` against schema.json: its metrics, and the columns and edges of its slices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

from kfp_tfjob.features.coding import BOOLEAN, CATEGORY, DATE, KINDS, NUMBER, TEXT
from kfp_tfjob.features.pictures import PICTURE
from kfp_tfjob.options.gate import Slice, check_metrics, parse_gate
from kfp_tfjob.options.metric_names import OF_SEVERAL_CLASSES
from kfp_tfjob.storage.errors import ConfigurationError, Problem, Problems
from kfp_tfjob.storage.formatting import choices, nearest

_WITHOUT_RANGES = {
    BOOLEAN: "a boolean",
    CATEGORY: "a category",
    TEXT: "a text",
    PICTURE: "a picture",
}


def check_gate(gate: Mapping[str, Any], schema: Mapping[str, Any]) -> None:
    """Check that the metrics and slices of `gate` fit the data.

    Args:
        gate: As in the form.
        schema: The content of schema.json.

    Raises:
        ConfigurationError: One problem for everything that does not.
    """
    found = Problems()
    classes = schema["label"].get("classes") or ()
    found.of(lambda: check_metrics(gate, schema["task"], classes))
    options = parse_gate(gate)
    for one in options.slices if options else ():
        problem = slice_problem(one, schema)
        if options and not problem:
            problem = _one_class(one, options.primary_metric, schema["label"])
        if problem:
            found.append(problem)
    if found:
        raise ConfigurationError(*found)


def slice_problem(one: Slice, schema: Mapping[str, Any]) -> Problem | None:
    """Return why a slice does not fit the columns of schema.json; None if it does."""
    label = schema["label"]["name"]
    known = [*(feature["name"] for feature in schema["features"]), label]
    if one.column not in known:
        meant = nearest(one.column, known)
        question = f"did you mean {meant!r}? " if meant else ""
        return Problem(
            f"the data has no column {one.column!r}",
            received=one.column,
            fix=f"{question}It has {choices(known, meant)}",
            path="gate.slices",
        )
    if not one.edges:
        return None
    are_dates = isinstance(one.edges[0], str)
    kind = _kind(one.column, schema)
    shown = repr(one.column)
    if kind == NUMBER and are_dates:
        what, fix = f"{shown} has numbers, and its edges are dates", "use numbers as edges"
    elif kind == DATE and not are_dates:
        what = f"{shown} has dates, and its edges are numbers"
        fix = 'use dates such as "2026-01-31" as edges'
    elif kind in (NUMBER, DATE):
        return None
    else:
        why = f"is {_WITHOUT_RANGES[kind]}"
        if one.column == label:
            text = next(name for name in schema["label"]["classes"] if number_of(name) is None)
            why = f"has classes that are no numbers, such as {text!r}"
        what = f"{shown} {why}, so edges do not divide it"
        fix = "leave the edges out; each value is a slice then"
    return Problem(what, received=one.edges, fix=fix, path="gate.slices")


def _one_class(one: Slice, metric: str, label: Mapping[str, Any]) -> Problem | None:
    """Return that the metric has no value in any slice; None if it may have one."""
    classes = label.get("classes") or ()
    metric = "auc" if metric == "auto" and len(classes) == 2 else metric
    each_class = one.column == label["name"] and classes and not one.edges
    if not each_class or metric not in OF_SEVERAL_CLASSES or one.thresholds:
        return None
    return Problem(
        f"each slice of {one.column!r} has one class, and {metric} has no value there",
        received=metric,
        fix="set gate.primary_metric to accuracy, give these slices thresholds for it, or leave"
        " them out",
        path="gate.slices",
    )


def class_numbers(classes: Sequence[str] | None) -> list[float] | None:
    """Return the number that each class is; None unless all of them are numbers."""
    found = [number_of(name) for name in classes or ()]
    return [it for it in found if it is not None] if found and None not in found else None


def number_of(text: str) -> float | None:
    """Return a text as a number; None if it is none."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if isfinite(value) else None


def _kind(column: str, schema: Mapping[str, Any]) -> str:
    label = schema["label"]
    if column == label["name"]:
        classes = label.get("classes")
        return CATEGORY if classes and class_numbers(classes) is None else NUMBER
    (kind,) = (it.get("type", "") for it in schema["features"] if it["name"] == column)
    if kind == PICTURE:
        return PICTURE
    return KINDS[kind]
