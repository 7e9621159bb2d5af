"""Lists the names of the metrics, so that checking a form does not import numpy."""

from __future__ import annotations

CLASSIFICATION = ("accuracy", "auc", "macro_f1", "log_loss")
REGRESSION = ("rmse", "mae", "r2")
PER_CLASS = ("precision", "recall", "f1")  # written as precision/<class>
LOWER_IS_BETTER = frozenset({"log_loss", "rmse", "mae"})
