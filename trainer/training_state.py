"""Saves the state of a training run on the chief, and restores it on all replicas.

A checkpoint must make a restored training equal to one without interruption, so it contains more
than weights: sums of the metrics, random generators, and the state of callbacks. Only the chief
writes; the others receive its values. Called by `loop.py`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np

from kfp_tfjob.common import files

from . import randomness
from .callback_runner import Callbacks
from .callback_state import CallbackState
from .checkpoint_folder import read_newest
from .checkpoint_format import Checkpoint, Position
from .checkpoint_writer import CheckpointWriter, HostCopy
from .replicas import Replicas, parts_of

log = logging.getLogger(__name__)
_PACK = 16 << 20  # bytes of the variables in one broadcast; see `_CHUNK` of replicas.py


class EvaluationState(NamedTuple):
    """The state that an evaluation changes, while the weights stay the same.

    Attributes:
        metric_sums: The running sums of this process's metrics, bit by bit.
        callbacks: The state of the callbacks; empty on workers.
        layers: On the chief, the state that layers change without training, by its index among the
            variables: random states, for example. A repeated evaluation must find the same.
    """

    metric_sums: bytes
    callbacks: CallbackState
    layers: Mapping[int, np.ndarray]


class State:
    """Variables, running sums of the metrics, and the state of callbacks.

    Args:
        model: The model, with all variables created.
        replicas: The replicas of the job.
        callbacks: The callbacks of training.
        folder: The folder of the checkpoints; only the chief uses it.
        settings: Values that must be equal in a checkpoint of this training.
        keep: Number of newest checkpoints to keep.
    """

    def __init__(
        self,
        model: keras.Model,
        replicas: Replicas,
        callbacks: Callbacks,
        folder: Path,
        settings: Mapping[str, Any],
        keep: int,
    ) -> None:
        self._replicas, self._callbacks = replicas, callbacks
        self._folder, self._settings = folder, settings
        self._weights = list(model.weights)
        self._variables = [
            *((f"model/{variable.path}", variable) for variable in model.variables),
            *((f"optimizer/{variable.path}", variable) for variable in model.optimizer.variables),
        ]
        # The private list contains only what a layer itself keeps, such as moving averages. The
        # public one would add the weights of frozen layers, which evaluations do not change and
        # which may be large.
        layer_variables = (
            variable
            for layer in model._flatten_layers()
            for variable in layer._non_trainable_variables
        )
        changed_ids = {id(variable) for variable in (*layer_variables, *randomness.states(model))}
        self._layer_state_indices = [
            index
            for index, (_, variable) in enumerate(self._variables)
            if id(variable) in changed_ids
        ]
        self._copy = HostCopy(self._variables if replicas.chief else ())
        self._writer = CheckpointWriter(folder, keep)
        self._metrics = [variable for metric in model.metrics for variable in metric.variables]

    def running(self) -> EvaluationState:
        """Return the current state that an evaluation may change."""
        layers = {}
        if self._replicas.chief:
            parts = (
                (index, next(parts_of(self._variables[index][1])))
                for index in self._layer_state_indices
            )
            layers = {index: part.numpy() for index, part in parts}
        return EvaluationState(self._metric_sums(), self._callbacks.state(), layers)

    @property
    def saving(self) -> bool:
        """Whether the chief is still writing the last checkpoint."""
        return self._writer.busy

    def save(self, position: Position, running: EvaluationState) -> None:
        """Start to write a checkpoint on the chief; every process must call this.

        It returns when the previous checkpoint is written and the state is copied.

        Args:
            position: The position of training.
            running: The result of `running` at that position.

        Raises:
            StepError: The previous checkpoint could not be written.
        """
        metric_sums = self._replicas.gather(running.metric_sums)
        if not self._replicas.chief:
            return
        self._writer.wait()
        variables = self._copy.take()
        for index, value in running.layers.items():
            variables[index] = (variables[index][0], value)
        self._writer.begin(
            Checkpoint(
                position,
                self._settings,
                variables,
                metric_sums,
                running.callbacks.content,
                running.callbacks.arrays,
            )
        )

    def wait(self) -> None:
        """Return when the last checkpoint is written.

        Raises:
            StepError: It could not be written.
        """
        self._writer.wait()

    def restore(self) -> Position:
        """Restore the chief's newest checkpoint on every process, if any; begin callbacks.

        Returns:
            Where the training resumes.

        Raises:
            ConfigurationError: The checkpoint belongs to a different model or training.
        """
        newest = None
        if self._replicas.chief:
            files.sweep(self._folder)
            if newest := read_newest(self._folder):
                newest.check_fits(self._variables, self._settings)
        header = self._replicas.share(_header(newest))
        if not header:
            if self._callbacks.begin(Position()):
                self.share_weights()
            return Position()
        content = json.loads(header)
        position = Position(**content["position"])
        # Before the variables: those already contain the changes that callbacks make at the start.
        state = CallbackState(newest.callbacks, newest.callback_arrays) if newest else None
        self._callbacks.begin(position, state)
        values = [value for _, value in newest.variables] if newest else None
        self._assign([variable for _, variable in self._variables], values)
        self._set_metric_sums([bytes.fromhex(sums) for sums in content["metrics"]])
        log.info("restored the checkpoint of step %d", position.step)
        return position

    def share_weights(self) -> None:
        """Give every process the chief's weights."""
        values = [weight.numpy() for weight in self._weights] if self._replicas.chief else None
        self._assign(self._weights, values)

    def trained_weights_sha256(self) -> str:
        """Log and return the SHA-256 of the weights in memory, in the order of the model.

        Evaluate and publish show a different hash: of the variables in the exported SavedModel.
        """
        digest = sha256()
        for weight in self._weights:
            digest.update(np.ascontiguousarray(weight.numpy()).tobytes())
        log.info("trained weights sha256 %s", digest.hexdigest())
        return digest.hexdigest()

    def _metric_sums(self) -> bytes:
        return b"".join(
            np.ascontiguousarray(part.numpy()).tobytes()
            for variable in self._metrics
            for part in parts_of(variable)
        )

    def _assign(self, variables: Sequence[Any], values: Sequence[np.ndarray] | None) -> None:
        """Assign the chief's values on every process, on all its devices.

        It sends some variables at a time: one buffer for a large model would double its memory.
        """
        for pack in _packs(variables):
            pack_values = values[pack.start : pack.stop] if values is not None else ()
            data = b"".join(np.ascontiguousarray(value).tobytes() for value in pack_values)
            pack_variables = variables[pack.start : pack.stop]
            data, offset = self._replicas.broadcast(data, sum(map(_bytes_of, pack_variables))), 0
            for variable in pack_variables:
                dtype, count = _numpy_dtype(variable), int(np.prod(variable.shape, dtype=np.int64))
                value = np.frombuffer(data, dtype, count, offset).reshape(variable.shape)
                offset += value.nbytes
                for part in parts_of(variable):
                    part.assign(value)

    def _set_metric_sums(self, sums_by_process: Sequence[bytes]) -> None:
        size = len(self._metric_sums())
        if len(sums_by_process) != self._replicas.processes or any(
            len(sums) != size for sums in sums_by_process
        ):
            log.warning(
                "the checkpoint has a different number of replicas: the metrics of this epoch"
                " cover only its remaining steps"
            )
            return
        data, offset = sums_by_process[self._replicas.index], 0
        for variable in self._metrics:
            for part in parts_of(variable):
                old = part.numpy()
                part.assign(np.frombuffer(data, old.dtype, old.size, offset).reshape(old.shape))
                offset += old.nbytes


def _header(restored: Checkpoint | None) -> bytes:
    if restored is None:
        return b""
    metrics = [sums.hex() for sums in restored.metrics]
    return json.dumps({"position": vars(restored.position), "metrics": metrics}).encode()


def _packs(variables: Sequence[Any]) -> Iterator[range]:
    """Yield index ranges of variables with at most _PACK bytes; a larger variable is alone."""
    start = size = 0
    for index, variable in enumerate(variables):
        if size and size + _bytes_of(variable) > _PACK:
            yield range(start, index)
            start, size = index, 0
        size += _bytes_of(variable)
    if start < len(variables):
        yield range(start, len(variables))


def _bytes_of(variable: Any) -> int:
    return int(np.prod(variable.shape, dtype=np.int64)) * _numpy_dtype(variable).itemsize


def _numpy_dtype(variable: Any) -> np.dtype[Any]:
    return np.dtype(next(parts_of(variable)).dtype.as_numpy_dtype)
