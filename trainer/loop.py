"""The training: epochs, evaluation, early stopping, checkpoints, and a stop that loses nothing.

All replicas go through the same steps in the same order. After every few steps, a second's worth,
they agree on what comes next in one small sum, the control vector: whether anyone was told to stop,
and from the chief how many steps follow and whether it is time to save or to report.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import keras
import numpy as np

from storage.errors import ConfigurationError, Problem
from trainer.checkpoint import Position
from trainer.config import Config
from trainer.dataset import Dataset
from trainer.exits import NotFiniteError, StoppedError
from trainer.inputs import distribute, open_split, read_labels
from trainer.progress import Progress
from trainer.records import evaluation_slices, train_batch_size, train_slices
from trainer.replicas import Replicas
from trainer.state import State
from trainer.step import Steps, separate_dropout
from trainer.stopping import EarlyStopping

log = logging.getLogger(__name__)
# Signals are seen and lines are written between two runs of steps only.
_RUN_SECONDS = 1.0
_GROWTH = 8  # the first runs are short, because nobody knows yet how long a step takes
_SHORTEST_EPOCH = 5.0  # seconds; the end of a shorter epoch is not worth a checkpoint


@dataclass(frozen=True)
class Result:
    """How a training ended.

    Attributes:
        position: Where.
        metrics: Of the last epoch.
        weights_sha256: Of the weights, equal on all processes.
    """

    position: Position
    metrics: Mapping[str, float]
    weights_sha256: str


class Training:
    """One training.

    Args:
        config: What this replica was told.
        dataset: What to train on.
        model: Compiled, checked, built in the scope of the strategy.
        replicas: Of the job.
        stop: Tells whether this process was told to stop.

    Raises:
        ConfigurationError: The batch or an option does not fit.
        DataError: There are too few rows, or fewer than the schema says.
    """

    def __init__(
        self,
        config: Config,
        dataset: Dataset,
        model: keras.Model,
        replicas: Replicas,
        stop: Callable[[], bool],
    ) -> None:
        self.config, self.dataset, self.model = config, dataset, model
        self.replicas, self.stop = replicas, stop
        self._records = open_split(dataset, "train")
        self.batch = self._fitting_batch(len(self._records))
        self.steps_per_epoch = len(self._records) // self.batch
        self._evaluation = _Evaluation(dataset, replicas, self.batch)
        self._steps = Steps(model, replicas)
        self._stopping = self._early_stopping()
        self._state = State(
            model,
            replicas,
            self._stopping,
            config.output_dir / "checkpoints",
            {
                "dataset": config.dataset_uri.name,
                "train_batch_size": self.batch,
                "seed": config.options.seed,
            },
        )
        self._progress: Progress | None = None
        self._run_length = 1
        self._saved = time.monotonic()

    def run(self) -> Result:
        """Train to the end.

        Raises:
            StoppedError: Somebody was told to stop; the state is saved.
            NotFiniteError: The loss is not finite.
            StepError: The replicas do not have equal weights.
        """
        self._position = self._state.restore()
        separate_dropout(self.model, self.replicas)
        epochs, total = self.config.epochs, self.config.epochs * self.steps_per_epoch
        if self.replicas.chief:
            output = self.config.output_dir
            place = self._position
            use = self.replicas.gpu_use
            self._progress = Progress(output, place, epochs, total, self.batch, use)
        log.info(
            "training %d epochs of %d steps of %d rows, from step %d",
            epochs,
            self.steps_per_epoch,
            self.batch,
            self._position.step,
        )
        self._batches = self._open_batches()
        self._run_first_step()
        while True:
            metrics, ends = self._epoch()
            if ends or self._position.epoch + 1 >= epochs:
                break
            self._position = Position(self._position.step, self._position.epoch + 1, 0)
            self.model.reset_metrics()
        if self._stopping and self._stopping.restores_weights:
            if self.replicas.chief:
                self._stopping.end()
            self._state.share_weights()
        return Result(self._position, metrics, self._state.compare_weights())

    def finish(
        self, result: Result, seconds: Mapping[str, float], gpus: Sequence[Mapping[str, Any]]
    ) -> None:
        """Write the last line of progress.jsonl: the training ended and the model is written."""
        if self._progress:
            self._progress.final(
                result.position,
                metrics=dict(result.metrics),
                weights_sha256=result.weights_sha256,
                replicas=self.replicas.count,
                weights_equal=True,
                seconds=dict(seconds),
                **({"gpus": list(gpus)} if gpus else {}),
            )
            self._progress.close()

    def _epoch(self) -> tuple[dict[str, float], bool]:
        """Train the rest of an epoch and evaluate.

        Returns:
            The metrics, and whether early stopping ends the training.
        """
        while (left := self.steps_per_epoch - self._position.step_in_epoch) > 0:
            self._run_steps(min(self._run_length, left))
        metrics = self._steps.results()
        sums = self._state.metric_sums()
        elapsed = time.monotonic() - self._saved
        last = self._position.epoch + 1 == self.config.epochs
        shortest = min(_SHORTEST_EPOCH, self.config.options.checkpoint_seconds)
        if self._chief_says(last or elapsed >= shortest):
            self._save(sums)
        if self._evaluation:
            metrics |= self._evaluate(sums)
        ends = False
        if self._stopping:
            chief = self.replicas.chief
            ends = chief and self._stopping.end_epoch(self._position.epoch, metrics)
            ends = self._chief_says(ends)
        if self._progress:
            self._progress.end_epoch(self._position, metrics)
        return metrics, ends

    def _run_first_step(self) -> None:
        if self._position.step_in_epoch < self.steps_per_epoch:
            self._run_steps(1)
        if self._progress:
            self._progress.start_clock(self._position)

    def _run_steps(self, steps: int) -> None:
        start, before = time.monotonic(), self._position
        done, loss = self._steps.train(self._batches, steps)
        self._position = replace(
            before, step=before.step + done, step_in_epoch=before.step_in_epoch + done
        )
        if not math.isfinite(loss):
            raise NotFiniteError(
                Problem(
                    f"the loss is not finite in epoch {before.epoch + 1},"
                    f" step {self._position.step}",
                    received=f"loss {loss}",
                    expected="a number",
                    fix="lower the learning rate, clip the gradients, or look for extreme values"
                    " in the data",
                )
            )
        due = time.monotonic() - self._saved >= self.config.options.checkpoint_seconds
        save, report = self._control(time.monotonic() - start, steps, due)
        if save:
            self._save(self._state.metric_sums())
        if report:
            metrics = self._steps.results()
            if self._progress:
                self._progress.report(self._position, metrics)

    def _evaluate(self, sums: bytes) -> dict[str, float]:
        self.model.reset_metrics()
        left = self._evaluation.steps
        while left > 0:
            start, steps = time.monotonic(), min(self._run_length, left)
            self._steps.evaluate(self._evaluation.batches, steps)
            left -= steps
            self._control(time.monotonic() - start, steps, False, sums)
        return {f"val_{name}": value for name, value in self._steps.results().items()}

    def _control(
        self, seconds: float, steps: int, save: bool, sums: bytes | None = None
    ) -> tuple[bool, bool]:
        """Agree with the other replicas on what comes next.

        Args:
            seconds: What the last steps took.
            steps: How many they were.
            save: On the chief, whether it is time for a checkpoint.
            sums: The metric sums to save, when they are not those of this moment.

        Returns:
            Whether to save and whether to report.

        Raises:
            StoppedError: Somebody was told to stop.
        """
        vector = np.zeros(4, np.int32)
        vector[0] = self.stop()
        if self.replicas.chief:
            fitting = int(_RUN_SECONDS * steps / max(seconds, 1e-6))
            vector[1] = max(1, min(fitting, self._run_length * _GROWTH))
            vector[2:] = save, self._progress is not None and self._progress.due
        stops, self._run_length, saves, reports = self.replicas.sum(vector).tolist()
        if stops:
            self._save(self._state.metric_sums() if sums is None else sums)
            raise StoppedError(f"stopped by a signal after step {self._position.step}, all saved")
        return bool(saves), bool(reports)

    def _save(self, sums: bytes) -> None:
        self._state.save(self._position, sums)
        self._saved = time.monotonic()

    def _chief_says(self, value: bool) -> bool:
        mine = np.array([value and self.replicas.chief], np.int32)
        return bool(self.replicas.sum(mine)[0])

    def _fitting_batch(self, rows: int) -> int:
        given, replicas = self.config.batch_size, self.replicas.count
        if given % replicas:
            raise ConfigurationError(
                Problem(
                    "the batch cannot be divided over the replicas",
                    received=f"train_batch_size {given}",
                    expected=f"a multiple of {replicas}, the number of replicas",
                    fix="change train_batch_size",
                )
            )
        batch = train_batch_size(rows, given, replicas)
        if batch != given:
            log.warning("a step has %d rows, not %d: there are only %d", batch, given, rows)
        return batch

    def _open_batches(self) -> Iterator[Any]:
        weights = None
        if (option := self.config.options.class_weight) is not None:
            labels = read_labels(self.dataset, self._records)
            weights = self.dataset.class_weights(option, labels)
        place = (self._position.epoch, self._position.step_in_epoch)
        rows, seed, replicas = len(self._records), self.config.options.seed, self.replicas

        def slices() -> Iterator[np.ndarray]:
            return train_slices(rows, self.batch, seed, place, replicas.mine, replicas.count)

        size = self.batch // replicas.count
        strategy = replicas.strategy
        return distribute(strategy, self.dataset, self._records, slices, size, weights)

    def _early_stopping(self) -> EarlyStopping | None:
        options = self.config.options.early_stopping
        if options is None:
            return None
        names = list(self._steps.results())
        names += [f"val_{name}" for name in names] if self._evaluation else []
        return EarlyStopping(options, self.model, names)


class _Evaluation:
    """The split validation: every row once in each pass. It is false when there are no rows."""

    def __init__(self, dataset: Dataset, replicas: Replicas, batch: int) -> None:
        records = open_split(dataset, "validation")
        slices = evaluation_slices(len(records), max(batch, replicas.count), replicas.count)
        self.steps = len(slices)

        def mine() -> Iterable[np.ndarray]:
            return (step[replica] for step in slices for replica in replicas.mine)

        if slices:
            self.batches = distribute(replicas.strategy, dataset, records, mine, None)

    def __bool__(self) -> bool:
        return self.steps > 0
