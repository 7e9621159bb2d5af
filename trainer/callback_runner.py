"""Runs Keras callbacks on the chief and applies their decisions to every replica.

Each hook runs at the same point as in model.fit. After each hook, all replicas get the
chief's model.stop_training, learning rate and weights. Other changes stay on the chief. Called by
`loop.py`, and by `training_state.py` for checkpoints.
"""

from __future__ import annotations

import json
import logging
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from typing import Any, NamedTuple

import keras
import numpy as np
from tensorflow.python.distribute.values import DistributedVariable

from kfp_tfjob.common.errors import ConfigurationError, Problem, StepError
from kfp_tfjob.common.formatting import listed

from . import callback_state
from .callback_state import CallbackState
from .checkpoint_format import Position
from .replicas import Replicas
from .train_step import innermost
from .user_errors import FAILURES, where

log = logging.getLogger(__name__)
_TRAIN_BATCH = {"on_train_batch_begin", "on_train_batch_end"}
_TEST_BATCH = {"on_test_batch_begin", "on_test_batch_end"}
_HOOKS = {
    *("on_train_begin", "on_train_end", "on_epoch_begin", "on_epoch_end"),
    *("on_test_begin", "on_test_end"),
    *(_TRAIN_BATCH | _TEST_BATCH),
}
# All replicas must call these together, but callbacks run on the chief only. Every collective
# outside compiled functions goes through one of the methods of the strategy.
_MODEL_METHODS = (
    "fit",
    "evaluate",
    "predict",
    "train_on_batch",
    "test_on_batch",
    "predict_on_batch",
)
_STRATEGY_METHODS = ("_get_cross_device_ops", "_create_variable")
_NOT_COMPILED_AGAIN = "the same layers, optimizer and metrics from the first step to the last"
_SECOND_RUN = (
    "set trainable and the optimizer in build_model; to unfreeze layers later, start a second run"
    " whose build_model loads the first run's model.keras"
)
# float(model.optimizer.learning_rate) needs them; TensorFlow has them for one replica only.
for _name, _type in (("__float__", float), ("__int__", int)):
    setattr(DistributedVariable, _name, lambda self, to=_type: to(self.numpy()))


class Callbacks:
    """The callbacks of a training run. Every process has this object; on workers it is empty.

    Args:
        make: Returns the callbacks; called on the chief only.
        model: The model, compiled and built.
        replicas: The replicas of the job.
        epochs: Epochs of the whole training.
        steps: Steps per epoch.

    Attributes:
        names: On the chief, the classes of the callbacks, in order.
        train_steps: Steps from one call of the batch hooks to the next, which is
            model.steps_per_execution; 0 when no callback has such hooks.
        test_steps: The same for evaluation.
        may_swap: Whether a callback may replace the weights for the evaluation and restore them
            afterwards.

    Raises:
        StepError: On the chief, the callbacks cannot be created or cannot work here.
    """

    def __init__(
        self,
        make: Callable[[], Sequence[keras.callbacks.Callback]],
        model: keras.Model,
        replicas: Replicas,
        epochs: int,
        steps: int,
    ) -> None:
        self._model, self._replicas = model, replicas
        self._optimizers = list(innermost(model.optimizer))
        self._list = keras.callbacks.CallbackList()
        if replicas.chief:
            with _translate_errors("set_model"):
                self._list = keras.callbacks.CallbackList(
                    list(make()),
                    add_history=True,
                    model=model,
                    verbose=0,
                    epochs=epochs,
                    steps=steps,
                )
        self.names = [type(callback).__name__ for callback in self._all]
        used = [hook for hook in _HOOKS if any(_uses(callback, hook) for callback in self._all)]
        self._used = set(json.loads(replicas.share(json.dumps(used).encode())))
        steps_per_call = model.steps_per_execution
        self.train_steps = steps_per_call if self._used & _TRAIN_BATCH else 0
        self.test_steps = steps_per_call if self._used & _TEST_BATCH else 0
        user_callbacks = (
            callback for callback in self._all if not callback_state.is_known(callback)
        )
        self.may_swap = any(_uses(callback, "on_test_begin") for callback in user_callbacks)

    def begin(self, position: Position, state: CallbackState | None = None) -> bool:
        """Start, or resume from a checkpoint. Restore the model after this call.

        Resumed callbacks get the hooks of the current position again, and then their saved state.

        Args:
            position: Where the training begins.
            state: On the chief, the state in the checkpoint of this position.

        Returns:
            The same as `call`.
        """
        self._model.stop_training = False
        for callback in self._all:
            if not callback_state.is_exact(callback):
                log.info(
                    "the callback %s is not resumed exactly after an interruption: it has no"
                    " get_state() and set_state(state)",
                    type(callback).__name__,
                )
        changed = self.call("on_train_begin")
        if position.step_in_epoch > 0:
            self.call("on_epoch_begin", position.epoch)
            if self.train_steps and (steps_since_hook := position.step_in_epoch % self.train_steps):
                self.call("on_train_batch_begin", position.step_in_epoch - steps_since_hook)
            self._do("set_state", lambda: self._restore(state))
        self._do("get_state", self.state)
        return changed

    def state(self) -> CallbackState:
        """Return the state for a checkpoint; empty on workers.

        Raises:
            StepError: A get_state() failed, or a checkpoint cannot store its result.
        """
        with _translate_errors("get_state"):
            return callback_state.capture(self._all, self._model.stop_training)

    def call(self, hook: str, *arguments: Any) -> bool:
        """Call a hook of all callbacks; every process must do this with the same hook.

        Args:
            hook: Its name, for example on_epoch_end.
            *arguments: Its arguments; the workers' arguments are ignored.

        Returns:
            Whether a callback changed the chief's weights. If so, every process must take them.

        Raises:
            StepError: On the chief, a callback failed.
        """
        if hook not in self._used:
            return False
        return self._do(hook, lambda: getattr(self._list, hook)(*arguments))

    @property
    def _all(self) -> Sequence[Any]:
        return self._list.callbacks

    def _restore(self, state: CallbackState | None) -> None:
        if state:
            self._model.stop_training = callback_state.restore(self._all, state)

    def _do(self, hook: str, action: Callable[[], Any]) -> bool:
        """Run an action on the chief and share its decisions; return the same as `call`."""
        decisions = np.zeros(3 + len(self._optimizers), np.int32)
        if self._replicas.chief:
            rates, weights = self._learning_rates(), self._weights(hook)
            compiled = self._compiled(hook)
            with _translate_errors(hook), self._forbid_communication():
                action()
            _check_compiled(hook, compiled, self._compiled(hook))
            changed, chief_rates = weights != self._weights(hook), self._learning_rates()
            decisions[:3] = self._model.stop_training, changed, chief_rates != rates
            decisions[3:] = chief_rates
        stops, changed, sets_rate, *chief_rates = self._replicas.sum(decisions).tolist()
        self._model.stop_training = bool(stops)
        if sets_rate and not self._replicas.chief:
            for optimizer, rate, local_rate in zip(
                self._optimizers, chief_rates, self._learning_rates(), strict=True
            ):
                if rate != local_rate:
                    optimizer.learning_rate = float(np.int32(rate).view(np.float32))
        return bool(changed)

    def _learning_rates(self) -> list[int]:
        """Return the bits of the learning rates, one for each optimizer within the model's."""
        rates = [
            keras.ops.convert_to_numpy(optimizer.learning_rate) for optimizer in self._optimizers
        ]
        return [int(np.float32(rate).view(np.int32)) for rate in rates]

    def _weights(self, hook: str) -> bytes:
        """Return a digest of the weights if callbacks may change them in this hook."""
        changing = (
            _uses(callback, hook) if hook == "on_train_end" else self._changes(callback, hook)
            for callback in self._all
        )
        if self._replicas.processes == 1 or not any(changing):
            return b""
        digest = sha256()
        for weight in self._model.weights:
            digest.update(np.ascontiguousarray(weight.numpy()).tobytes())
        return digest.digest()

    def _compiled(self, hook: str) -> _Compiled | None:
        """Return the inputs of compilation if a user's code runs in this hook, else None."""
        if hook == "on_train_end" or not any(
            self._changes(callback, hook) for callback in self._all
        ):
            return None
        paths = frozenset(variable.path for variable in self._model.trainable_variables)
        return _Compiled(self._model.optimizer, paths)

    @staticmethod
    def _changes(callback: Any, hook: str) -> bool:
        """Return whether a hook of a callback is a user's code."""
        return _uses(callback, hook) and not callback_state.is_known(callback)

    @contextmanager
    def _forbid_communication(self) -> Iterator[None]:
        """Make operations fail that would wait for the other replicas, which run no callbacks."""
        blocking = [(self._model, name, f"model.{name}") for name in _MODEL_METHODS]
        if self._replicas.processes > 1:
            strategy = self._replicas.strategy.extended
            blocking += [(strategy, name, "a collective operation") for name in _STRATEGY_METHODS]
        forbidden: list[tuple[Any, str, Exception]] = [
            (self._model, "compile", _CompilesError("model.compile")),
            *((owner, name, _WaitsForPeersError(operation)) for owner, name, operation in blocking),
        ]
        for owner, name, error in forbidden:
            vars(owner)[name] = _raiser(error)
        try:
            yield
        finally:
            for owner, name, _ in forbidden:
                del vars(owner)[name]


class _WaitsForPeersError(Exception):
    """A callback called an operation that all replicas must call together."""


class _CompilesError(Exception):
    """A callback compiled the model, but the steps are compiled already."""


class _Compiled(NamedTuple):
    """The inputs of compilation that a callback may change; a compiled step ignores the change.

    Attributes:
        optimizer: The optimizer.
        trained: The paths of the trained variables.
    """

    optimizer: Any
    trained: frozenset[str]


def _raiser(error: Exception) -> Callable[..., None]:
    def raise_error(*_: Any, **__: Any) -> None:
        raise error

    return raise_error


def _check_compiled(hook: str, before: _Compiled | None, after: _Compiled | None) -> None:
    """Reject a change that takes effect only after a restart, when the steps are compiled again."""
    if before is None or after is None or before == after:
        return
    changed = sorted(before.trained ^ after.trained)
    raise ConfigurationError(
        Problem(
            f"a callback changed {'which weights are trained' if changed else 'the optimizer'}"
            f" in {hook}",
            received=listed(changed, 5) if changed else type(after.optimizer).__name__,
            expected=_NOT_COMPILED_AGAIN,
            fix=_SECOND_RUN,
            name="callback-not-supported",
        )
    )


@contextmanager
def _translate_errors(hook: str) -> Iterator[None]:
    """Turn an error of a callback into a StepError that names the callback and the hook."""
    try:
        yield
    except StepError:
        raise
    except FAILURES as error:
        raise _failure(error, hook) from error


def _failure(error: BaseException, hook: str) -> StepError:
    name = _culprit(error)
    if isinstance(error, _CompilesError):
        return ConfigurationError(
            Problem(
                f"the callback {name} calls {error} in {hook}",
                received=where(error).partition(": ")[2],
                expected=_NOT_COMPILED_AGAIN,
                fix=_SECOND_RUN,
                name="callback-not-supported",
            )
        )
    if isinstance(error, _WaitsForPeersError):
        return ConfigurationError(
            Problem(
                f"the callback {name} calls {error} in {hook}",
                received=where(error).partition(": ")[2],
                expected="only work that the chief can do alone, because no other replica runs"
                " callbacks",
                fix="call model(x, training=False), read the logs, or add a metric to"
                " model.compile",
                name="callback-not-supported",
            )
        )
    # A full disk or an unreachable server is not a mistake of the user.
    kind = StepError if isinstance(error, OSError) else ConfigurationError
    return kind(
        Problem(
            f"the callback {name} failed in {hook}",
            received=where(error),
            expected="a callback that raises no error",
            fix="free space, or start what it connects to, then retry the run"
            if kind is StepError
            else f"correct {name}, or its arguments",
            name="callback-failed",
        )
    )


def _culprit(error: BaseException) -> str:
    """Return the class name of the callback that raised an error.

    Keras keeps the callback in a local variable `callback` of the frame that calls its hook.
    """
    for frame, _ in traceback.walk_tb(error.__traceback__):
        callback = frame.f_locals.get("callback")
        if isinstance(callback, keras.callbacks.Callback):
            return type(callback).__name__
    return "of this training"


def _uses(callback: Any, hook: str) -> bool:
    """Return whether a hook of a callback does anything here."""
    classes = keras.callbacks
    if hook in _TRAIN_BATCH | _TEST_BATCH:
        if type(callback) is classes.TensorBoard:
            every_batch = callback.update_freq != "epoch" or callback.write_steps_per_second
            return bool(every_batch or callback._should_trace)
        if type(callback) is classes.ModelCheckpoint:
            return hook == "on_train_batch_end" and callback.save_freq != "epoch"
        if type(callback) is classes.TerminateOnNaN:
            return False  # the trainer checks this after every step
        if hook in _TRAIN_BATCH and _overrides(callback, hook.replace("train_", "")):
            return True
    return _overrides(callback, hook)


def _overrides(callback: Any, hook: str) -> bool:
    base = getattr(keras.callbacks.Callback, hook, None)
    return hook in vars(callback) or getattr(type(callback), hook, base) is not base
