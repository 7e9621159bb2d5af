"""Checks the columns that command-line options name.

Called by server.py for --sample-without and by monitor.py for --ignore. Without the check, a typo
would silently store or report a column that the user excluded.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from kfp_tfjob.common.errors import ConfigurationError, Problem
from kfp_tfjob.common.formatting import choices, did_you_mean, nearest


def check_columns(option: str, names: Iterable[str], columns: Collection[str]) -> None:
    """Check that a model has all the columns that an option names.

    Args:
        option: The option, for example `--ignore`.
        names: The option's columns.
        columns: The columns of the model.

    Raises:
        ConfigurationError: The model does not have one of them.
    """
    ConfigurationError.raise_if(
        Problem(
            f"{option} names a column that the model does not have",
            received=repr(name),
            expected=f"one of {choices(columns, suggestion)}",
            fix=did_you_mean(suggestion, "correct the name, or remove the option"),
            path=option,
            suggestion=suggestion,
        )
        for name in names
        if name not in columns
        for suggestion in [nearest(name, columns)]
    )
