"""The state of a training on all replicas: saved by the chief, restored on everyone, compared."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import keras
import numpy as np

from storage.errors import StepError
from trainer import checkpoint
from trainer.best import BestCheckpoint
from trainer.checkpoint import Checkpoint, Position
from trainer.checkpoint_writer import CheckpointWriter, HostCopy
from trainer.replicas import Replicas, parts_of
from trainer.stopping import EarlyStopping

log = logging.getLogger(__name__)
_PACK = 16 << 20  # bytes of the variables that are broadcast together


class State:
    """Variables, running sums of the metrics, and what early stopping remembers.

    Args:
        model: With all variables created.
        replicas: Of the job.
        stopping: Early stopping, or None.
        folder: Of the checkpoints; only the chief's counts.
        settings: What has to be equal for a checkpoint to be of this training.
        keep: How many of the newest checkpoints stay.
        best: Finds the best of them, which stays too; None for no such thing.
    """

    def __init__(
        self,
        model: keras.Model,
        replicas: Replicas,
        stopping: EarlyStopping | None,
        folder: Path,
        settings: Mapping[str, Any],
        keep: int,
        best: BestCheckpoint | None,
    ) -> None:
        self._replicas, self._stopping = replicas, stopping
        self._folder, self._settings = folder, settings
        self._weights = list(model.weights)
        self._variables = [
            *((f"model/{item.path}", item) for item in model.variables),
            *((f"optimizer/{item.path}", item) for item in model.optimizer.variables),
        ]
        self._copy = HostCopy(self._variables if replicas.chief else ())
        self._writer = CheckpointWriter(folder, keep)
        self._best, self._saved_step = best, -1
        self._metrics = [item for metric in model.metrics for item in metric.variables]

    def metric_sums(self) -> bytes:
        """Return the running sums of this process, to the last bit."""
        return b"".join(
            np.ascontiguousarray(part.numpy()).tobytes()
            for variable in self._metrics
            for part in parts_of(variable)
        )

    @property
    def saving(self) -> bool:
        """Whether the chief is still writing the last checkpoint."""
        return self._writer.busy

    @property
    def best_checkpoint(self) -> Mapping[str, Any]:
        """Which checkpoint is the best, on the chief: metric, step and value; else empty."""
        return self._best.state if self._best else {}

    def save(self, position: Position, sums: bytes) -> None:
        """Begin to write a checkpoint on the chief; every process has to call this.

        It returns when the state is copied and a checkpoint that was still being written is there.

        Args:
            position: Where the training stands.
            sums: The metric sums of this process at that position.

        Raises:
            StepError: The checkpoint before could not be written.
        """
        everyone = self._replicas.gather(sums)
        if not self._replicas.chief:
            return
        self._writer.wait()
        stopping = self._stopping
        self._writer.begin(
            Checkpoint(
                position,
                self._settings,
                self._copy.take(),
                everyone,
                stopping.state if stopping else {},
                stopping.best_weights if stopping else (),
                self.best_checkpoint,
            )
        )
        self._saved_step = position.step

    def wait(self) -> None:
        """Return when the last checkpoint is written.

        Raises:
            StepError: It could not be written.
        """
        self._writer.wait()

    def judge(self, position: Position, metrics: Mapping[str, float]) -> None:
        """Remember on the chief whether the checkpoint of an epoch is the best so far.

        Args:
            position: The end of the epoch.
            metrics: Of the epoch, with those of the evaluation.
        """
        if self._best and self._replicas.chief and position.step == self._saved_step:
            self._best.judge(position.step, metrics)
            self._writer.best_step = self._best.step

    def restore(self) -> Position:
        """Bring every process to the chief's newest checkpoint, if there is one.

        Returns:
            Where the training goes on.

        Raises:
            ConfigurationError: The checkpoint is of another model or training.
        """
        found = None
        if self._replicas.chief:
            checkpoint.sweep(self._folder)
            if found := checkpoint.newest(self._folder):
                found.check_fits(self._variables, self._settings)
                self._saved_step = found.position.step
                if self._stopping:
                    self._stopping.restore(found.callbacks, found.best)
                if self._best:
                    self._best.restore(found.best_checkpoint)
                    self._writer.best_step = self._best.step
        header = _header(found)
        size = int(self._replicas.sum(np.array([len(header)], np.int32))[0])
        if not size:
            return Position()
        content = json.loads(self._replicas.broadcast(header, size))
        values = [value for _, value in found.variables] if found else None
        self._assign([item for _, item in self._variables], values)
        self._set_metric_sums([bytes.fromhex(item) for item in content["metrics"]])
        position = Position(**content["position"])
        log.info("restored the checkpoint of step %d", position.step)
        return position

    def share_weights(self) -> None:
        """Give every process the weights of the chief."""
        values = [item.numpy() for item in self._weights] if self._replicas.chief else None
        self._assign(self._weights, values)

    def compare_weights(self) -> str:
        """Return the SHA-256 of the weights, which is that of every process.

        Raises:
            StepError: The replicas have different weights.
        """
        digest = sha256()
        for item in self._weights:
            digest.update(np.ascontiguousarray(item.numpy()).tobytes())
        log.info("weights sha256 %s", digest.hexdigest())
        everyone = [item.hex() for item in self._replicas.gather(digest.digest())]
        if len(set(everyone)) > 1:
            raise StepError(
                "the replicas ended with different weights: "
                + ", ".join(f"process {at}: {item[:12]}" for at, item in enumerate(everyone))
            )
        return digest.hexdigest()

    def _assign(self, variables: Sequence[Any], values: Sequence[np.ndarray] | None) -> None:
        """Assign the chief's values on every process, on all its devices.

        Some variables at a time: a buffer for all of a large model would need its size again.
        """
        for pack in _packs(variables):
            mine = values[pack.start : pack.stop] if values is not None else ()
            data = b"".join(np.ascontiguousarray(item).tobytes() for item in mine)
            some = variables[pack.start : pack.stop]
            data, at = self._replicas.broadcast(data, sum(map(_bytes_of, some))), 0
            for variable in some:
                dtype, count = _numpy_dtype(variable), int(np.prod(variable.shape, dtype=np.int64))
                value = np.frombuffer(data, dtype, count, at).reshape(variable.shape)
                at += value.nbytes
                for part in parts_of(variable):
                    part.assign(value)

    def _set_metric_sums(self, everyone: Sequence[bytes]) -> None:
        size = len(self.metric_sums())
        if len(everyone) != self._replicas.processes or any(len(item) != size for item in everyone):
            log.warning(
                "the checkpoint is of another number of replicas: the metrics of this epoch start"
                " in its middle"
            )
            return
        data, at = everyone[self._replicas.index], 0
        for variable in self._metrics:
            for part in parts_of(variable):
                old = part.numpy()
                part.assign(np.frombuffer(data, old.dtype, old.size, at).reshape(old.shape))
                at += old.nbytes


def _header(found: Checkpoint | None) -> bytes:
    if found is None:
        return b""
    metrics = [item.hex() for item in found.metrics]
    return json.dumps({"position": vars(found.position), "metrics": metrics}).encode()


def _packs(variables: Sequence[Any]) -> Iterator[range]:
    """Yield the variables in ranges of about a broadcast's size; a larger one is alone."""
    start = size = 0
    for at, variable in enumerate(variables):
        if size and size + _bytes_of(variable) > _PACK:
            yield range(start, at)
            start, size = at, 0
        size += _bytes_of(variable)
    if start < len(variables):
        yield range(start, len(variables))


def _bytes_of(variable: Any) -> int:
    return int(np.prod(variable.shape, dtype=np.int64)) * _numpy_dtype(variable).itemsize


def _numpy_dtype(variable: Any) -> np.dtype[Any]:
    return np.dtype(next(parts_of(variable)).dtype.as_numpy_dtype)
