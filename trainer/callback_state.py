"""Captures and restores the state of callbacks for checkpoints.

The state of a Keras callback is a list of attributes. A user's callback returns its state from
get_state() as numbers, strings, lists, dicts and arrays, and accepts it in set_state(state). Called
by `callback_runner.py` and `training_state.py`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np

from kfp_tfjob.common.errors import ConfigurationError, Problem

_callbacks = keras.callbacks
_ATTRIBUTES: dict[type, tuple[str, ...]] = {
    _callbacks.EarlyStopping: ("wait", "best", "best_epoch", "stopped_epoch", "best_weights"),
    _callbacks.ReduceLROnPlateau: ("wait", "best", "cooldown_counter"),
    _callbacks.ModelCheckpoint: ("best", "_batches_seen_since_last_saving", "_last_batch_seen"),
    _callbacks.TensorBoard: ("_global_train_batch", "_global_test_batch"),
    _callbacks.History: ("epoch", "history"),
    _callbacks.CSVLogger: (),
    _callbacks.LearningRateScheduler: (),
    _callbacks.RemoteMonitor: (),
    _callbacks.TerminateOnNaN: (),
}
_ARRAY = "__array__"


class CallbackState(NamedTuple):
    """The state of all callbacks.

    Attributes:
        content: JSON values; an array is the dict {"__array__": its number in arrays}.
        arrays: Arrays of any shape and type.
    """

    content: Mapping[str, Any]
    arrays: Sequence[np.ndarray] = ()


def is_exact(callback: keras.callbacks.Callback) -> bool:
    """Return whether a callback resumes exactly after an interruption."""
    return type(callback) in _ATTRIBUTES or _has_state_methods(callback)


def is_known(callback: keras.callbacks.Callback) -> bool:
    """Return whether a callback is one of the known Keras callbacks."""
    return type(callback) in _ATTRIBUTES


def capture(callbacks: Sequence[keras.callbacks.Callback], stops: bool) -> CallbackState:
    """Return the current state of callbacks.

    Args:
        callbacks: The callbacks, in order.
        stops: The value of model.stop_training.

    Raises:
        ConfigurationError: A checkpoint cannot store the result of a get_state().
    """
    arrays: list[np.ndarray] = []

    def to_json(value: Any) -> Any:
        if isinstance(value, np.generic):
            return value.item()
        if isinstance(value, np.ndarray) or hasattr(value, "numpy"):
            # Keras replaces its arrays. Users may change theirs while a checkpoint is written.
            array = np.asarray(value) if is_known(callback) else np.array(value)
            if not array.dtype.hasobject:
                arrays.append(array)
                return {_ARRAY: len(arrays) - 1}
        raise TypeError(f"a {type(value).__name__}")

    states = []
    for callback in callbacks:
        values = _state_of(callback)
        try:
            values["own"] = callback.get_state() if _has_state_methods(callback) else None
            _check_keys(values)
            states.append(json.loads(json.dumps(values, default=to_json)))
        except (TypeError, ValueError) as error:
            name = type(callback).__name__
            raise ConfigurationError(
                Problem(
                    f"a checkpoint cannot store the result of get_state() of the callback {name}",
                    received=error,
                    expected="numbers, strings, lists, dicts with string keys, arrays",
                    fix=f"return only such values from get_state() of {name}",
                )
            ) from error
    return CallbackState({"stops": stops, "callbacks": states}, arrays)


def _check_keys(value: Any) -> None:
    """Reject keys that JSON would silently make strings."""
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise TypeError(f"the key {key!r}, which is not a string")
            _check_keys(item)
    elif isinstance(value, list | tuple):
        for item in value:
            _check_keys(item)


def restore(callbacks: Sequence[keras.callbacks.Callback], state: CallbackState) -> bool:
    """Restore the state of callbacks, after on_train_begin; return model.stop_training.

    Args:
        callbacks: The callbacks that `capture` got, in the same order.
        state: The captured state.
    """

    def from_json(encoded: dict[str, Any]) -> Any:
        # The arrays of a checkpoint are read-only.
        return state.arrays[encoded[_ARRAY]].copy() if encoded.keys() == {_ARRAY} else encoded

    states = json.loads(json.dumps(state.content["callbacks"]), object_hook=from_json)
    for callback, values in zip(callbacks, states, strict=True):
        for name, value in values["attributes"].items():
            setattr(callback, name, value)
        if values["file"] is not None:
            _write_file(callback, values["file"])
        if _has_state_methods(callback):
            callback.set_state(values["own"])
    return bool(state.content["stops"])


def _state_of(callback: Any) -> dict[str, Any]:
    """Return the state of a Keras callback, which Keras itself does not store."""
    known_class = next((base for base in type(callback).__mro__ if base in _ATTRIBUTES), None)
    return {
        "attributes": {name: getattr(callback, name) for name in _ATTRIBUTES[known_class]}
        if known_class
        else {},
        "file": _read_file(callback) if isinstance(callback, _callbacks.CSVLogger) else None,
    }


def _has_state_methods(callback: Any) -> bool:
    """Return whether a callback defines both `get_state` and `set_state`."""
    return callable(getattr(callback, "get_state", None)) and callable(
        getattr(callback, "set_state", None)
    )


# Lines written after the checkpoint must be removed, and earlier lines may be on a different
# machine. So the checkpoint contains the file itself, a few bytes per epoch.
def _read_file(callback: keras.callbacks.CSVLogger) -> str:
    path = Path(callback.filename)
    return path.read_bytes().decode() if path.exists() else ""


def _write_file(callback: keras.callbacks.CSVLogger, content: str) -> None:
    callback.csv_file.truncate(0)
    callback.csv_file.seek(0)
    callback.csv_file.write(content)
    callback.csv_file.flush()
    callback.append_header = not content
