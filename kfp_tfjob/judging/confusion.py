"""The confusion matrix as it is shown, with at most 30 classes.

It comes from the cells with rows: a matrix of 10,000 classes would take 800 MB for each model.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kfp_tfjob.judging.cells import Cells

MOST_SHOWN_CLASSES = 30


def condense(
    models: Sequence[Cells], classes: Sequence[str], most: int = MOST_SHOWN_CLASSES
) -> tuple[list[str], list[NDArray[np.int64]]]:
    """Count the rows of each true and predicted class, the same classes for each model.

    Args:
        models: The cells of each model.
        classes: The names of all classes.
        most: The largest number of classes. Of more, the most confused ones have their own place,
            and the others share the last one, `other`.

    Returns:
        The names, and a matrix of counts for each model; a row is a true class.
    """
    names, place = list(classes), np.arange(len(classes))
    if len(classes) > most:
        wrong = sum(one.confused() for one in models)
        chosen = np.sort(np.argsort(-np.asarray(wrong), kind="stable")[: most - 1])
        place = np.full(len(classes), most - 1)
        place[chosen] = np.arange(most - 1)
        names = [*(classes[index] for index in chosen), "other"]
    shown = []
    for one in models:
        counts = np.zeros((len(names), len(names)), np.int64)
        np.add.at(counts, (place[one.labels], place[one.predicted]), one.counts)
        shown.append(counts)
    return names, shown


def changed_cells(
    before: Cells, now: Cells, most: int
) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Return the cells whose number of rows changed most, the largest change first.

    Returns:
        For each: its true and its predicted class, and its rows before and now.
    """
    places = np.union1d(before.places, now.places)
    counts = np.zeros((2, len(places)), np.int64)
    for row, one in zip(counts, (before, now), strict=True):
        row[np.searchsorted(places, one.places)] = one.counts
    change = np.abs(counts[1] - counts[0])
    order = [int(at) for at in np.argsort(-change, kind="stable")[:most] if change[at]]
    return [
        (divmod(int(places[at]), now.classes), (int(counts[0, at]), int(counts[1, at])))
        for at in order
    ]
