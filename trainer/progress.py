"""What a training says: lines for people, progress.jsonl for programs, TensorBoard."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

from trainer.checkpoint import Position

log = logging.getLogger(__name__)
SECONDS = 2.0  # between two progress lines
_EPOCH_LINE_SECONDS = 0.5  # short epochs are not all worth a line


class Progress:
    """Of the chief.

    Args:
        output: OUTPUT_DIR.
        start: Where the training begins; what the files say of later steps is taken away.
        epochs: Of the whole training.
        steps: Of the whole training.
        batch: Rows of a step.
        gpu_use: Returns what is said of the GPUs in every progress line.
    """

    def __init__(
        self,
        output: Path,
        start: Position,
        epochs: int,
        steps: int,
        batch: int,
        gpu_use: Callable[[], Mapping[str, Any]] = dict,
    ) -> None:
        self.epochs, self.steps, self.batch, self._gpu_use = epochs, steps, batch, gpu_use
        output.mkdir(parents=True, exist_ok=True)
        path = output / "progress.jsonl"
        _truncate(path, start)
        self._file = open(path, "a", encoding="utf-8", buffering=1)  # noqa: SIM115
        self._writers = {
            name: tf.summary.create_file_writer(str(output / "logs" / name))
            for name in ("train", "validation")
        }
        self._start = self._mark = (time.monotonic(), start.step)
        self._running = False
        self._said = 0.0

    @property
    def due(self) -> bool:
        """Whether it is time for a progress line."""
        return self._running and time.monotonic() - self._mark[0] >= SECONDS

    def start_clock(self, position: Position) -> None:
        """Measure from here on: the first step includes building the graph."""
        self._start = self._mark = (time.monotonic(), position.step)
        self._running = True

    def report(self, position: Position, metrics: Mapping[str, float]) -> None:
        """Say how far an epoch is."""
        speed, eta = self._speed(position.step)
        self._write(
            "progress",
            position.step,
            position.epoch + 1,
            steps=self.steps,
            **metrics,
            examples_per_second=round(speed, 1),
            eta_seconds=round(eta, 1),
            **self._gpu_use(),
        )
        self._say(position, metrics, speed, eta)
        self._mark = (time.monotonic(), position.step)

    def end_epoch(self, position: Position, metrics: Mapping[str, float]) -> None:
        """Say how an epoch ended, with the metrics of both splits."""
        speed, eta = self._speed(position.step)
        self._write("epoch", position.step, position.epoch + 1, metrics=dict(metrics))
        for name, value in metrics.items():
            split = "validation" if name.startswith("val_") else "train"
            with self._writers[split].as_default():
                tf.summary.scalar(f"epoch_{name.removeprefix('val_')}", value, position.epoch)
        last = position.epoch + 1 == self.epochs
        if last or time.monotonic() - self._said >= _EPOCH_LINE_SECONDS:
            self._say(position, metrics, speed, eta)
        self._mark = (time.monotonic(), position.step)

    def final(self, position: Position, **content: Any) -> None:
        """Say how the training ended."""
        self._write("final", position.step, position.epoch + 1, **content)

    def close(self) -> None:
        """Close the files."""
        self._file.close()
        for writer in self._writers.values():
            writer.close()

    def _speed(self, step: int) -> tuple[float, float]:
        """Return rows per second since the last line, and the seconds that are left."""
        now = time.monotonic()
        seconds, done = max(now - self._mark[0], 1e-6), step - self._mark[1]
        all_seconds, all_done = now - self._start[0], step - self._start[1]
        left = (self.steps - step) * all_seconds / all_done if all_done else 0.0
        return done * self.batch / seconds, left

    def _write(self, event: str, step: int, epoch: int, **content: Any) -> None:
        line = {"event": event, "time": round(time.time(), 3), "epoch": epoch, "step": step}
        self._file.write(json.dumps(line | content) + "\n")

    def _say(
        self, position: Position, metrics: Mapping[str, float], speed: float, eta: float
    ) -> None:
        self._said = time.monotonic()
        log.info(
            "epoch %d/%d step %d/%d %s | %.0f examples/s | ETA %.0f s",
            position.epoch + 1,
            self.epochs,
            position.step,
            self.steps,
            " ".join(f"{name} {value:.4g}" for name, value in metrics.items()),
            speed,
            eta,
        )


def _truncate(path: Path, start: Position) -> None:
    """Keep the lines of what need not be done again.

    The evaluation at the end of an epoch follows its checkpoint, so the line about the epoch of
    the very step that was restored will be written again.
    """
    if not path.exists():
        return
    kept = []
    for text in path.read_text(encoding="utf-8").splitlines():
        try:
            line = json.loads(text)
            if line["step"] < start.step or (
                line["step"] == start.step and line["event"] == "progress"
            ):
                kept.append(text + "\n")
        except (ValueError, KeyError, TypeError):
            continue  # an end by force cuts the last line off
    partial = path.with_name(f".{path.name}.part")
    partial.write_text("".join(kept), encoding="utf-8")
    os.replace(partial, path)
