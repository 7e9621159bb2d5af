"""Metrics of the user's own, from the labels and predictions of the test rows.

`gate.evaluator` names the function. It runs in a process without the keys of the store, once for
the model, once for the champion, and for the baseline if that decides. For each metric it returns
a number, or a value for each row, of which the mean is the metric. The process is no boundary
against code that means harm: it runs as the same user in the same pod.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from kfp_tfjob.judging.columns import VALUES_IN_MEMORY, Column, Filed
from kfp_tfjob.judging.evaluator_code import EXPECTED, PATH, EvaluatorCode
from kfp_tfjob.judging.predictions import Predictions
from kfp_tfjob.judging.rows import Batch, TestData
from kfp_tfjob.options.gate import GateOptions
from kfp_tfjob.options.metric_names import OWN, is_own
from kfp_tfjob.storage.errors import DataError, Problem
from kfp_tfjob.storage.layout import CODE
from kfp_tfjob.storage.words import choices, nearest
from kfp_tfjob.trainer.own_code import environment
from kfp_tfjob.trainer.pictures import PICTURE
from kfp_tfjob.trainer.serving import Task

log = logging.getLogger(__name__)

_PROCESS = "kfp_tfjob.judging.own_metrics_process"
_MOST_SECONDS, _TOO_LATE = 3600, 1 << 16
_SHOWN_LINES, _KEPT_BYTES = 20, 64 << 10


@dataclass(frozen=True)
class OwnMetrics:
    """What the function returned for one model, by the names of the metrics with `own/` before.

    Attributes:
        numbers: The metrics that are one number; NaN for one without a value.
        by_row: The (rows,) values of the others: float64, or bool where all are 0 or 1.
    """

    numbers: Mapping[str, float]
    by_row: Mapping[str, Column]

    @property
    def kinds(self) -> dict[str, str]:
        """The kind of each metric, as text."""
        return dict.fromkeys(self.numbers, "a number") | dict.fromkeys(
            self.by_row, "a value for each row"
        )

    def with_rows(self, predictions: Predictions, options: GateOptions) -> Predictions:
        """Return the predictions of the model with the values of each row."""
        lower = {options.primary_metric} if options.direction == "minimize" else set()
        return replace(predictions, own=self.by_row, minimize=frozenset(lower))


class Evaluator:
    """Keeps what the function may ask for while the rows are scored, and calls it.

    Args:
        code: The function.
        folder: Where the rows are written; the values of the metrics may stay there.
        data: The test rows.
        task: What the model predicts.
        options: The gate.
    """

    def __init__(
        self, code: EvaluatorCode, folder: Path, data: TestData, task: Task, options: GateOptions
    ) -> None:
        folder.mkdir(parents=True)
        self.code, self._folder, self._data, self._task = code, folder, data, task
        self.options = options
        self._rows = 0
        self._ours: OwnMetrics | None = None
        self._files = {
            name: open(folder / name, "wb") for name in ("labels", "model", "champion", "weights")
        }
        self._packed = not data.raw and PICTURE not in data.schema
        if self._packed:
            self._files["features"] = open(folder / "features", "wb")

    def add(self, batch: Batch, predictions: Predictions, outputs: np.ndarray) -> None:
        """Keep a batch of the model."""
        kind = np.float32 if self._task.name == "regression" else np.int64
        self._rows += len(batch.labels)
        self._write("labels", batch.labels, kind)
        self._write("model", outputs, np.float32)
        if batch.weights is not None:
            self._write("weights", batch.weights, np.float32)
        if self._packed:
            self._write("features", batch.features, np.float32)

    def add_champion(self, outputs: np.ndarray) -> None:
        """Keep the outputs of the champion for a batch."""
        self._write("champion", outputs, np.float32)

    def _write(self, name: str, values: Any, kind: Any) -> None:
        np.ascontiguousarray(np.asarray(values), kind).tofile(self._files[name])

    def of_model(self) -> OwnMetrics:
        """Return the metrics of the model.

        Raises:
            DataError: The function fails, returns something else, or only a number for a metric
                that needs a value for each row.
        """
        found = self._ours = self._metrics("model")
        for name in filter(is_own, self.options.by_row):
            if name not in found.by_row:
                primary = name == self.options.primary_metric
                use = "which compares models" if primary else "for which slices have a threshold"
                others = choices(found.by_row, nearest(name, found.by_row)) or "no metric"
                raise self._failed(
                    f"{found.kinds.get(name, 'nothing')} for {name}; a value for each row for"
                    f" {others}",
                    f"a value for each row for {name}, {use}",
                    f"return an array with one value per row for {name.removeprefix(OWN)!r}",
                )
        return found

    def of_champion(self, name: str) -> OwnMetrics:
        """Return the metrics of the champion; they must be those of the model, which comes first.

        Args:
            name: Its name in messages.

        Raises:
            DataError: The function fails, or returns other metrics.
        """
        return self._same(self._metrics("champion"), name)

    def of_constant(self, outputs: np.ndarray) -> OwnMetrics:
        """Return the metrics of the baseline, which predicts the same for all rows.

        Args:
            outputs: What it predicts for a row: (classes,) probabilities, or () a value.

        Raises:
            DataError: The function fails, or returns other metrics.
        """
        return self._same(self._metrics("baseline", outputs.tolist()), "the baseline")

    def _same(self, found: OwnMetrics, who: str) -> OwnMetrics:
        assert self._ours is not None
        kinds, expected = found.kinds, self._ours.kinds
        differ = [it for it in {**expected, **kinds} if kinds.get(it) != expected.get(it)]
        if differ:
            said = [f"{it} is {kinds.get(it, 'missing')}" for it in differ]
            of_model = [f"{it} is {expected.get(it, 'missing')}" for it in differ]
            raise self._failed(
                f"for {who}: {choices(said)}",
                f"as for the model: {choices(of_model)}",
                "return the same names, each as a number or as a value for each row, for every"
                " model",
            )
        return found

    def _metrics(self, who: str, same_for_all: Any = None) -> OwnMetrics:
        for file in self._files.values():
            file.flush()
        home, values = self._folder / f"home-{who}", self._folder / f"values-{who}"
        home.mkdir()
        values.mkdir()
        answer = home / "answer.json"
        given = {
            "code": self.code.unpack(self._folder / CODE),
            "module": self.code.module,
            "function": self.code.function,
            "answer": str(answer),
            "folder": str(self._folder),
            "rows": self._rows,
            "values": str(values),
            "predictions": who,
            "same_for_all": same_for_all,
            "regression": self._task.name == "regression",
            "classes": list(self._task.classes),
            "columns": list(self._task.features),
            "weighted": (self._folder / "weights").stat().st_size > 0,
            "features": self._features(),
        }
        code, said = _run(given, home)
        for text in said:
            log.info("%s: %s", PATH, text)
        if not answer.exists():
            raise self._failed(*_without_answer(code))
        found = json.loads(answer.read_bytes())
        if "received" in found:
            raise self._failed(found["received"], found["expected"], found["fix"])
        metrics = {f"{OWN}{name}": float(value) for name, value in found["metrics"].items()}
        in_memory = len(found["by_row"]) * self._rows <= VALUES_IN_MEMORY
        by_row: dict[str, Column] = {}
        for name, kind in found["by_row"].items():
            column = Filed(values / name, np.dtype(kind), (), self._rows)
            by_row[f"{OWN}{name}"] = column[:] if in_memory else column
        return OwnMetrics(metrics, by_row)

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()

    def _features(self) -> dict[str, Any]:
        if self._packed:
            return {"packed": "features"}
        if self._data.raw:
            return {"parquet": [str(path) for path in self._data.raw]}
        return {"of_pictures": True}

    def _failed(self, received: str, expected: str, fix: str) -> DataError:
        what = f"{PATH} {self.code.module}:{self.code.function} failed"
        return DataError(Problem(what, received, expected, fix, PATH))


def _run(given: Mapping[str, Any], home: Path) -> tuple[int, list[str]]:
    """Run the process; return its exit code, and the last lines that it printed."""
    # A file and not a pipe: what the function leaves running would keep a pipe open.
    said = home / "said.txt"
    with open(said, "wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", _PROCESS],
            cwd=home,
            env=environment(home),
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
    try:
        with suppress(BrokenPipeError), process.stdin as given_to:  # type: ignore[union-attr]
            given_to.write(json.dumps(given).encode())
        process.wait(_MOST_SECONDS)
        code = process.returncode
    except subprocess.TimeoutExpired:
        code = _TOO_LATE
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    with open(said, "rb") as file:
        file.seek(max(0, said.stat().st_size - _KEPT_BYTES))
        return code, _last_lines(file.read())


def _without_answer(code: int) -> tuple[str, str, str]:
    if code == _TOO_LATE:
        return f"no result after {_MOST_SECONDS} seconds", "a result", "make it faster"
    if code == -signal.SIGKILL:
        return (
            "its process was killed, probably because memory ran out",
            "a function that needs less memory than the step has",
            "take the arrays in parts, or raise the memory of evaluate",
        )
    said = f"the exit code {code}" if code >= 0 else f"the signal {signal.Signals(-code).name}"
    return f"its process ended with {said}", EXPECTED, "correct it: it must not end the process"


def _last_lines(data: bytes) -> list[str]:
    return [text[:500] for text in data.decode(errors="replace").splitlines()][-_SHOWN_LINES:]
