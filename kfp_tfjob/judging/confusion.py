"""The confusion matrix as it is shown, with at most 30 classes.

It comes from the cells with rows: a matrix of 10,000 classes would take 800 MB for each model.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kfp_tfjob.judging.confusion_metrics import Cells

MOST_SHOWN_CLASSES = 30


def condense(
    cells: Cells, classes: Sequence[str], most: int = MOST_SHOWN_CLASSES
) -> tuple[list[str], NDArray[np.int64]]:
    """Count the rows of each true and predicted class.

    Args:
        cells: The cells of a model.
        classes: The names of all classes.
        most: The largest number of classes. Of more, the most confused ones have their own place,
            and the others share the last one, `other`.

    Returns:
        The names, and a matrix of counts; a row is a true class.
    """
    names, place = list(classes), np.arange(len(classes))
    if len(classes) > most:
        chosen = np.sort(np.argsort(-np.asarray(cells.confused()), kind="stable")[: most - 1])
        place = np.full(len(classes), most - 1)
        place[chosen] = np.arange(most - 1)
        names = [*(classes[index] for index in chosen), "other"]
    counts = np.zeros((len(names), len(names)), np.int64)
    np.add.at(counts, (place[cells.labels], place[cells.predicted]), cells.counts)
    return names, counts
