"""Chooses the callbacks of a training run: first the options' callbacks, then the user's.

A callback that cannot work here is rejected before the first step, because it would otherwise fail
after hours, or silently do nothing. Called by `loop.py`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import keras

from kfp_tfjob.common.errors import ConfigurationError, Problem
from kfp_tfjob.options.train import TrainerOptions
from kfp_tfjob.storage.layout import CHECKPOINTS, COMPLETION, KERAS_MODEL, MODEL, PROGRESS, UPLOADER

from . import callback_state

Callback = keras.callbacks.Callback

_OPTION_CALLBACKS: dict[str, type[Callback]] = {
    "early_stopping": keras.callbacks.EarlyStopping,
    "reduce_lr_on_plateau": keras.callbacks.ReduceLROnPlateau,
}
# Why a callback of Keras cannot work here, and what to do instead.
_REJECTED: dict[type[Callback], tuple[str, str]] = {
    keras.callbacks.BackupAndRestore: (
        "it would restore the weights a second time, from the last epoch",
        "remove it, because training always resumes from its newest checkpoint",
    ),
    keras.callbacks.SwapEMAWeights: (
        "the chief would evaluate with different weights than the other replicas",
        "remove it, because with use_ema=True the finished model's weights are the averages",
    ),
}
_SETS_RATE = (keras.callbacks.ReduceLROnPlateau, keras.callbacks.LearningRateScheduler)
_PATHS: dict[type[Callback], str] = {
    keras.callbacks.CSVLogger: "filename",
    keras.callbacks.ModelCheckpoint: "filepath",
    keras.callbacks.TensorBoard: "log_dir",
}
# Names that the trainer and the sidecar write themselves (docs/architecture.md).
_RESERVED_NAMES = (CHECKPOINTS, MODEL, KERAS_MODEL, PROGRESS, COMPLETION, UPLOADER)


def choose(
    options: TrainerOptions,
    user_callbacks: Callable[[], Sequence[Callback]],
    model: keras.Model,
    metrics: Collection[str],
    output: Path,
) -> list[Callback]:
    """Return the callbacks of a training run.

    Args:
        options: TRAIN_OPTIONS.
        user_callbacks: Returns the user's callbacks.
        model: The model, compiled and built.
        metrics: Names of the metrics at the end of an epoch.
        output: OUTPUT_DIR, the base of relative paths.

    Raises:
        ConfigurationError: Some cannot work. It lists all reasons.
    """
    callbacks, problems = [], []
    for option, kind in _OPTION_CALLBACKS.items():
        if (arguments := getattr(options, option)) is not None:
            # With verbose, the log shows when they act.
            default = {"monitor": "val_loss" if "val_loss" in metrics else "loss", "verbose": 1}
            callbacks.append(kind(**default | arguments.given))
            name = f"train_options.{option}"
            problems += _monitor_problems(name, name, callbacks[-1], model, metrics)
    metrics_are_known = True
    for callback in user_callbacks():
        if isinstance(callback, Callback):
            problems += _resolve_path(callback, output)
            if metrics_are_known and _monitors(callback):
                name = type(callback).__name__
                problems += _monitor_problems(name, "", callback, model, metrics)
            # All callbacks get the same dict of metrics, and a user's callback may add to it.
            metrics_are_known &= callback_state.is_known(callback)
        callbacks.append(callback)
    for callback in callbacks:
        problems += _support_problems(callback, model)
    ConfigurationError.raise_if(problems)
    return callbacks


def _monitors(callback: Callback) -> bool:
    """Return whether a callback of Keras acts on a metric at the end of an epoch."""
    if type(callback) is keras.callbacks.ModelCheckpoint:
        return callback.save_best_only and callback.save_freq == "epoch"
    return type(callback) in _OPTION_CALLBACKS.values()


def _monitor_problems(
    name: str, path: str, callback: Any, model: keras.Model, metrics: Collection[str]
) -> list[Problem]:
    """Return the problem of a callback that would ignore its metric with a mere warning."""
    if callback.monitor not in metrics:
        return [
            Problem(
                f"{name}.monitor is not a metric of the model",
                received=callback.monitor,
                expected=f"one of {', '.join(metrics)}",
                fix="correct monitor, or add the metric to model.compile",
                path=path and f"{path}.monitor",
                name="monitor-not-found",
            )
        ]
    trial = copy.copy(callback)  # it changes the sign of min_delta
    trial.set_model(model)
    try:
        trial._set_monitor_op()
    except ValueError:
        return [
            Problem(
                f"{name} cannot tell whether {callback.monitor} should rise or fall",
                received="mode auto",
                expected="mode min or max",
                fix=f"set its mode: max if a higher {callback.monitor} is better, otherwise min",
                path=path and f"{path}.mode",
            )
        ]
    return []


def _support_problems(callback: Any, model: keras.Model) -> list[Problem]:
    """Return the reasons why a callback, or an object in its place, cannot work in a job."""
    name = type(callback).__name__
    if not isinstance(callback, Callback):
        return [
            Problem(
                "callbacks returned something that is not a callback",
                received=f"{name}: {callback!r:.100}",
                expected="a list of keras.callbacks.Callback",
                fix="correct the function callbacks of the model code",
                name="callback-not-supported",
            )
        ]
    problems = [
        Problem(
            f"the callback {name} is not supported",
            received=reason,
            fix=fix,
            name="callback-not-supported",
        )
        for kind, (reason, fix) in _REJECTED.items()
        if isinstance(callback, kind)
    ]
    inner = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    rate = getattr(inner, "_learning_rate", None)
    if isinstance(callback, _SETS_RATE) and isinstance(
        rate, keras.optimizers.schedules.LearningRateSchedule
    ):
        problems.append(
            Problem(
                f"the callback {name} cannot set the learning rate of this optimizer",
                received=f"a {type(rate).__name__} as learning_rate",
                expected="a number",
                fix=f"give the optimizer a number, or remove {name}",
                name="callback-not-supported",
            )
        )
    return problems


def _resolve_path(callback: Any, output: Path) -> list[Problem]:
    """Make a callback's relative path one below OUTPUT_DIR; return its problems."""
    problems = []
    for kind, attribute in _PATHS.items():
        path = getattr(callback, attribute) if isinstance(callback, kind) else "/"
        if path.startswith("/") or "://" in path:
            continue
        parts = Path(path).parts
        if ".." in parts or not parts or parts[0] in _RESERVED_NAMES:
            problems.append(
                Problem(
                    f"the callback {type(callback).__name__} must not write to this path",
                    received=path,
                    expected=f"a path in OUTPUT_DIR other than {', '.join(_RESERVED_NAMES)}",
                    fix=f"choose another {attribute}, for example own/{Path(path).name or 'x'}",
                    name="callback-not-supported",
                )
            )
        else:
            setattr(callback, attribute, str(output / path))
            if kind is keras.callbacks.CSVLogger:  # the other kinds create their folders
                (output / path).parent.mkdir(parents=True, exist_ok=True)
    return problems
