"""Measures how fast a model answers on this machine, and how large it is.

The model runs in this process, so network and server are not part of the figures: they compare
models, and a server is slower. The signature is the one that a client of a server calls.
"""

from __future__ import annotations

import logging
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kfp_tfjob.features.served_model import ServedModel
from kfp_tfjob.judging.rows import Batch
from kfp_tfjob.options.metric_names import BATCHES, MODEL_SIZE, PERCENTILES, latency_name
from kfp_tfjob.storage.errors import DataError
from kfp_tfjob.supervisor.cores import usable_cores

log = logging.getLogger(__name__)

_WARM_UP = 5  # calls
_CALLS, _SECONDS = 300, 0.5  # of each batch size: whichever ends first
_LEAST_CALLS = 20
_MOST_SECONDS = 20.0  # of a batch size, for a model that takes seconds for a call
_ROWS = 32  # test rows that are sent


@dataclass(frozen=True)
class Serving:
    """How a model answers.

    Attributes:
        bytes: The size of its SavedModel.
        machine: Where it was measured.
        signature: Which signature was called.
        calls: Measured calls by batch size.
        latency_ms: By batch size, and by `p50`, `p95` and `p99`.
    """

    bytes: int
    machine: str
    signature: str
    calls: Mapping[int, int]
    latency_ms: Mapping[int, Mapping[str, float]]

    @property
    def metrics(self) -> dict[str, float]:
        """The figures by the names that thresholds have."""
        found = {MODEL_SIZE: self.bytes / 1e6}
        for rows, by_percentile in self.latency_ms.items():
            found |= {latency_name(rows, name): value for name, value in by_percentile.items()}
        return found


def measure(model: ServedModel, folder: Path, batch: Batch, gpus: int = 0) -> Serving:
    """Measure a model.

    Args:
        model: The loaded model.
        folder: Its SavedModel.
        batch: Some test rows; few are repeated.
        gpus: How many GPUs it may use.

    Returns:
        How it answers; without latencies if no signature for clients takes the test rows.
    """
    rows = _rows_of(batch.features)
    batches = {
        size: [
            _chosen(batch.features, np.arange(start, start + size) % rows)
            for start in range(0, _ROWS, size)
        ]
        for size in BATCHES
    }
    signature, latency, calls = "", {}, {}
    for signature in model.of_clients:
        try:
            prepared = {size: model.calls(signature, chosen) for size, chosen in batches.items()}
            taken = {size: np.array(_timed(each)) * 1000 for size, each in prepared.items()}
        except DataError as error:
            log.info("the signature %s is not measured: %s", signature, error)
            continue
        numbers = list(PERCENTILES.values())
        latency = {
            size: dict(zip(PERCENTILES, np.percentile(times, numbers).tolist(), strict=True))
            for size, times in taken.items()
        }
        calls = {size: len(times) for size, times in taken.items()}
        break
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return Serving(size, machine(gpus), signature, calls, latency)


def machine(gpus: int = 0) -> str:
    """Return the machine as text: processor, cores that this process may use, GPU."""
    cores = usable_cores()
    names = [_processor(), f"{cores:.3g} core{'s' * (cores != 1)}"]
    if gpus:
        import tensorflow as tf

        found = tf.config.list_physical_devices("GPU")
        names += [
            tf.config.experimental.get_device_details(gpu).get("device_name", "GPU")
            for gpu in found[:1]
        ]
    return ", ".join(names)


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for text in file:
                name, _, value = text.partition(":")
                if name.strip() == "model name":
                    return " ".join(value.split())
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _timed(prepared: list[Callable[[], object]]) -> list[float]:
    """Return the seconds of each call."""
    last = time.perf_counter() + _MOST_SECONDS
    for at in range(_WARM_UP):
        prepared[at % len(prepared)]()
        if time.perf_counter() > last:
            break
    taken: list[float] = []
    end = time.perf_counter() + _SECONDS
    while len(taken) < _CALLS:
        now = time.perf_counter()
        if taken and (now > last or (now > end and len(taken) >= _LEAST_CALLS)):
            break
        call = prepared[len(taken) % len(prepared)]
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return taken


def _rows_of(features: Any) -> int:
    column = next(iter(features.values())) if isinstance(features, Mapping) else features
    return int(column.shape[0])


def _chosen(features: Any, rows: np.ndarray) -> Any:
    """Return some rows of what `ServedModel.predict` takes."""
    import tensorflow as tf

    if isinstance(features, Mapping):
        return {name: _chosen(column, rows) for name, column in features.items()}
    if isinstance(features, np.ndarray):
        return features[rows]
    return tf.gather(features, rows)
