"""The typed form of `data_options.contract`.

Called by prepare_data's validation and by `kfp-tfjob monitor`.
"""

from __future__ import annotations

from typing import Literal

from .parse import Group, Texts, option


class Contract(Group):
    """How far later data for the same `model_name` may differ from the champion's."""

    changes: Literal["warn", "fail"] = option(
        "warn",
        "Whether to warn or fail if columns, column types, classes or the split differ from the"
        " champion's data, so that evaluate cannot compare the models.",
    )
    limits: Literal["warn", "fail"] = option(
        "warn", "Whether to warn or fail if the data exceeds the limits below."
    )
    max_unseen: float | None = option(
        0.05,
        "Largest share of training rows with a category that the champion's data does not have;"
        " null for no limit.",
        ge=0,
        le=1,
    )
    max_gap_rise: float | None = option(
        0.05,
        "Largest rise in a column's share of missing values: 0.05 allows 12% if the champion's data"
        " has 7%; null for no limit.",
        ge=0,
        le=1,
    )
    max_psi: float | None = option(
        0.25,
        "Largest population stability index of a column or the label against the champion's data;"
        " null for no limit. Dates have no limit.",
        ge=0,
        allow_inf_nan=False,
    )
    ignore: Texts = option((), "Columns that the limits do not cover.")
