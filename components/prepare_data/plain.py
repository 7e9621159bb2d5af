"""Writes typed values as values of JSON, and reads them again, without a loss.

What tasks leave for each other are dataclasses: the types of their fields say how they are written.
"""

from __future__ import annotations

import base64
from typing import Annotated, Any, TypeVar

import numpy as np
from pydantic import PlainSerializer, PlainValidator

from kfp_tfjob.storage import documents

Value = TypeVar("Value")


def plain_of(array: np.ndarray) -> dict[str, Any]:
    """Return an array of numbers as plain values."""
    return {
        "type": array.dtype.str,
        "shape": list(array.shape),
        "data": base64.b64encode(np.ascontiguousarray(array).tobytes()).decode(),
    }


def array_of(plain: dict[str, Any]) -> np.ndarray:
    """Return the array of `plain_of`; it may be changed."""
    data = np.frombuffer(base64.b64decode(plain["data"]), plain["type"])
    return data.reshape(plain["shape"]).copy()


Array = Annotated[np.ndarray, PlainValidator(array_of), PlainSerializer(plain_of)]
# A field that only this process can use: it is read as None, and whoever reads it sets it.
Unstored = Annotated[Value, PlainValidator(lambda plain: None), PlainSerializer(lambda value: None)]


def dump(value: Any) -> Any:
    """Return a dataclass, or plain values with dataclasses in them, as values of JSON."""
    return documents.adapter(type(value)).dump_python(value, mode="json")


def load(kind: type[Value], plain: Any) -> Value:
    """Return the value of a type of which `dump` has returned these values."""
    return documents.adapter(kind).validate_python(plain)
