"""The typed form of `data_options.contract`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import field_validator

from kfp_tfjob.options.parse import Group, Text, option


class Contract(Group):
    """What the data of the champion demands of later data for the same `model_name`."""

    changes: Literal["warn", "fail"] = option(
        "warn",
        "What happens if columns, their kinds, the classes or the split differ from the data of"
        " the champion, so that evaluate cannot compare the models: a warning, or the step fails.",
    )
    limits: Literal["warn", "fail"] = option(
        "warn", "What happens if values are beyond the limits below: a warning, or the step fails."
    )
    max_unseen: float | None = option(
        0.05,
        "Largest share of the rows of train with a value of a category that the data of the"
        " champion does not have; null for no limit.",
        ge=0,
        le=1,
    )
    max_gap_rise: float | None = option(
        0.05,
        "Largest rise of the share of gaps in a column of train, in shares: 0.05 allows 12 % where"
        " the champion's data has 7 %; null for no limit.",
        ge=0,
        le=1,
    )
    max_psi: float | None = option(
        0.25,
        "Largest population stability index of a column or the label against the data of the"
        " champion; null for no limit. Dates move on with time and have no limit.",
        ge=0,
        allow_inf_nan=False,
    )
    max_js: float | None = option(
        None,
        "Largest Jensen-Shannon divergence of the same, in bits from 0 to 1; null for no limit.",
        ge=0,
        le=1,
    )
    ignore: tuple[Text, ...] = option((), "Columns that the limits do not cover.")

    @field_validator("ignore", mode="before")
    @classmethod
    def _list(cls, value: Any) -> Any:
        if isinstance(value, str):
            raise ValueError(f'a list, for instance ["{value}"]')
        return value
