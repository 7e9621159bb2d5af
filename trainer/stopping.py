"""Early stopping: Keras' own callback, run by the chief, its state kept in checkpoints."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from storage.errors import ConfigurationError, Problem

_STATE = {"wait": int, "best": float, "best_epoch": int, "stopped_epoch": int}


class EarlyStopping:
    """`train_options.early_stopping`.

    Args:
        options: The arguments of keras.callbacks.EarlyStopping.
        model: Built, with built metrics.
        metrics: The names there will be at the end of an epoch.

    Raises:
        ConfigurationError: The metric to watch does not exist, or has no known direction.
    """

    def __init__(
        self, options: Mapping[str, Any], model: keras.Model, metrics: Collection[str]
    ) -> None:
        default = "val_loss" if "val_loss" in metrics else "loss"
        self._callback = keras.callbacks.EarlyStopping(**({"monitor": default} | dict(options)))
        self._callback.set_model(model)
        monitor = self._callback.monitor
        if monitor not in metrics:
            raise ConfigurationError(
                Problem(
                    "train_options.early_stopping.monitor is not a metric of the model",
                    received=monitor,
                    expected=f"one of {', '.join(metrics)}",
                    fix="correct monitor, or add the metric to model.compile",
                )
            )
        try:
            self._callback._set_monitor_op()
        except ValueError as error:
            raise ConfigurationError(
                Problem(
                    f"nobody knows whether {monitor} should rise or fall",
                    received="mode auto",
                    expected="mode min or max",
                    fix="give train_options.early_stopping a mode",
                )
            ) from error
        self._callback.on_train_begin()

    @property
    def restores_weights(self) -> bool:
        """Whether the model has other weights after the end than at the last step."""
        return self._callback.restore_best_weights

    @property
    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps beside the best weights."""
        found = {name: getattr(self._callback, name) for name in _STATE}
        return {
            name: None if value is None else _STATE[name](value) for name, value in found.items()
        }

    @property
    def best_weights(self) -> Sequence[np.ndarray]:
        """The weights that would be restored; empty when there are none."""
        return self._callback.best_weights or ()

    def restore(self, state: Mapping[str, Any], best_weights: Sequence[np.ndarray]) -> None:
        """Go on from the state of a checkpoint."""
        for name, value in state.items():
            setattr(self._callback, name, value)
        self._callback.best_weights = list(best_weights) or None

    def end_epoch(self, epoch: int, metrics: Mapping[str, float]) -> bool:
        """Return whether the training should end after this epoch."""
        self._callback.on_epoch_end(epoch, dict(metrics))
        return bool(self._callback.model.stop_training)

    def end(self) -> None:
        """Put the best weights into the model, if that is wanted."""
        self._callback.on_train_end()
