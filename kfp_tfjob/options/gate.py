"""The parameter `gate`: what a challenger must show to become the champion.

Called by preflight and evaluate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from math import inf, isfinite
from typing import Annotated, Any, Literal

import pydantic

from kfp_tfjob.common.errors import ConfigurationError, Problem
from kfp_tfjob.common.formatting import choices, did_you_mean, nearest

from .metric_names import (
    CLASSIFICATION,
    ONLY_THRESHOLDS,
    OWN,
    PER_CLASS,
    REGRESSION,
    is_own,
    range_of,
    task_of,
    top_k,
)
from .parse import Group, NotOneOfError, Text, option, parse

# The default in the form. An empty gate, which a user can set, blesses no model.
DEFAULT_GATE: dict[str, Any] = {
    "primary_metric": "auto",
    "mode": "superior",
    "confidence": 0.95,
    "first_model": "beat_baseline",
}


def _check_metric(metric: str, also_allowed: tuple[str, ...] = ()) -> str:
    if task_of(metric) or is_own(metric):
        return metric
    class_metrics = tuple(f"{kind}/<class>" for kind in PER_CLASS)
    raise NotOneOfError(
        metric,
        [
            *also_allowed,
            *CLASSIFICATION,
            *REGRESSION,
            "top_<k>_accuracy",
            *class_metrics,
            "own/<name>",
        ],
    )


class Threshold(Group):
    """The allowed values of a metric on the test rows, including `min` and `max`."""

    min: float | None = option(None, "The smallest value that passes.", allow_inf_nan=False)
    max: float | None = option(None, "The largest value that passes.", allow_inf_nan=False)

    @pydantic.model_validator(mode="after")
    def _ordered(self) -> Threshold:
        if self.min is None and self.max is None:
            raise ValueError('{"min": number}, {"max": number} or both')
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError("a min that is at most max")
        return self

    def check_range(self, metric: str) -> None:
        """Check that a model can pass and can fail, by the range of the metric's values.

        Raises:
            ValueError: No value of the metric passes, or every value does.
        """
        lowest, highest = range_of(metric)
        low = -inf if self.min is None else self.min
        high = inf if self.max is None else self.max
        explanation = f"its values range from {lowest:g} to {highest:g}"
        if low > highest or high < lowest:
            raise ValueError(f"limits that {metric} can meet: {explanation}")
        if low <= lowest and high >= highest:
            raise ValueError(f"limits that {metric} can miss: {explanation}")

    def passes(self, value: float) -> bool:
        """Return whether a value is within the limits; NaN never is."""
        return (self.min is None or value >= self.min) and (self.max is None or value <= self.max)

    def slack(self, value: float) -> float:
        """Return a value's distance to the nearer limit; below 0 outside the limits."""
        above_min = inf if self.min is None else value - self.min
        below_max = inf if self.max is None else self.max - value
        return min(above_min, below_max)

    def __str__(self) -> str:
        """Return the limits in words, for example `at least 0.7 and at most 0.9`."""
        limits = [("at least", self.min), ("at most", self.max)]
        return " and ".join(f"{word} {limit:.12g}" for word, limit in limits if limit is not None)


def _check_thresholds(thresholds: dict[str, Threshold]) -> dict[str, Threshold]:
    for metric, threshold in thresholds.items():
        _check_metric(metric)
        threshold.check_range(metric)
    return thresholds


Thresholds = Annotated[dict[str, Threshold], pydantic.AfterValidator(_check_thresholds)]


class Slice(Group):
    """Rows that are evaluated separately: those with each value of a column, or in each range.

    A name alone is the column, with one slice for each of its values.
    """

    column: str = option(..., "The column: a feature, or the label.", min_length=1)
    edges: list[float | str] = option(
        [],
        "Numbers, or dates as `YYYY-MM-DD`, that divide the column into ranges: `[30, 50]` makes"
        " below 30, 30 to below 50, and 50 or more. Without them, each value is a slice.",
    )
    thresholds: Thresholds = option(
        {}, 'Limits by metric, such as `{"auc": {"min": 0.7}}`, for each slice with enough rows.'
    )
    min_rows: int = option(
        100,
        "With fewer rows, a slice is `insufficient`: shown, but neither passed nor failed.",
        ge=10,
    )

    @pydantic.model_validator(mode="before")
    @classmethod
    def _expand_name(cls, entry: Any) -> Any:
        return {"column": entry} if isinstance(entry, str) else entry

    @pydantic.field_validator("edges")
    @classmethod
    def _ascending(cls, edges: list[float | str]) -> list[float | str]:
        values = [edge_value(edge) for edge in edges]
        if any(not low < high for low, high in pairwise(values)) or not all(map(isfinite, values)):
            raise ValueError("numbers or dates in ascending order")
        if len({isinstance(edge, str) for edge in edges}) > 1:
            raise ValueError("only numbers or only dates")
        return edges


def edge_value(edge: float | str) -> float:
    """Return an edge as a number; a date becomes microseconds since 1970, UTC.

    Raises:
        ValueError: The edge is a string, but not a date.
    """
    if not isinstance(edge, str):
        return float(edge)
    try:
        moment = datetime.fromisoformat(edge)
    except ValueError:
        raise ValueError(f"numbers, or dates such as 2026-01-31, not {edge!r}") from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return float((moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1))


class GateOptions(Group):
    """The keys of `gate`."""

    primary_metric: str = option(
        "auto",
        "The metric that compares the models. `auto` is the AUC for two classes, the"
        " accuracy for more, the RMSE for regression. `own/<name>` is a metric from `evaluator`"
        " with a value for each row.",
    )
    direction: Literal["maximize", "minimize"] | None = option(
        None,
        "Whether higher (`maximize`) or lower (`minimize`) values of a primary metric from"
        " `evaluator` are better. Built-in metrics need no direction.",
    )
    mode: Literal["superior", "non_inferior", "point"] = option(
        "superior",
        "`superior`: the lower confidence bound of the gain over the champion is above 0."
        " `non_inferior`: that bound is at least -`margin`. `point`: the value itself is better,"
        " which promotes half of all equally good models.",
    )
    margin: float = option(
        0.0,
        "The loss that mode `non_inferior` accepts, in units of the metric.",
        ge=0,
        allow_inf_nan=False,
    )
    confidence: float = option(
        0.95,
        "Confidence of the one-sided bounds that decide. Both ends of an interval in the report are"
        " such bounds: at 0.95, it is a 90% interval.",
        gt=0.5,
        lt=1,
    )
    first_model: Literal["beat_baseline", "accept"] = option(
        "beat_baseline",
        "`beat_baseline`: the lower confidence bound of the first model must beat the baseline,"
        " which predicts the class shares or the mean of the training rows. For precision, recall"
        " and F1, it is a guess that names each class as often as the model does. `accept`: any"
        " first model passes.",
    )
    incompatible_champion: Literal["fail", "treat_as_first"] = option(
        "fail",
        "What happens if the champion cannot be compared because its schema differs or it cannot be"
        " loaded. `fail`: the model is not blessed. `treat_as_first`: it is evaluated like a first"
        " model.",
    )
    thresholds: Thresholds = option(
        {},
        'Limits by metric, such as `{"auc": {"min": 0.8}}`, that the model must also meet on the'
        " test rows. `own/<name>` is a metric from `evaluator`.",
    )
    slices: list[Slice] = option(
        [],
        "Groups of rows to evaluate separately, such as"
        ' `["city", {"column": "age", "edges": [30, 50]}]`, where a name alone makes a slice of'
        " each of the column's values. The model must not be worse than the champion in any slice,"
        " beyond `margin` and chance, with Holm's correction for the number of slices.",
    )

    evaluator: Text | None = option(
        None,
        "Your own function that computes more metrics, in any form that `model_code` allows. It"
        " takes the arrays `labels` and `predictions` of the test rows and, if it has these"
        " arguments, `weights`, `features` and `classes`. It returns a dict that maps each metric's"
        " name to a number, or to an array with one value per row, whose mean is the metric. Other"
        " keys refer to it as `own/<name>`.",
    )

    @property
    def interval_confidence(self) -> float:
        """The confidence of a two-sided interval whose ends are one-sided bounds."""
        return round(2 * self.confidence - 1, 12)  # 0.9, where floats give 0.8999999999999999

    @property
    def by_row(self) -> list[str]:
        """The metrics that need a value for each row: the primary metric and slices' metrics."""
        slice_metrics = [metric for part in self.slices for metric in part.thresholds]
        return list(dict.fromkeys([self.primary_metric, *slice_metrics]))

    @pydantic.field_validator("primary_metric")
    @classmethod
    def _primary(cls, metric: str) -> str:
        if metric == "auto":
            return metric
        if _check_metric(metric, ("auto",)) in ONLY_THRESHOLDS:
            raise ValueError(
                f"a metric with a standard error; {metric} has none and can only have a threshold"
            )
        return metric

    @pydantic.field_validator("slices")
    @classmethod
    def _once(cls, slices: list[Slice]) -> list[Slice]:
        keys = [(part.column, part.edges) for part in slices]
        repeated = next((column for column, edges in keys if keys.count((column, edges)) > 1), None)
        if repeated is not None:
            raise ValueError(f"each column once with the same edges, not {repeated!r} twice")
        return slices

    @pydantic.model_validator(mode="after")
    def _without_contradiction(self) -> GateOptions:
        """Reject options that are valid alone but not together.

        Raises:
            ValueError: The text is the part after "expected" in the message to the user.
        """
        if self.margin and self.mode != "non_inferior":
            raise ValueError('margin only with "mode": "non_inferior"; other modes ignore it')
        tasks: dict[str, str] = {}
        metrics = [*self.by_row, *self.thresholds]
        if (own := next(filter(is_own, metrics), None)) and not self.evaluator:
            raise ValueError(f"an evaluator, a function that returns {own.removeprefix(OWN)!r}")
        if is_own(self.primary_metric) and not self.direction:
            raise ValueError(
                f'a direction for {self.primary_metric}: "maximize" if a higher value is better,'
                ' "minimize" if a lower one is'
            )
        if self.direction and not is_own(self.primary_metric):
            raise ValueError(
                "a direction only for a primary metric of evaluator;"
                f" {self.primary_metric} already has one"
            )
        for metric in metrics:
            if task := task_of(metric):
                tasks.setdefault(task, metric)
        if len(tasks) > 1:
            raise ValueError(
                "metrics of one task: "
                + " and ".join(f"{metric} is for {task}" for task, metric in tasks.items())
                + ", so no model passes"
            )
        return self


def parse_gate(gate: Mapping[str, Any]) -> GateOptions | None:
    """Return the typed form of `gate`; None for an empty gate, which blesses no model.

    Raises:
        ConfigurationError: One problem for every key that is unknown or has an invalid value.
    """
    options = parse(GateOptions, "gate", gate)
    return options if gate else None


def check_metrics(options: GateOptions | None, task: str, classes: Sequence[str]) -> None:
    """Check that the label allows every metric of `gate`; an empty gate passes.

    Args:
        options: The gate.
        task: `classification` or `regression`.
        classes: The names of the classes of a classification.

    Raises:
        ConfigurationError: One problem for every metric of the other task, of a class that the
            label does not have, or with the same value for every model.
    """
    if options is None:
        return
    metrics = [("gate.primary_metric", options.primary_metric)]
    metrics += [(f"gate.thresholds.{metric}", metric) for metric in options.thresholds]
    metrics += [("gate.slices", metric) for part in options.slices for metric in part.thresholds]
    problems = [
        problem
        for path, metric in metrics
        if task_of(metric) and (problem := _metric_problem(path, metric, task, classes))
    ]
    if problems:
        raise ConfigurationError(*problems)


def _metric_problem(path: str, metric: str, task: str, classes: Sequence[str]) -> Problem | None:
    """Return the reason why a label does not allow a metric; None if it does."""
    kind, _, name = metric.partition("/")
    # A user can replace the value of a threshold's path by a metric, but not a list of slices.
    is_value = path != "gate.slices"
    if task_of(metric) != task:
        usable = CLASSIFICATION if task == "classification" else REGRESSION
        return Problem(
            f"{metric} is a metric for {task_of(metric)}, but the label makes this a {task}",
            received=metric,
            expected=choices(usable, most=len(usable)),
            fix="name one of these, or correct data_label or data_options.task",
            path=path,
            name="metric-mismatch",
        )
    if name and name not in classes:
        class_metrics = [f"{kind}/{label_class}" for label_class in classes]
        nearest_class = nearest(name, classes)
        meant = f"{kind}/{nearest_class}" if nearest_class else ""
        return Problem(
            f"the label has no class {name!r}",
            received=metric,
            expected=choices(class_metrics, meant),
            fix=did_you_mean(meant, "use one of the label's classes"),
            path=path,
            suggestion=meant if is_value else "",
        )
    k = top_k(metric)
    if k and k >= len(classes):
        return Problem(
            f"{metric} is 1 for every model, because the label has {len(classes)} classes",
            received=metric,
            expected="accuracy, or a smaller k",
            fix="use accuracy",
            path=path,
            suggestion="accuracy" if is_value else "",
        )
    return None
