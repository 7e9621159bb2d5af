"""What the report shows of single rows and columns: it is gathered while the model scores."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from typing import Any

import numpy as np
from markupsafe import Markup

from kfp_tfjob.components.evaluate.changes import BASELINE
from kfp_tfjob.components.evaluate.thumbnails import thumbnail
from kfp_tfjob.features.coding import DATE, NO_DATE
from kfp_tfjob.features.pictures import PICTURE
from kfp_tfjob.features.served_model import Task
from kfp_tfjob.judging.gate import default_metric
from kfp_tfjob.judging.importance import SEED, Importances, importances, sample_rows
from kfp_tfjob.judging.judge import Judged
from kfp_tfjob.judging.predictions import ClassPredictions, Predictions
from kfp_tfjob.judging.rows import TestData
from kfp_tfjob.judging.sample import Sample
from kfp_tfjob.judging.scoring import Watcher
from kfp_tfjob.judging.worst import Worst, WorstRow
from kfp_tfjob.options.gate import GateOptions, ReportOptions
from kfp_tfjob.options.metric_names import is_own
from kfp_tfjob.storage.errors import DataError
from kfp_tfjob.storage.text import html, short
from kfp_tfjob.storage.words import choices, nearest

_LONGEST = 200  # characters of a value
_MOST_OF_ROWS = 500_000  # bytes of all rows on the page
_MARKUP = 30  # bytes around a value

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WrongRow:
    """A row with a wrong prediction, as text.

    Attributes:
        number: The number of the row in the test split, from 1.
        true: The true class or value.
        predicted: What the model predicts.
        error: How wrong that is.
        champion: What the champion predicts; empty if it was not compared.
        values: The columns that may be shown.
        picture: The address of a small copy of the picture; empty if it is not shown.
    """

    number: int
    true: str
    predicted: str
    error: str
    champion: str
    values: list[str]
    picture: Markup = Markup()

    @property
    def size(self) -> int:
        """How many bytes it takes on the page."""
        told = (self.true, self.predicted, self.error, self.champion, *self.values)
        return len(self.picture) + sum(len(html(value).encode()) + _MARKUP for value in told)


@dataclass(frozen=True)
class Details:
    """What the report shows besides the verdict.

    Attributes:
        importances: Which columns matter; None if that is not known.
        why_not: Why it is not known.
        rows: The rows with the greatest errors; None if the run did not ask for them.
        columns: The columns of their values.
        unknown: The columns that the run asked for and that do not exist, as text.
        more: How many rows are left out, because the page would be too large.
    """

    importances: Importances | None = None
    why_not: str = ""
    rows: list[WrongRow] | None = None
    columns: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    more: int = 0

    def without_rows(self) -> Details:
        """Return the same with all rows left out."""
        if not self.rows:
            return self
        return replace(self, rows=[], unknown=(), more=self.more + len(self.rows))


class Gathering:
    """Gathers what the report shows of rows and columns.

    Args:
        gate: What the run asked for; None for an empty gate.
    """

    def __init__(self, gate: GateOptions | None) -> None:
        self._options = gate.report if gate else ReportOptions()
        self._sample: Sample | None = None
        self._worst: Worst | None = None

    def watchers(self, data: TestData, task: Task) -> list[Watcher]:
        """Return what must see every batch with its predictions.

        Args:
            data: The test rows.
            task: What the model must predict.
        """
        found: list[Watcher] = []
        if shown := self._options.rows:
            self._worst = Worst(task.features, shown, self._options.worst)
            found.append(self._worst)
        # A shuffled picture says nothing: it is the whole row.
        if self._options.importance_seconds and not _of_pictures(task):
            self._sample = Sample(data.rows, sample_rows(len(task.features)), SEED)
            found.append(self._sample)
        return found

    def finish(self, judged: Judged) -> Details:
        """Return the details of a model that was judged with the watchers."""
        task, asked = judged.task, self._options.rows
        found, why_not = self._importances(judged)
        if self._worst is None:
            return Details(found, why_not)
        columns = () if _of_pictures(task) else tuple(it for it in task.features if it in asked)
        champion = next(
            (one for who, one in judged.measured.items() if who not in ("model", BASELINE)), None
        )
        theirs = champion and champion.predictions
        rows = [_row(row, task, columns, theirs) for row in self._worst.rows]
        sizes = accumulate(row.size for row in rows)
        fit = [row for row, size in zip(rows, sizes, strict=True) if size <= _MOST_OF_ROWS]
        more = len(rows) - len(fit)
        return Details(found, why_not, fit, columns, _unknown(asked, task.features), more)

    def _importances(self, judged: Judged) -> tuple[Importances | None, str]:
        if _of_pictures(judged.task):
            return None, ""
        sample = self._sample.batch() if self._sample else None
        if sample is None:
            return None, "gate.report.importance_seconds is 0."
        task, metric = judged.task, judged.decision.primary_metric
        if is_own(metric):  # the function would have to run again for each column
            metric = default_metric(judged.measured["model"].predictions)
        confidence, seconds = judged.verdict["confidence"], self._options.importance_seconds
        about = (task.features, metric, confidence, seconds, list(task.classes))
        try:
            found = importances(judged.challenger, sample, *about)
        except DataError as error:  # of shuffled rows: the verdict does not depend on them
            log.warning("the importance of the columns is unknown: %s", error)
            return None, f"The model failed for shuffled rows: {error}"
        return found, "" if found else f"Too few rows of the sample define {metric}."


def _of_pictures(task: Task) -> bool:
    return task.kinds == (PICTURE,)


def _row(
    row: WorstRow, task: Task, columns: Sequence[str], champion: Predictions | None
) -> WrongRow:
    """Return a row as text."""
    kinds = dict(zip(task.features, task.kinds, strict=True)) if task.kinds else {}
    theirs = "" if champion is None else _answer(champion[row.number : row.number + 1], task)
    if task.classes:
        most, least = row.probability
        true, predicted = (short(task.classes[int(at)], 60) for at in (row.label, row.predicted))
        told = (true, f"{predicted} ({_percent(most)})", _percent(least))
    else:
        error = row.predicted - row.label
        told = (f"{row.label:,.6g}", f"{row.predicted:,.6g}", f"{error:+,.4g}")
    values = [_shown(row.values[name], kinds.get(name, "")) for name in columns]
    picture = row.values.get(PICTURE) if _of_pictures(task) else None
    drawn = Markup(thumbnail(picture)) if picture else Markup()
    return WrongRow(row.number + 1, *told, theirs, values, drawn)


def _answer(row: Predictions, task: Task) -> str:
    if isinstance(row, ClassPredictions):
        return short(task.classes[int(np.asarray(row.predicted)[0])], 60)
    return f"{float(np.asarray(row.values)[0]):,.6g}"


def _unknown(asked: Sequence[str], features: Sequence[str]) -> tuple[str, ...]:
    """Return a sentence for each column that does not exist."""
    found = []
    for name in asked:
        if name not in features:
            meant = nearest(name, features)
            question = f"did you mean {meant!r}? " if meant else ""
            known = choices(features, meant)
            found.append(f"The data has no column {name!r}: {question}It has {known}.")
    return tuple(found)


def _shown(value: Any, kind: str) -> str:
    """Return the value of a column as text; a dash for a gap."""
    if kind == DATE:
        if value == NO_DATE:
            return "–"
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=value)
        return moment.isoformat(sep=" ").removesuffix("+00:00").removesuffix(" 00:00:00")
    if isinstance(value, float):
        return f"{value:.7g}" if math.isfinite(value) else "–"
    text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    return short(text, _LONGEST) or "–"


def _percent(share: float) -> str:
    return f"{share:.1%}" if 0.0005 <= share <= 0.9995 else f"{share:.4%}" if share else "0%"
