"""Finds columns that alone predict the label almost perfectly.

Such a column was often written together with the label, or after it, and is not known when a model
is asked. A sample of train is enough: one half of it says how the label depends on the bins of a
column (or the values of a category), and the other half tells how well that predicts. So a column
with many values gets no figure by chance.

For classes, the figure is the share of the uncertainty about the label that the column removes: 1
minus the cross-entropy divided by that of the class shares. For two classes, the area under the ROC
curve counts too, because few rows leave much uncertainty within a bin. For numbers, the figure is
the R² of the ranks of the label.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from kfp_tfjob.components.prepare_data.distributions import MOST_COLUMNS, edges_of
from kfp_tfjob.components.prepare_data.sample import Sample
from kfp_tfjob.features.coding import Coding
from kfp_tfjob.features.schema import Schema
from kfp_tfjob.features.types.base import CODES, missing_in

SUSPICIOUS_SHARE = 0.9
SUSPICIOUS_AUC = 0.995
SUSPICIOUS_R2 = 0.98
MOST_ROWS = 10_000
_FEWEST_ROWS = 100  # fewer say little about a column
_MOST_BINS, _ROWS_OF_A_BIN = 100, 20  # in one half
_PRIOR_ROWS = 0.5  # how many rows of the usual class shares each bin gets


@dataclass(frozen=True)
class Suspicious:
    """A column that alone predicts the label.

    Attributes:
        figure: The share of the uncertainty about the label that it removes, or its R².
        auc: The area under its ROC curve, for two classes.
    """

    name: str
    figure: float
    auc: float | None = None

    @property
    def words(self) -> str:
        """The figure as text."""
        return f"AUC {self.auc:.3f}" if self.auc is not None else f"{self.figure:.1%}"


def find(schema: Schema, train: Sample) -> list[Suspicious]:
    """Return the suspicious columns of a table, the worst first; none if there are too few rows.

    The first 10,000 rows are used, and of a wide table 1,000 columns.
    """
    rows, labels = train.rows[:MOST_ROWS], train.labels[:MOST_ROWS]
    if len(labels) < _FEWEST_ROWS:
        return []
    classes = schema.label.classes
    score = _ranks(labels) if classes is None else _classes(labels, len(classes))
    if score is None:
        return []
    found = [
        Suspicious(name, *figures)
        for name, codes in _coded(schema.encoding, rows)
        if (figures := score(codes)) is not None
    ]
    return sorted(found, key=lambda item: -item.figure)


def _coded(coding: Coding, rows: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Yield columns as whole numbers from 0: bins or codes; a gap has one of its own."""
    most = min(max(len(rows) // 2 // _ROWS_OF_A_BIN, 2), _MOST_BINS)
    placed = zip(coding.features[:MOST_COLUMNS], coding.places, strict=False)
    for item, (field, place) in placed:
        column = np.ascontiguousarray(rows[field.name][:, place])
        if field is CODES:
            yield item.name, column.astype(np.int64)
            continue
        gaps = missing_in(column)
        edges = np.array(edges_of(column, most), column.dtype)
        yield item.name, np.where(gaps, 0, 1 + np.searchsorted(edges, column))


def _classes(labels: np.ndarray, classes: int) -> Any:
    """Return what judges the codes of a column for classes; None if the half has one class."""
    half = np.arange(len(labels)) % 2 == 0
    known, asked = labels[half].astype(np.int64), labels[~half].astype(np.int64)
    shares = (np.bincount(known, minlength=classes) + 1 / classes) / (len(known) + 1)
    if len(np.unique(known)) < 2:
        return None
    usual = -np.log(shares[asked]).mean()

    def score(codes: np.ndarray) -> tuple[float, float | None] | None:
        rows = np.bincount(codes[half], minlength=codes.max() + 1)
        pairs, counts = np.unique(codes[half] * classes + known, return_counts=True)
        wanted = codes[~half] * classes + asked
        at = np.minimum(np.searchsorted(pairs, wanted), len(pairs) - 1)
        seen = np.where(pairs[at] == wanted, counts[at], 0)
        chance = (seen + _PRIOR_ROWS * shares[asked]) / (rows[codes[~half]] + _PRIOR_ROWS)
        figure = float(1 + np.log(chance).mean() / usual)
        if classes != 2:
            return (figure, None) if figure >= SUSPICIOUS_SHARE else None
        positive = np.bincount(codes[half], known, len(rows))
        rates = (positive + _PRIOR_ROWS * shares[1]) / (rows + _PRIOR_ROWS)
        auc = _auc(rates[codes[~half]], asked)
        suspicious = figure >= SUSPICIOUS_SHARE or (auc or 0) >= SUSPICIOUS_AUC
        return (figure, auc) if suspicious else None

    return score


def _ranks(labels: np.ndarray) -> Any:
    """Return what judges the codes of a column for a label that is a number."""
    ranks = np.searchsorted(np.sort(labels), labels) / len(labels)
    half = np.arange(len(labels)) % 2 == 0
    known, asked = ranks[half], ranks[~half]
    spread = ((asked - known.mean()) ** 2).mean()
    if not spread:
        return None

    def score(codes: np.ndarray) -> tuple[float, None] | None:
        rows = np.bincount(codes[half], minlength=codes.max() + 1)
        sums = np.bincount(codes[half], known, len(rows)) + _PRIOR_ROWS * known.mean()
        means = sums / (rows + _PRIOR_ROWS)
        figure = float(1 - ((asked - means[codes[~half]]) ** 2).mean() / spread)
        return (figure, None) if figure >= SUSPICIOUS_R2 else None

    return score


def _auc(scores: np.ndarray, labels: np.ndarray) -> float | None:
    """Return the area under the ROC curve; ties count as one half."""
    positive, negative = np.sort(scores[labels == 1]), np.sort(scores[labels == 0])
    if not len(positive) or not len(negative):
        return None
    below = np.searchsorted(negative, positive, "left")
    equal = np.searchsorted(negative, positive, "right") - below
    return float((below + equal / 2).mean() / len(negative))
