"""The names of the metrics; numpy is not needed to check a form."""

from __future__ import annotations

CLASSIFICATION = ("accuracy", "auc", "macro_f1", "log_loss")
REGRESSION = ("rmse", "mae", "r2")
PER_CLASS = ("precision", "recall", "f1")  # written as precision/<class>
LOWER_IS_BETTER = frozenset({"log_loss", "rmse", "mae"})
