"""Connects the replicas of the job: the strategy, and messages other than gradients.

All replicas must call every function that communicates, in the same order, from the main thread.
Created by `__main__.py`; called by all modules whose replicas must agree.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context  # has the barriers of the coordination service

from kfp_tfjob.common.formatting import counted
from kfp_tfjob.supervisor.cores import available_cores

from . import supervised
from .config import Config
from .gpus import prepare

log = logging.getLogger(__name__)
# Milliseconds: in effect no limit, while the chief writes the model; and enough for the workers,
# which only have to fetch the result of a barrier.
_EXPORT_TIMEOUT, _EXIT_TIMEOUT = 20 * 24 * 3600_000, 60_000
_CHUNK = 16 << 20  # bytes of one broadcast; a whole model would need three times its size


def _service() -> Any:
    """Return the coordination service; its methods are not in TensorFlow's public API."""
    return context.context()


class Replicas:
    """The strategy, and this process's share of its replicas.

    Args:
        strategy: A strategy of TensorFlow; the default one for a single process.

    Attributes:
        count: Number of replicas of the job: its GPUs, or its processes without GPUs.
        processes: Number of processes: chief and workers.
        index: Index of this process.
        mine: The numbers of the replicas of this process.
    """

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        self.strategy = strategy
        self.count = strategy.num_replicas_in_sync
        self.processes = getattr(strategy.extended, "_num_workers", 1)
        self.index = getattr(strategy.extended, "_id_in_cluster", None) or 0
        local = self.count // self.processes
        self.mine = range(self.index * local, (self.index + 1) * local)
        self._sum = tf.function(
            self._sum_in_graph,
            input_signature=[tf.TensorSpec([None], tf.int32)],
            autograph=False,
        )

    @classmethod
    def start(cls, config: Config) -> Replicas:
        """Choose the devices, wait for the other replicas, and build the strategy.

        Raises:
            ConfigurationError: There are fewer GPUs than expected, or they cannot be used.
        """
        gpus = prepare(config)
        if not gpus:
            _share_cores(config.replicas_on_this_machine)
        if config.cluster.size > 1:
            strategy = _wait_for_peers(config, bool(gpus))
        else:
            strategy = tf.distribute.MirroredStrategy() if len(gpus) > 1 else None
        replicas = cls(strategy or tf.distribute.get_strategy())
        devices = f"{len(gpus)} x {gpus[0].name}" if gpus else "the CPU"
        log.info(
            "%s of %d process%s, %s, on %s",
            config.cluster.name,
            replicas.processes,
            "es" * (replicas.processes != 1),
            counted(replicas.count, "replica"),
            devices,
        )
        return replicas

    @property
    def chief(self) -> bool:
        """Whether this process writes checkpoints and the model."""
        return self.index == 0

    def sum(self, values: np.ndarray) -> np.ndarray:
        """Return the sum over all processes of (n,) int32 values."""
        if self.processes == 1:
            return values
        return self._sum(tf.constant(values, tf.int32)).numpy()

    def any(self, value: bool) -> bool:
        """Return whether a value is true on any process."""
        return bool(self.sum(np.array([value], np.int32))[0])

    def part(self) -> None:
        """Wait until this process may end without counting as lost.

        A sum is not enough: a process that has the result would leave while others still fetch it.
        At the first barrier, the workers learn that the chief has written the model. At the second,
        the chief learns that the workers have passed the first.
        """
        if self.processes == 1:
            return
        try:
            _service().wait_at_barrier("trained", _EXPORT_TIMEOUT)
        except tf.errors.OpError as error:
            if not self.chief:
                raise
            log.warning("a replica was lost after its work was done: %s", error.message[:200])
            return
        # A process that has ended by now did not wait for this one.
        with suppress(tf.errors.OpError):
            _service().wait_at_barrier("left", _EXIT_TIMEOUT)

    def tell(self, message: str) -> None:
        """Make all later communication of the other processes fail with this message."""
        if self.processes == 1:
            return
        with suppress(tf.errors.OpError):  # the other processes have ended
            _service().report_error_to_cluster(tf.errors.INVALID_ARGUMENT, message)

    def broadcast(self, data: bytes | None, size: int) -> bytes:
        """Return the chief's bytes on every process.

        Args:
            data: On the chief, `size` bytes; ignored elsewhere.
            size: Number of bytes, the same on every process.
        """
        if self.processes == 1:
            return data or b""
        starts = range(0, size, _CHUNK)
        return b"".join(self._share_chunk(data, at, min(_CHUNK, size - at)) for at in starts)

    def share(self, data: bytes) -> bytes:
        """Return the chief's bytes on every process; the workers need not know their number."""
        size = int(self.sum(np.array([len(data) if self.chief else 0], np.int32))[0])
        return self.broadcast(data, size)

    def gather(self, data: bytes) -> list[bytes]:
        """Return each process's bytes, by its index; all must have the same length."""
        size = len(data)
        all_bytes = bytearray(size * self.processes)
        all_bytes[self.index * size : (self.index + 1) * size] = data
        summed = self._sum_bytes(bytes(all_bytes)) if self.processes > 1 else bytes(all_bytes)
        return [summed[index * size : (index + 1) * size] for index in range(self.processes)]

    def _share_chunk(self, data: bytes | None, start: int, length: int) -> bytes:
        chunk = data[start : start + length] if self.chief and data is not None else bytes(length)
        return self._sum_bytes(chunk)

    def _sum_bytes(self, data: bytes) -> bytes:
        # At each offset only one process has nonzero bytes, so the sum copies them.
        words = np.frombuffer(data + bytes(-len(data) % 4), np.int32)
        return self.sum(words).tobytes()[: len(data)]

    def _sum_in_graph(self, values: tf.Tensor) -> tf.Tensor:
        def reduce(values: tf.Tensor) -> tf.Tensor:
            context = tf.distribute.get_replica_context()
            # A process counts once, for any number of GPUs.
            number = tf.convert_to_tensor(context.replica_id_in_sync_group)
            counts = tf.cast(number % len(self.mine) == 0, tf.int32)
            return context.all_reduce(tf.distribute.ReduceOp.SUM, values * counts)

        result = self.strategy.run(reduce, args=(values,))
        return self.strategy.experimental_local_results(result)[0]


def parts_of(variable: object) -> Iterator[tf.Variable]:
    """Yield a variable's copies on the devices of this process, as variables of TensorFlow."""
    value = getattr(variable, "value", variable)
    value = variable if callable(value) else value  # TensorFlow's `value` is a method
    yield from getattr(value, "values", (value,))


def _share_cores(replicas: int) -> None:
    """Limit the threads of this process to its share of the cores of this container."""
    threads = max(1, available_cores() // replicas)
    tf.config.threading.set_intra_op_parallelism_threads(threads)


def _wait_for_peers(config: Config, gpus: bool) -> tf.distribute.Strategy:
    """Build the strategy; return when every replica has built it."""
    implementation = tf.distribute.experimental.CommunicationImplementation
    options = tf.distribute.experimental.CommunicationOptions(
        implementation=implementation.NCCL if gpus else implementation.RING
    )
    peers = config.cluster.size - 1
    log.info("waiting for %d other replica%s", peers, "s" if peers > 1 else "")
    # The constructor holds the lock of the interpreter and blocks SIGTERM, so only the supervisor
    # can end this wait.
    supervised.waiting()
    return tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
