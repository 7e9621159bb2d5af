"""Finds columns that alone predict the label almost perfectly.

Such a column was often written together with the label, or after it, and is not known at prediction
time. A sample of train is enough: its first half shows how the label depends on the bins of a
column (or a category's values), and the second half shows how well that predicts. So a column with
many values does not score high by chance. Rows are in the order of their hashes, so the halves are
random, and copies of a row are in one of them: a copy would predict itself.

With two classes, the score is the area under the ROC curve. With more classes, it is the share of
the uncertainty about the label that the column removes: 1 minus the cross-entropy divided by the
cross-entropy of the class shares. For a number, it is the R² of the ranks. Called by the validation
of the dataset.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from kfp_tfjob.features.coding import Coding
from kfp_tfjob.features.schema import Schema
from kfp_tfjob.features.types.base import CODES, missing_in

from .buckets import model_values
from .distributions import MOST_COLUMNS, edges_of
from .sample import Sample

# The measures, and the least figure that is suspicious.
AUC, CERTAINTY, R2 = "AUC", "certainty about the label", "R² of the label's ranks"
_SUSPICIOUS = {AUC: 0.995, CERTAINTY: 0.9, R2: 0.98}
MOST_ROWS = 10_000
_FEWEST_ROWS = 100  # fewer say little about a column
_MOST_BINS, _ROWS_OF_A_BIN = 100, 20  # in one half
_PRIOR_ROWS = 0.5  # how many rows of the usual class shares each bin gets


@dataclass(frozen=True)
class Suspicious:
    """A column that alone predicts the label, by one of the measures."""

    name: str
    measure: str
    figure: float


def find(schema: Schema, train: Sample) -> list[Suspicious]:
    """Return the suspicious columns of a table, the worst first; none if there are too few rows.

    The first 10,000 rows are used, and of a wide table 1,000 columns.
    """
    rows, labels = train.rows[:MOST_ROWS], train.labels[:MOST_ROWS]
    classes = schema.label.classes
    if classes is None:
        measure, labels = R2, np.searchsorted(np.sort(labels), labels) / max(len(labels), 1)
    else:
        measure, labels = AUC if len(classes) == 2 else CERTAINTY, labels.astype(np.int64)
    half = len(labels) // 2
    fit_labels, check_labels = labels[:half], labels[half:]
    if (
        len(labels) < _FEWEST_ROWS
        or len(np.unique(fit_labels)) < 2
        or len(np.unique(check_labels)) < 2
    ):
        return []
    suspicious = []
    for name, codes in _coded(schema.encoding, rows):
        fit_codes, check_codes = codes[:half], codes[half:]
        if measure == CERTAINTY:
            score = _certainty(fit_codes, fit_labels, check_codes, check_labels)
        else:
            # The prediction is the mean label of the bin, shrunk towards the overall mean.
            mean_label = fit_labels.mean()
            sums = np.bincount(fit_codes, fit_labels, codes.max() + 1) + _PRIOR_ROWS * mean_label
            bin_means = sums / (np.bincount(fit_codes, minlength=len(sums)) + _PRIOR_ROWS)
            predictions = bin_means[check_codes]
            if measure == AUC:
                score = _auc(predictions, check_labels)
            else:
                squared_errors = (check_labels - predictions) ** 2
                baseline_errors = (check_labels - mean_label) ** 2
                score = float(1 - squared_errors.mean() / baseline_errors.mean())
        if score >= _SUSPICIOUS[measure]:
            suspicious.append(Suspicious(name, measure, score))
    return sorted(suspicious, key=lambda item: -item.figure)


def _coded(coding: Coding, rows: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Yield columns as whole numbers from 0: bins or codes; a missing value has one of its own."""
    most = min(max(len(rows) // 2 // _ROWS_OF_A_BIN, 2), _MOST_BINS)
    placed = zip(coding.features[:MOST_COLUMNS], coding.places, strict=False)
    for item, (field, place) in placed:
        column = model_values(rows, field, place)
        if field is CODES:
            yield item.name, column.astype(np.int64)
            continue
        gaps = missing_in(column)
        edges = np.array(edges_of(column, most), column.dtype)
        yield item.name, np.where(gaps, 0, 1 + np.searchsorted(edges, column))


def _certainty(
    train_codes: np.ndarray,
    train_labels: np.ndarray,
    test_codes: np.ndarray,
    test_labels: np.ndarray,
) -> float:
    """Return how much of the uncertainty about the classes of other rows the codes remove."""
    classes = max(train_labels.max(), test_labels.max()) + 1
    shares = (np.bincount(train_labels, minlength=classes) + 1 / classes) / (len(train_labels) + 1)
    rows = np.bincount(train_codes, minlength=test_codes.max() + 1)
    pairs, counts = np.unique(train_codes * classes + train_labels, return_counts=True)
    test_pairs = test_codes * classes + test_labels
    # A pair that train lacks gets the index of another one, and then 0 occurrences.
    indices = np.minimum(np.searchsorted(pairs, test_pairs), len(pairs) - 1)
    occurrences = np.where(pairs[indices] == test_pairs, counts[indices], 0)
    chance = (occurrences + _PRIOR_ROWS * shares[test_labels]) / (rows[test_codes] + _PRIOR_ROWS)
    return float(1 - np.log(chance).mean() / np.log(shares[test_labels]).mean())


def _auc(scores: np.ndarray, labels: np.ndarray) -> float:
    """Return the area under the ROC curve; ties count as one half."""
    positive, negative = np.sort(scores[labels == 1]), np.sort(scores[labels == 0])
    below = np.searchsorted(negative, positive, "left")
    equal = np.searchsorted(negative, positive, "right") - below
    return float((below + equal / 2).mean() / len(negative))
