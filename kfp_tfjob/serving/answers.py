"""Formats a model's predictions as responses in V1 and V2.

V1 responses have TensorFlow Serving's format, so a client works with either server: for
classification, one object per row with `probabilities` and `class`; for regression, one number per
row. Called by protocol.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np

PROBABILITIES, CLASS, PREDICTION = "probabilities", "class", "prediction"


def outputs_of(classes: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return a model's outputs for its V2 metadata; -1 is the number of rows."""
    if not classes:
        return [{"name": PREDICTION, "datatype": "FP32", "shape": [-1]}]
    return [
        {"name": PROBABILITIES, "datatype": "FP32", "shape": [-1, len(classes)]},
        {"name": CLASS, "datatype": "BYTES", "shape": [-1]},
    ]


def predictions(classes: tuple[str, ...], values: np.ndarray) -> list[Any]:
    """Return the list `predictions` of a V1 response.

    Args:
        classes: The names of the classes; empty for a regression.
        values: (rows, classes) probabilities, or (rows,) values of a regression.
    """
    if not classes:
        return _json_numbers(values)
    return [
        {PROBABILITIES: row, CLASS: name}
        for row, name in zip(_json_numbers(values), _class_names(classes, values), strict=True)
    ]


def tensors(classes: tuple[str, ...], values: np.ndarray) -> list[dict[str, Any]]:
    """Return the outputs of a V2 response, with values in row-major order.

    Args:
        classes: The names of the classes; empty for a regression.
        values: (rows, classes) probabilities, or (rows,) values of a regression.
    """
    shape = list(values.shape)
    contents = [{"shape": shape, "data": _json_numbers(values.reshape(-1))}]
    if classes:
        names = [name or "" for name in _class_names(classes, values)]
        contents.append({"shape": shape[:1], "data": names})
    return [
        metadata | content for metadata, content in zip(outputs_of(classes), contents, strict=True)
    ]


def _class_names(classes: tuple[str, ...], values: np.ndarray) -> list[str | None]:
    """Return the most likely class of each row; None if a probability is not finite."""
    is_finite = np.asarray(np.isfinite(values).all(axis=1))
    best = values.argmax(axis=1)
    return [
        classes[index] if finite else None for index, finite in zip(best, is_finite, strict=True)
    ]


def _json_numbers(values: np.ndarray) -> list[Any]:
    """Return a list of numbers, nested like the array; None, JSON's null, if one is not finite."""
    numbers = values.astype(np.float32).tolist()
    if np.isfinite(values).all():
        return numbers
    with_nulls = values.astype(object)
    with_nulls[~np.isfinite(values)] = None
    return with_nulls.tolist()
