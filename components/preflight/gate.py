"""Checks what `gate` names: the code of the evaluator, and columns of the data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kfp_tfjob.components.prepare_data.source import resolve as sources
from kfp_tfjob.judging.evaluator_code import PATH, EvaluatorCode
from kfp_tfjob.options.data import DataOptions
from kfp_tfjob.options.gate import parse_gate
from kfp_tfjob.storage.errors import ConfigurationError, Problem, StepError
from kfp_tfjob.storage.formatting import choices, nearest
from kfp_tfjob.storage.store import Store
from kfp_tfjob.user_code.own_code import place_of


def place(gate: Mapping[str, Any]) -> dict[str, str]:
    """Return `gate.evaluator` with the place of its code; nothing if the image has it.

    Raises:
        ConfigurationError: It does not name a function.
    """
    return place_of(PATH, str(gate.get("evaluator") or ""))


def check_evaluator(store: Store, gate: Mapping[str, Any]) -> tuple[str, list[Problem | str]]:
    """Return the digest of the code of `gate.evaluator`, empty without one, and its problems."""
    options = parse_gate(gate)
    if not (options and options.evaluator):
        return "", []
    try:
        return EvaluatorCode.read(options.evaluator, store).digest, []
    except ConfigurationError as error:
        return "", list(error.problems)


def check_columns(
    source: sources.Source, label: str, options: DataOptions, gate: Mapping[str, Any]
) -> Iterator[Problem]:
    """Check that the columns of slices are features or the label.

    Args:
        source: The files.
        label: The label column.
        options: The typed `data_options`.
        gate: As in the form.
    """
    try:
        judged = parse_gate(gate)
    except ConfigurationError:
        return  # a problem of its own
    if judged is None:
        return
    if not judged.slices:
        return
    try:
        columns = sources.columns_of(source, label, options)
    except StepError:
        return  # the header is a problem of its own
    known = [*columns.features, columns.label] if columns else []
    for name in dict.fromkeys(one.column for one in judged.slices) if columns else ():
        if name not in known:
            meant = nearest(name, known)
            yield Problem(
                f"gate.slices names a column that is neither a feature nor the label: {name!r}",
                expected=choices(known, meant),
                fix="correct gate.slices, or keep the column in data_options",
                path="gate.slices",
                suggestion=meant,
            )
