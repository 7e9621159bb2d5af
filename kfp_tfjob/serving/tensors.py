"""Parses a V2 request (Open Inference Protocol) with one tensor for each column.

Called by protocol.py; request_columns.py then checks the values.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kfp_tfjob.common.errors import Problem

from .refusal import RefusedRequest
from .request_columns import RequestColumns, Rows

if TYPE_CHECKING:
    from kserve import InferInput

# Types that round numbers, even those that are written in JSON.
_FLOAT_TYPES = {"FP32": np.float32, "FP16": np.float16}


def inputs_of(columns: RequestColumns) -> list[dict[str, Any]]:
    """Return a model's inputs for its V2 metadata; -1 is the number of rows."""
    return [
        {"name": name, "datatype": column.datatypes[0], "shape": [-1]}
        for name, column in columns.types.items()
    ]


def read(columns: RequestColumns, inputs: list[InferInput]) -> Rows:
    """Parse a request's inputs.

    Raises:
        RefusedRequest: An input is missing, unknown or duplicate, or has another type or shape.
    """
    columns_read: dict[str, Sequence[Any]] = {}
    float_types = {
        columns.column(item.name): _FLOAT_TYPES[item.datatype]
        for item in inputs
        if item.datatype in _FLOAT_TYPES
    }
    problems: list[Problem] = []
    for item in inputs:
        name = columns.column(item.name)
        column = columns.types.get(name)
        if name in columns_read:
            problems.append(
                Problem(
                    f"the input {name!r} appears twice",
                    expected="each column once",
                    fix="send it once",
                    path=name,
                )
            )
        elif column and item.datatype not in column.datatypes:
            problems.append(
                Problem(
                    f"the input {name!r} has the wrong data type for a {column.kind}",
                    received=item.datatype,
                    expected=" or ".join(column.datatypes),
                    fix=f"send {name!r} as {column.datatypes[0]}",
                    path=name,
                )
            )
        columns_read[name] = _flatten(item, problems)
    lengths = {name: len(values) for name, values in columns_read.items() if values is not None}
    if len(set(lengths.values())) > 1 or 0 in lengths.values():
        counts = ", ".join(f"{name}: {rows}" for name, rows in [*lengths.items()][:8])
        problems.append(
            Problem(
                "the inputs have different lengths, or are empty",
                received=counts,
                expected="one value per row in every input",
                fix="send the same number of values of each column",
            )
        )
    if problems:
        raise RefusedRequest(*problems)
    return columns.of_columns(columns_read, lambda name, row: f"{name}[{row}]", float_types)


def _flatten(item: InferInput, problems: list[Problem]) -> Any:
    """Return an input's (rows,) values; None, with a new entry in `problems`, if invalid."""
    rows = item.shape[0] if item.shape else 0
    try:
        values: Any = item.data  # gRPC's contents need no check, because the server is HTTP only
        if values is None or not len(values):  # a binary tensor
            values = item.as_numpy().reshape(-1)
        while len(values) and isinstance(values[0], list):
            values = [value for part in values for value in part]
        if len(values) == rows == math.prod(item.shape):
            return values
        received = f"shape {item.shape} with {len(values)} values"
    except Exception as error:  # kserve and numpy raise many types for invalid bytes
        received = f"{type(error).__name__}: {error}"
    problems.append(
        Problem(
            f"the input {item.name!r} does not have one value per row",
            received=received,
            expected="shape [rows] or [rows, 1], and as many values",
            fix="send one input for each column, with its values in the order of the rows",
            path=item.name,
        )
    )
    return None
