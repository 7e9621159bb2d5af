"""Writes the progress of a training run: log lines, progress.jsonl for programs, TensorBoard.

A restored training repeats the steps after its checkpoint, so their earlier entries are removed
first. Called by `loop.py`, on the chief only.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tensorflow as tf

from kfp_tfjob.common import files
from kfp_tfjob.storage.layout import LOGS, PROGRESS

from .checkpoint_format import Position
from .replicas import Replicas

log = logging.getLogger(__name__)
SECONDS = 2.0  # between two progress lines: often enough to watch, rare enough to cost nothing
_EPOCH_LINE_SECONDS = 0.5  # not every short epoch gets a line
_LOGGED_DATA_SHARE = 0.05  # smaller shares appear only in progress.jsonl


class ProgressWriter:
    """Writes the progress on the chief.

    Args:
        output: OUTPUT_DIR.
        start: Where the training begins; entries of later steps are removed from the files.
        epochs: Epochs of the whole training.
        steps: Steps of the whole training.
        batch: Rows of a step, over all replicas.
        replicas: The replicas that share a batch.
        board: Whether to write for TensorBoard.

    Attributes:
        running: Whether the clock is running.
    """

    def __init__(
        self,
        output: Path,
        start: Position,
        epochs: int,
        steps: int,
        batch: int,
        replicas: Replicas,
        board: bool,
    ) -> None:
        self.epochs, self.steps, self.batch = epochs, steps, batch
        self.replicas = replicas.count
        self._step_seconds = self._data_seconds = 0.0  # since the last line
        output.mkdir(parents=True, exist_ok=True)
        path = output / PROGRESS
        _truncate(path, start)
        self._file = open(path, "a", encoding="utf-8", buffering=1)  # noqa: SIM115
        self._writers = {
            name: _writer(output / LOGS / name, start.epoch)
            for name in ("train", "validation")
            if board
        }
        self._start_time, self._start_step = time.monotonic(), start.step
        self._reported_step = start.step
        self._measured = {
            "examples_per_second": 0.0,
            "examples_per_second_per_replica": 0.0,
            "data_share": 0.0,
        }
        self.running = False
        self._logged = self._reported = 0.0

    @property
    def due(self) -> bool:
        """Whether it is time for a progress line."""
        return self.running and time.monotonic() - self._reported >= SECONDS

    def start_clock(self, position: Position) -> None:
        """Start to measure, after the first step: it includes building the graph."""
        self._start_time, self._start_step = time.monotonic(), position.step
        self._measure_from(position)
        self.running = True

    def count(self, seconds: float, data: float) -> None:
        """Count the seconds of some steps, and how many of them were spent waiting for batches."""
        self._step_seconds += seconds
        self._data_seconds += data

    def report(self, position: Position, metrics: Mapping[str, float]) -> None:
        """Report the progress of an epoch."""
        figures = self._figures(position.step)
        self._write("progress", position, metrics=dict(metrics), **figures)
        self._log_line(position, metrics, figures)
        self._measure_from(position)

    def end_epoch(self, position: Position, metrics: Mapping[str, float]) -> None:
        """Report the end of an epoch, with the metrics of both splits."""
        figures = self._figures(position.step)
        self._write("epoch", position, metrics=dict(metrics), **figures)
        for name, value in metrics.items():
            split = "validation" if name.startswith("val_") else "train"
            if split in self._writers:
                with self._writers[split].as_default():
                    tag = f"epoch_{name.removeprefix('val_')}"
                    tf.summary.scalar(tag, value, position.epoch)
        for writer in self._writers.values():
            writer.flush()  # so that it is on disk before the next checkpoint
        last = position.epoch + 1 == self.epochs
        if last or time.monotonic() - self._logged >= _EPOCH_LINE_SECONDS:
            self._log_line(position, metrics, figures)
        self._measure_from(position)

    def final(self, position: Position, **content: Any) -> None:
        """Report the end of training."""
        self._write("final", position, **content)

    def close(self) -> None:
        """Close the files."""
        self._file.close()
        for writer in self._writers.values():
            writer.close()

    def _measure_from(self, position: Position) -> None:
        self._reported_step, self._reported = position.step, time.monotonic()
        self._step_seconds = self._data_seconds = 0.0

    def _figures(self, step: int) -> dict[str, float]:
        """Return the speed and the data share since the last line, and the remaining seconds."""
        if new_steps := step - self._reported_step:
            # Only the time of the steps: evaluation and checkpoints do not make them slower.
            step_seconds = max(self._step_seconds, 1e-6)
            speed = new_steps * self.batch / step_seconds
            self._measured = {
                "examples_per_second": round(speed, 1),
                "examples_per_second_per_replica": round(speed / self.replicas, 1),
                "data_share": round(self._data_seconds / step_seconds, 3),
            }
        # Since the clock's start, so that the estimate includes evaluation and checkpoints.
        seconds, steps = time.monotonic() - self._start_time, step - self._start_step
        remaining_seconds = (self.steps - step) * seconds / steps if steps else 0.0
        return self._measured | {"eta_seconds": round(remaining_seconds, 1)}

    def _write(self, event: str, position: Position, **content: Any) -> None:
        line = {
            "event": event,
            "time": round(time.time(), 3),
            "epoch": position.epoch + 1,
            "step": position.step,
            "steps": self.steps,
        }
        self._file.write(to_json(line | content) + "\n")

    def _log_line(
        self, position: Position, metrics: Mapping[str, float], figures: Mapping[str, float]
    ) -> None:
        self._logged = time.monotonic()
        values = " ".join(f"{name} {value:.4g}" for name, value in metrics.items())
        parts, speed = [values], f"{figures['examples_per_second']:.0f} examples/s"
        if self.replicas > 1:
            speed += f" ({figures['examples_per_second_per_replica']:.0f} per replica)"
        if figures["examples_per_second"]:  # not yet measured after one step
            parts.append(speed)
        if figures["data_share"] >= _LOGGED_DATA_SHARE:
            parts.append(f"waiting for data {figures['data_share']:.0%}")
        parts.append(f"ETA {figures['eta_seconds']:.0f} s")
        log.info(
            "epoch %d/%d step %d/%d %s",
            position.epoch + 1,
            self.epochs,
            position.step,
            self.steps,
            " | ".join(parts),
        )


def to_json(line: Any) -> str:
    """Return a line of valid JSON; NaN and infinity, which JSON lacks, become null."""
    return json.dumps(_finite(line), allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _writer(folder: Path, epoch: int) -> Any:
    """Return a writer for TensorBoard that drops older files' entries of this and later epochs.

    The process that wrote them may have trained beyond its last checkpoint.
    """
    writer = tf.summary.create_file_writer(str(folder))
    begin = tf.compat.v1.SessionLog(status=tf.compat.v1.SessionLog.START)
    event = tf.compat.v1.Event(wall_time=time.time(), step=epoch, session_log=begin)
    tf.raw_ops.ImportEvent(writer=writer._resource, event=event.SerializeToString())
    return writer


def _truncate(path: Path, start: Position) -> None:
    """Remove the lines of progress.jsonl about steps that will be repeated.

    An epoch is evaluated after its checkpoint. If that checkpoint is restored, the epoch's line is
    written again.
    """
    if not path.exists():
        return
    kept_lines = []
    for stored_line in path.read_text(encoding="utf-8").splitlines():
        try:
            line = json.loads(stored_line)
            if line["step"] < start.step or (
                line["step"] == start.step and line["event"] == "progress"
            ):
                kept_lines.append(stored_line + "\n")
        except (ValueError, KeyError, TypeError):
            continue  # a kill truncates the last line
    files.write(path, "".join(kept_lines))


class TimeSplit:
    """The time of this process, split by activity.

    Attributes:
        seconds: Seconds by activity: `start` until the first step is done, waiting for `data`, for
            a `checkpoint`, for `callbacks`.
    """

    def __init__(self) -> None:
        names = ("start", "data", "checkpoint", "callbacks")
        self.seconds: dict[str, float] = dict.fromkeys(names, 0.0)

    @contextmanager
    def spent_on(self, name: str) -> Iterator[None]:
        """Count the time that passes in the block."""
        start = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] += time.monotonic() - start

    def all(self, train: float, **outside: float) -> dict[str, float]:
        """Return the seconds by activity, rounded, with `compute` for the remaining time.

        Args:
            train: Seconds of training, including the seconds that are counted here.
            **outside: Seconds outside the training, by activity; `start` is added to the count.
        """
        compute = max(train - sum(self.seconds.values()), 0.0)
        split = self.seconds | {"compute": compute} | outside
        split["start"] = self.seconds["start"] + outside.get("start", 0.0)
        return {name: round(seconds, 3) for name, seconds in split.items()}
