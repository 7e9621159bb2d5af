"""Reads the columns of a request in V2, the Open Inference Protocol: one tensor by column."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from kfp_tfjob.serving.refusal import RefusedRequest
from kfp_tfjob.serving.request_columns import RequestColumns, Rows
from kfp_tfjob.storage.errors import Problem


class Tensor(Protocol):
    """An input of a request, as kserve reads it."""

    @property
    def name(self) -> str:
        """The name of the column."""
        ...

    @property
    def datatype(self) -> str:
        """For instance `FP64`."""
        ...

    @property
    def shape(self) -> list[int]:
        """The size in each dimension."""
        ...

    @property
    def data(self) -> Any:
        """The values, possibly nested; None or empty if they came as bytes."""
        ...

    def as_numpy(self) -> np.ndarray:
        """Return the values that came as bytes."""
        ...


def inputs_of(columns: RequestColumns) -> list[dict[str, Any]]:
    """Return the inputs of a model as its metadata in V2 lists them; -1 is the number of rows."""
    return [
        {"name": name, "datatype": it.datatypes[0], "shape": [-1]}
        for name, it in columns.types.items()
    ]


def read(columns: RequestColumns, inputs: list[Tensor]) -> Rows:
    """Read the inputs of a request.

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
                Problem(f"the input {name!r} appears twice", fix="send it once", path=name)
            )
        elif column and item.datatype not in column.datatypes:
            wrong.append(
                Problem(
                    f"the input {name!r} has a data type that does not fit a {column.kind}",
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


def _flat(item: Tensor, wrong: list[Problem]) -> Any:
    """Return the values of an input, one by row; None, and a problem, if that is not possible."""
    rows = item.shape[0] if item.shape else 0
    try:
        values = item.data
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
