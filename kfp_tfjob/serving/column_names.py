"""Checks the columns that options of the command line name."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from kfp_tfjob.storage.errors import ConfigurationError, Problem
from kfp_tfjob.storage.formatting import choices, did_you_mean, nearest


def check_columns(option: str, names: Iterable[str], columns: Collection[str]) -> None:
    """Check that a model has all the columns that an option names: a typo would have no effect.

    Args:
        option: The option.
        names: What it names.
        columns: The columns of the model.

    Raises:
        ConfigurationError: The model does not have one of them.
    """
    ConfigurationError.raise_if(
        Problem(
            f"{option} names a column that the model does not have",
            received=repr(name),
            expected=f"one of {choices(columns, meant)}",
            fix=did_you_mean(meant, "correct the name, or remove the option"),
            path=option,
            suggestion=meant,
        )
        for name in names
        if name not in columns
        for meant in [nearest(name, columns)]
    )
