"""Writes the predictions of a model as answers in V1 and V2.

V1 has the form of TensorFlow Serving, so a client does not have to change if that server takes
over: for classification, one object per row with `probabilities` and `class`; for regression, one
number per row.
"""

from __future__ import annotations

from typing import Any

import numpy as np

PROBABILITIES, CLASS, PREDICTION = "probabilities", "class", "prediction"


def outputs_of(classes: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return the outputs of a model as its metadata in V2 lists them; -1 is the number of rows."""
    if not classes:
        return [{"name": PREDICTION, "datatype": "FP32", "shape": [-1]}]
    return [
        {"name": PROBABILITIES, "datatype": "FP32", "shape": [-1, len(classes)]},
        {"name": CLASS, "datatype": "BYTES", "shape": [-1]},
    ]


def predictions(classes: tuple[str, ...], values: np.ndarray) -> list[Any]:
    """Return `predictions` of an answer in V1.

    Args:
        classes: The names of the classes; none for a regression.
        values: (rows, classes) probabilities, or (rows,) values of a regression.
    """
    if not classes:
        return _plain(values)
    return [
        {PROBABILITIES: row, CLASS: name}
        for row, name in zip(_plain(values), _names(classes, values), strict=True)
    ]


def tensors(classes: tuple[str, ...], values: np.ndarray) -> list[dict[str, Any]]:
    """Return the outputs of an answer in V2, their values in row-major order.

    Args:
        classes: The names of the classes; none for a regression.
        values: As in `predictions`.
    """
    shape = list(values.shape)
    found = [{"shape": shape, "data": _plain(values.reshape(-1))}]
    if classes:
        names = [name or "" for name in _names(classes, values)]
        found.append({"shape": shape[:1], "data": names})
    return [output | item for output, item in zip(outputs_of(classes), found, strict=True)]


def _names(classes: tuple[str, ...], values: np.ndarray) -> list[str | None]:
    """Return the most likely class of each row; None if a probability is not finite."""
    known = np.asarray(np.isfinite(values).all(axis=1))
    best = values.argmax(axis=1)
    return [classes[at] if is_known else None for at, is_known in zip(best, known, strict=True)]


def _plain(values: np.ndarray) -> list[Any]:
    """Return numbers as JSON has them; null for one that is not finite."""
    plain = values.astype(np.float32).tolist()
    if np.isfinite(values).all():
        return plain
    found = values.astype(object)
    found[~np.isfinite(values)] = None
    return found.tolist()
