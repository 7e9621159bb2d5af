"""Which columns matter to a model: their rows are gathered while it scores the test split."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from kfp_tfjob.judging.gate import default_metric
from kfp_tfjob.judging.importance import SEED, Importances, importances, sample_rows
from kfp_tfjob.judging.judge import Judged
from kfp_tfjob.judging.rows import TestData
from kfp_tfjob.judging.sample import Sample
from kfp_tfjob.judging.scoring import Watcher
from kfp_tfjob.options.gate import GateOptions, ReportOptions
from kfp_tfjob.options.metric_names import is_own
from kfp_tfjob.storage.errors import DataError

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ColumnImportance:
    """What the report shows of the columns.

    Attributes:
        importances: Which columns matter; None if that is not known.
        why_not: Why it is not known; empty for a model of pictures, which has no columns.
    """

    importances: Importances | None = None
    why_not: str = ""


class Gathering:
    """Keeps the rows that are shuffled once all rows are scored.

    Args:
        gate: What the run asked for; None for an empty gate.
    """

    def __init__(self, gate: GateOptions | None) -> None:
        self._options = gate.report if gate else ReportOptions()
        self._sample: Sample | None = None

    def watchers(self, data: TestData) -> list[Watcher]:
        """Return what must see every batch of the test rows with its predictions."""
        # A shuffled picture says nothing: it is the whole row.
        if not self._options.importance_seconds or data.schema.picture:
            return []
        self._sample = Sample(data.rows, sample_rows(len(data.schema.features)), SEED)
        return [self._sample]

    def finish(self, judged: Judged) -> ColumnImportance:
        """Return the importances of a model that was evaluated with the watchers."""
        if judged.data.schema.picture:
            return ColumnImportance()
        sample = self._sample.batch() if self._sample else None
        if sample is None:
            return ColumnImportance(why_not="gate.report.importance_seconds is 0.")
        schema, metric = judged.data.schema, judged.decision.primary_metric
        if is_own(metric):  # the function would have to run again for each column
            metric = default_metric(judged.measured["model"].predictions)
        confidence, seconds = judged.verdict.confidence, self._options.importance_seconds
        about = (schema.names, metric, confidence, seconds, list(schema.classes))
        try:
            found = importances(judged.challenger, sample, *about)
        except DataError as error:  # of shuffled rows: the verdict does not depend on them
            log.warning("column importance is unknown: %s", error)
            return ColumnImportance(why_not=f"The model failed for shuffled rows: {error}")
        why_not = "" if found else f"Too few rows of the sample define {metric}."
        return ColumnImportance(found, why_not)
