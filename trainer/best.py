"""Selects the best checkpoint by one metric at the end of its epoch."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

import keras

from kfp_tfjob.storage.errors import ConfigurationError, Problem

DEFAULT = "val_loss"


class BestCheckpoint:
    """The best checkpoint so far, by `train_options.checkpoint_best`.

    Args:
        metric: The name of a metric; Keras knows whether it should rise or fall.
        model: The model, built, with built metrics.
        metrics: Names of the metrics at the end of an epoch.

    Attributes:
        step: Step of the best checkpoint, or None.
        value: Value of its metric, or None.

    Raises:
        ConfigurationError: The metric does not exist, or has no known direction.
    """

    def __init__(self, metric: str, model: keras.Model, metrics: Collection[str]) -> None:
        self.metric = metric
        self.step: int | None = None
        self.value: float | None = None
        if metric not in metrics:
            raise ConfigurationError(
                Problem(
                    "train_options.checkpoint_best is not a metric of the model",
                    received=metric,
                    expected=f"one of {', '.join(metrics)}, or null for no best checkpoint",
                    fix="correct it, or add the metric to model.compile",
                )
            )
        self._rises = _rises(metric, model)

    @property
    def state(self) -> dict[str, Any]:
        """The state for a checkpoint; empty while there is no best one."""
        if self.step is None:
            return {}
        return {"metric": self.metric, "step": self.step, "value": self.value}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Resume from the state of a checkpoint, unless it has a different metric."""
        if state.get("metric") == self.metric:
            self.step, self.value = int(state["step"]), float(state["value"])

    def judge(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record a step as the best if its metric is better than all before."""
        value = metrics[self.metric]
        if not math.isfinite(value):
            return
        if self.value is None or (value > self.value if self._rises else value < self.value):
            self.step, self.value = step, value


def _rises(metric: str, model: keras.Model) -> bool:
    callback = keras.callbacks.EarlyStopping(metric)
    callback.set_model(model)
    try:
        callback._set_monitor_op()
    except ValueError as error:
        raise ConfigurationError(
            Problem(
                f"the direction of {metric} is unknown: should it rise or fall?",
                received=f"train_options.checkpoint_best {metric}",
                expected="a loss, or a metric of Keras",
                fix="choose another metric, or null for no best checkpoint",
            )
        ) from error
    return callback.monitor_op is keras.ops.greater
