"""Reads the columns of a request in V2, the Open Inference Protocol: one tensor by column."""

# pyright: reportMissingImports=false
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kfp_tfjob.serving.refusal import RefusedRequest
from kfp_tfjob.serving.request_columns import RequestColumns, Rows
from kfp_tfjob.storage.errors import Problem

if TYPE_CHECKING:
    from kserve import InferInput


def inputs_of(columns: RequestColumns) -> list[dict[str, Any]]:
    """Return the inputs of a model as its metadata in V2 lists them; -1 is the number of rows."""
    return [
        {"name": name, "datatype": it.datatypes[0], "shape": [-1]}
        for name, it in columns.types.items()
    ]


def read(columns: RequestColumns, inputs: list[InferInput]) -> Rows:
    """Read a request's inputs.

    Raises:
        RefusedRequest: An input is missing, foreign, twice there, or of another type or shape.
    """
    found: dict[str, Sequence[Any]] = {}
    wrong: list[Problem] = []
    for item in inputs:
        name = columns.column(item.name)
        column = columns.types.get(name)
        if name in found:
            wrong.append(
                Problem(
                    f"the input {name!r} appears twice",
                    expected="each column once",
                    fix="send it once",
                    path=name,
                )
            )
        elif column and item.datatype not in column.datatypes:
            wrong.append(
                Problem(
                    f"the input {name!r} has the wrong data type for a {column.kind}",
                    received=item.datatype,
                    expected=" or ".join(column.datatypes),
                    fix=f"send {name!r} as {column.datatypes[0]}",
                    path=name,
                )
            )
        found[name] = _flat(item, wrong)
    lengths = {name: len(values) for name, values in found.items() if values is not None}
    if len(set(lengths.values())) > 1 or 0 in lengths.values():
        counts = ", ".join(f"{name}: {rows}" for name, rows in [*lengths.items()][:8])
        wrong.append(
            Problem(
                "the inputs do not have the same number of rows, at least one",
                received=counts,
                expected="one value per row in every input",
                fix="send the same number of values of each column",
            )
        )
    if wrong:
        raise RefusedRequest(*wrong)
    return columns.of_columns(found, lambda name, row: f"{name}[{row}]")


def _flat(item: InferInput, wrong: list[Problem]) -> Any:
    """Return the values of an input, one by row; None, and a problem, if that is not possible."""
    rows = item.shape[0] if item.shape else 0
    try:
        values: Any = item.data  # never the contents of gRPC: the server answers HTTP only
        if values is None or not len(values):  # a tensor in binary
            values = item.as_numpy().reshape(-1)
        while len(values) and isinstance(values[0], list):
            values = [value for part in values for value in part]
        if len(values) == rows == math.prod(item.shape):
            return values
        received = f"shape {item.shape} with {len(values)} values"
    except Exception as error:  # what kserve and numpy say about bytes that are no tensor
        received = f"{type(error).__name__}: {error}"
    wrong.append(
        Problem(
            f"the input {item.name!r} does not have one value per row",
            received=received,
            expected="shape [rows] or [rows, 1], and as many values",
            fix="send one input for each column, with its values in the order of the rows",
            path=item.name,
        )
    )
    return None
