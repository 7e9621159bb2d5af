"""The parameter `gate`: what a challenger must show to become the champion."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import pydantic

from kfp_tfjob.options.metric_names import CLASSIFICATION, PER_CLASS, REGRESSION
from kfp_tfjob.options.parse import Group, option, parse

# The default in the form. A gate that a user empties blesses nothing.
DEFAULT_GATE: dict[str, Any] = {
    "primary_metric": "auto",
    "mode": "superior",
    "confidence": 0.95,
    "first_model": "beat_baseline",
}


def _known(metric: str) -> str:
    kind, _, name = metric.partition("/")
    if metric in CLASSIFICATION + REGRESSION or (kind in PER_CLASS and name):
        return metric
    known = [*CLASSIFICATION, *REGRESSION, *(f"{kind}/<class>" for kind in PER_CLASS)]
    raise ValueError(f"one of {', '.join(known)}")


def _known_or_auto(metric: str) -> str:
    return metric if metric == "auto" else _known(metric)


class Threshold(Group):
    """The allowed values of a metric on the test rows, including `min` and `max`."""

    min: float | None = option(None, "The smallest value that passes.", allow_inf_nan=False)
    max: float | None = option(None, "The largest value that passes.", allow_inf_nan=False)

    @pydantic.model_validator(mode="after")
    def _ordered(self) -> Threshold:
        if self.min is None and self.max is None:
            raise ValueError('{"min": number}, {"max": number} or both')
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError("a min that is not above max")
        return self

    def passes(self, value: float) -> bool:
        """Return whether a value passes; NaN never does."""
        return (self.min is None or value >= self.min) and (self.max is None or value <= self.max)

    def __str__(self) -> str:
        """Return it in words."""
        ends = [("at least", self.min), ("at most", self.max)]
        return " and ".join(f"{word} {end:g}" for word, end in ends if end is not None)


class GateOptions(Group):
    """The keys of `gate`."""

    primary_metric: str = option(
        "auto",
        "The metric that compares the models. `auto` is the AUC for two classes, the"
        " accuracy for more, the RMSE for a regression.",
    )
    mode: Literal["superior", "non_inferior", "point"] = option(
        "superior",
        "`superior`: the lower confidence bound of the gain over the champion is above 0."
        " `non_inferior`: that bound is not below minus `margin`. `point`: the value"
        " itself is better, which promotes half of all models that are equally good.",
    )
    margin: float = option(
        0.0,
        "The loss that mode `non_inferior` accepts, in units of the metric.",
        ge=0,
        allow_inf_nan=False,
    )
    confidence: float = option(
        0.95,
        "Confidence of the one-sided bounds that decide, and of the intervals in the report.",
        gt=0.5,
        lt=1,
    )
    first_model: Literal["beat_baseline", "accept"] = option(
        "beat_baseline",
        "`beat_baseline`: the lower confidence bound of a first model must be better than"
        " the trivial model (the class shares or the mean of the training rows). `accept`:"
        " any first model passes.",
    )
    incompatible_champion: Literal["fail", "treat_as_first"] = option(
        "fail",
        "What happens if the champion cannot be compared, because its schema differs or"
        " it cannot be loaded: the step fails, or the model is treated as the first.",
    )
    thresholds: dict[str, Threshold] = option(
        {}, 'Metric to {"min": number, "max": number}; the model must also meet each of them.'
    )

    @pydantic.field_validator("primary_metric")
    @classmethod
    def _primary(cls, metric: str) -> str:
        return _known_or_auto(metric)

    @pydantic.field_validator("thresholds")
    @classmethod
    def _thresholds(cls, thresholds: dict[str, Threshold]) -> dict[str, Threshold]:
        for metric in thresholds:
            _known(metric)
        return thresholds


def parse_gate(gate: Mapping[str, Any]) -> GateOptions | None:
    """Return the typed form of `gate`; None for an empty one, which blesses nothing.

    Raises:
        ConfigurationError: One problem for every key that is unknown or has a wrong value.
    """
    options = parse(GateOptions, "gate", gate)
    return options if gate else None
