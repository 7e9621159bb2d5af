"""Runs the training: epochs, evaluation, callbacks, checkpoints, and a stop that loses nothing.

All replicas run the same steps in the same order. About once a second, they agree on the next
action in one small sum, the control vector. It shows whether any replica must stop. The chief adds
the number of steps to run next, and whether it is time to save or to report. Called by
`__main__.py`.
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

from kfp_tfjob.common.errors import ConfigurationError, Problem
from kfp_tfjob.features.records import evaluation_slices, train_batch_size, train_slices
from kfp_tfjob.storage.layout import CHECKPOINTS, LOGS

from . import nccl, randomness, supervised
from .callback_choice import choose
from .callback_runner import Callbacks
from .checkpoint_format import Position
from .checkpoint_schedule import CheckpointSchedule
from .config import Config
from .dataset import Dataset
from .errors import NotFiniteError, StoppedError
from .inputs import distribute, open_rows
from .profiler import Profiler
from .progress import ProgressWriter, TimeSplit
from .replicas import Replicas
from .train_step import TrainSteps, jit_compile_here
from .training_state import EvaluationState, State
from .weight_divergence import compare_weights

log = logging.getLogger(__name__)
# Signals are handled and lines are written only between two groups of steps.
_RUN_SECONDS = 1.0
_GROWTH = 8  # the first groups are short, because the duration of a step is not yet known
_SILENCE = 60.0  # seconds without a log line, after which an evaluation logs its progress


@dataclass(frozen=True)
class TrainingResult:
    """The outcome of a training that ran to its end.

    Attributes:
        position: The position at the end.
        metrics: Metrics of the last epoch.
        trained_weights_sha256: SHA-256 of the weights in memory, equal on all processes.
    """

    position: Position
    metrics: Mapping[str, float]
    trained_weights_sha256: str


class Training:
    """One training.

    Args:
        config: This replica's configuration.
        dataset: The training data.
        model: The model, compiled, checked, and built in the scope of the strategy.
        replicas: The replicas of the job.
        stop: Returns whether this process must stop.
        own_callbacks: Returns the user's callbacks; called on the chief only.

    Raises:
        ConfigurationError: The batch, an option or a callback does not fit.
        DataError: There are too few rows, or fewer than in the schema.
    """

    def __init__(
        self,
        config: Config,
        dataset: Dataset,
        model: keras.Model,
        replicas: Replicas,
        stop: Callable[[], bool],
        own_callbacks: Callable[[], Sequence[keras.callbacks.Callback]],
    ) -> None:
        self.config, self.dataset, self.model = config, dataset, model
        self.replicas, self.stop = replicas, stop
        self._rows = open_rows(dataset, "train")
        self.batch = self._fitting_batch(len(self._rows))
        self.steps_per_epoch = len(self._rows) // self.batch
        self._evaluation = _Evaluation(dataset, replicas, self.batch)
        options = config.options
        self._steps = TrainSteps(
            model,
            replicas,
            self.batch,
            options.micro_batches,
            jit_compile_here(options.jit_compile),
        )
        self._profiler = Profiler(
            options.profile,
            config.epochs * self.steps_per_epoch,
            config.output_dir / LOGS / "train",
            replicas.chief,
        )
        names = list(self._steps.results())
        names += [f"val_{name}" for name in names] if self._evaluation else []
        self._callbacks = Callbacks(
            lambda: choose(options, own_callbacks, model, names, config.output_dir),
            model,
            replicas,
            config.epochs,
            self.steps_per_epoch,
        )
        self._state = State(
            model,
            replicas,
            self._callbacks,
            config.output_dir / CHECKPOINTS,
            {
                "dataset": dataset.digest,
                "train_batch_size": self.batch,
                "seed": config.options.seed,
                "list of callbacks": self._callbacks.names,
            },
            config.options.checkpoint_keep,
        )
        self._progress: ProgressWriter | None = None
        self._time, self._started = TimeSplit(), False
        self._run_length = 1
        self._schedule = CheckpointSchedule(options.checkpoint_seconds)

    def run(self) -> TrainingResult:
        """Train to the end.

        Raises:
            StoppedError: A replica got a stop signal; the state is saved.
            NotFiniteError: The loss is not finite.
            ConfigurationError: The replicas do not have equal weights.
        """
        with self._time.spent_on("checkpoint"):
            self._position = self._state.restore()
        randomness.separate(self.model, self.replicas)
        epochs, total = self.config.epochs, self.config.epochs * self.steps_per_epoch
        if self.replicas.chief:
            output = self.config.output_dir
            board = "TensorBoard" not in self._callbacks.names
            self._progress = ProgressWriter(
                output, self._position, epochs, total, self.batch, self.replicas, board
            )
        log.info(
            "training %d epochs of %d steps of %d rows, from step %d",
            epochs,
            self.steps_per_epoch,
            self.batch,
            self._position.step,
        )
        self._batches = self._open_batches()
        while True:
            metrics = self._epoch()
            if self.model.stop_training or self._position.epoch + 1 >= epochs:
                break
            self._position = Position(self._position.step, self._position.epoch + 1, 0)
        self._profiler.close()
        if self._position.epoch + 1 < epochs:
            log.info("a callback ended training in epoch %d", self._position.epoch + 1)
        with self._time.spent_on("checkpoint"):
            self._state.wait()
        self._steps.finish()
        self._call("on_train_end", metrics)
        compare_weights(self.replicas, self.model.weights)
        return TrainingResult(self._position, metrics, self._state.trained_weights_sha256())

    def finish(
        self,
        result: TrainingResult,
        start: float,
        train: float,
        export: float,
    ) -> None:
        """Write the last line of progress.jsonl: training ended and the model is written.

        Args:
            result: The result of training.
            start: Seconds from the start of this process to the start of `run`.
            train: Seconds of `run`.
            export: Seconds after `run`.
        """
        if self._progress:
            self._progress.final(
                result.position,
                metrics=dict(result.metrics),
                trained_weights_sha256=result.trained_weights_sha256,
                replicas=self.replicas.count,
                weights_equal=True,
                attempt=self.config.attempt,
                restarts=self.config.restarts,
                seconds=self._time.all(train, start=start, export=export),
            )
            self._progress.close()

    def _epoch(self) -> dict[str, float]:
        """Train the rest of an epoch and evaluate; return the metrics."""
        epoch = self._position.epoch
        if self._position.step_in_epoch == 0:
            self.model.reset_metrics()
            self._call("on_epoch_begin", epoch)
        while (step_in_epoch := self._position.step_in_epoch) < self.steps_per_epoch:
            if (
                self.model.stop_training and step_in_epoch > 0
            ):  # a started epoch has at least one step
                break
            self._run_steps()
        metrics = self._steps.results()
        running = self._state.running()
        last = epoch + 1 == self.config.epochs or self.model.stop_training
        due = last or self._schedule.is_due_after_epoch or self._callbacks.may_swap
        if self._chief_decides(due):
            self._save(running)
        if self._evaluation:
            metrics |= self._evaluate(running)
        self._call("on_epoch_end", epoch, metrics)
        if self._progress:
            self._progress.end_epoch(self._position, metrics)
        return metrics

    def _run_steps(self) -> None:
        """Train the agreed number of steps, but none beyond the next call of batch hooks."""
        before = self._position
        step_in_epoch, hook_interval = before.step_in_epoch, self._callbacks.train_steps
        if hook_interval and step_in_epoch % hook_interval == 0:
            self._call("on_train_batch_begin", step_in_epoch)
        steps = _fitting_steps(self._run_length, step_in_epoch, self.steps_per_epoch, hook_interval)
        steps = min(steps, self._profiler.at_most(before.step) or steps)
        supervised.steps(before.step, before.step + steps)
        start = time.monotonic()
        with self._profiler.step(before.step):
            outcome = self._steps.train(self._batches, steps)
        seconds = time.monotonic() - start
        step_in_epoch += outcome.done
        self._position = replace(
            before, step=before.step + outcome.done, step_in_epoch=step_in_epoch
        )
        if not math.isfinite(outcome.loss):
            raise NotFiniteError(
                Problem(
                    f"the loss is not finite in epoch {before.epoch + 1},"
                    f" step {self._position.step}",
                    received=f"loss {outcome.loss}",
                    expected="a number",
                    fix="lower the learning rate, clip the gradients, or look for extreme values"
                    " in the data",
                    name="loss-not-finite",
                )
            )
        if not self._started:  # most drift starts with the first step
            with self._time.spent_on("start"):
                compare_weights(self.replicas, self.model.weights)
        if hook_interval and (
            step_in_epoch % hook_interval == 0 or step_in_epoch == self.steps_per_epoch
        ):
            self._call("on_train_batch_end", step_in_epoch - 1, self._steps.results())
        due = self._schedule.is_due and not self._state.saving
        save, report, data_seconds = self._control(seconds, steps, due, outcome.data_seconds)
        self._count(seconds, data_seconds)
        if save:
            self._save(self._state.running())
        if report:
            metrics = self._steps.results()
            if self._progress:
                self._progress.report(self._position, metrics)

    def _evaluate(self, running: EvaluationState) -> dict[str, float]:
        """Evaluate the validation split; return the metrics with the prefix `val_`.

        Args:
            running: The state of the epoch that a stop during the evaluation saves.
        """
        self.model.reset_metrics()
        self._call("on_test_begin")
        step, all_steps, hook_interval = 0, self._evaluation.steps, self._callbacks.test_steps
        last_log = time.monotonic()
        while step < all_steps:
            if hook_interval and step % hook_interval == 0:
                self._call("on_test_batch_begin", step)
            start, steps = (
                time.monotonic(),
                _fitting_steps(self._run_length, step, all_steps, hook_interval),
            )
            self._steps.evaluate(self._evaluation.batches, steps)
            step += steps
            if hook_interval and (step % hook_interval == 0 or step == all_steps):
                self._call("on_test_batch_end", step - 1, self._steps.results())
            self._control(time.monotonic() - start, steps, False, running=running)
            if time.monotonic() - last_log >= _SILENCE:  # the launcher ends a chief that is silent
                last_log = time.monotonic()
                log.info("evaluated %d of %d steps", step, all_steps)
        metrics = self._steps.results()
        self._call("on_test_end", metrics)
        return {f"val_{name}": value for name, value in metrics.items()}

    def _control(
        self,
        seconds: float,
        steps: int,
        save: bool,
        data_seconds: float = 0.0,
        running: EvaluationState | None = None,
    ) -> tuple[bool, bool, float]:
        """Agree with the other replicas on the next action.

        Args:
            seconds: The seconds of the last steps.
            steps: The number of those steps.
            save: On the chief, whether it is time for a checkpoint.
            data_seconds: The seconds in which this process waited for batches.
            running: The state to save with the variables; None for the current state.

        Returns:
            Whether to save, whether to report, and the mean of `data_seconds` over all processes.

        Raises:
            StoppedError: A replica got a stop signal.
        """
        vector = np.zeros(5, np.int32)
        vector[0] = self.stop()
        vector[1] = data_seconds * 1000
        if self.replicas.chief:
            fitting = int(_RUN_SECONDS * steps / max(seconds, 1e-6))
            vector[2] = max(1, min(fitting, self._run_length * _GROWTH))
            vector[3:] = save, self._progress is not None and self._progress.due
        stops, waited, self._run_length, saves, reports = self.replicas.sum(vector).tolist()
        if stops:
            self._save(running or self._state.running())
            self._state.wait()
            raise StoppedError(
                f"stopped by a signal after step {self._position.step}; the state is saved"
            )
        return bool(saves), bool(reports), waited / 1000 / self.replicas.processes

    def _count(self, seconds: float, data_seconds: float) -> None:
        """Count the time of some training steps, and of waiting for batches."""
        if not self._started:
            self._started = True
            self._time.seconds["start"] += seconds
            if self.replicas.chief:
                nccl.report(self.config.job_dir)
            if self._progress:
                self._progress.start_clock(self._position)
            return
        self._time.seconds["data"] += data_seconds
        if self._progress:
            self._progress.count(seconds, data_seconds)

    def _call(self, hook: str, *arguments: Any) -> None:
        """Call a hook of the callbacks, and share changed weights; every process must call this."""
        with self._time.spent_on("callbacks"):
            if self._callbacks.call(hook, *arguments):
                self._state.share_weights()

    def _save(self, running: EvaluationState) -> None:
        """Start to save a checkpoint, after checking that the replicas are equal."""
        with self._time.spent_on("checkpoint"):
            # Trained weights get equal updates, and comparing them would take as long as a copy.
            compare_weights(self.replicas, self.model.non_trainable_weights)
            self._state.save(self._position, running)
        self._schedule.saved()

    def _chief_decides(self, value: bool) -> bool:
        """Return the chief's value on every process, because their clocks differ."""
        vote = np.array([value and self.replicas.chief], np.int32)
        return bool(self.replicas.sum(vote)[0])

    def _fitting_batch(self, rows: int) -> int:
        """Return the rows of a step: train_batch_size, or fewer in a small split."""
        requested, replicas = self.config.batch_size, self.replicas.count
        if requested % replicas:
            raise ConfigurationError(
                Problem(
                    "the batch cannot be divided over the replicas",
                    received=f"train_batch_size {requested}",
                    expected=f"a multiple of {replicas}, the number of replicas",
                    fix="change train_batch_size",
                    name="batch-size",
                )
            )
        batch = train_batch_size(rows, requested, replicas)
        if batch != requested:
            log.warning(
                "a step uses %d rows instead of %d, because the train split has only %d",
                batch,
                requested,
                rows,
            )
        return batch

    def _open_batches(self) -> Iterator[Any]:
        """Return an iterator over the training batches, beginning at the current position."""
        weights = None
        if (option := self.config.options.class_weight) is not None:
            weights = self.dataset.class_weights(option, self._rows.labels, self._rows.weights)
        position = (self._position.epoch, self._position.step_in_epoch)
        rows, seed, replicas = len(self._rows), self.config.options.seed, self.replicas

        def slices() -> Iterator[np.ndarray]:
            return train_slices(rows, self.batch, seed, position, replicas.mine, replicas.count)

        size = self.batch // replicas.count
        strategy = replicas.strategy
        return distribute(strategy, self.dataset, self._rows, slices, size, weights)


def _fitting_steps(requested: int, start: int, end: int, hook_interval: int) -> int:
    """Return the number of steps to run from `start`, limited by `end` and the next batch hook."""
    until_hook = hook_interval - start % hook_interval if hook_interval else requested
    return min(requested, end - start, until_hook)


class _Evaluation:
    """The batches of the split validation: every row once per pass. False without rows."""

    def __init__(self, dataset: Dataset, replicas: Replicas, batch: int) -> None:
        rows = open_rows(dataset, "validation")
        slices = evaluation_slices(len(rows), max(batch, replicas.count), replicas.count)
        self.steps = len(slices)

        def slices_of_process() -> Iterable[np.ndarray]:
            return (step[replica] for step in slices for replica in replicas.mine)

        if slices:
            self.batches = distribute(
                replicas.strategy, dataset, rows, slices_of_process, None, split="validation"
            )

    def __bool__(self) -> bool:
        return self.steps > 0
