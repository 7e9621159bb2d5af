"""Builds verdict.json from the gate's decision and the metrics.

A verdict contains only what JSON can store: a number that is not finite becomes None. Called by
`judge`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, replace

from kfp_tfjob.registry.champion import Champion
from kfp_tfjob.registry.verdict_record import (
    EvaluatedModel,
    Interval,
    MetChampion,
    ModelVerdict,
    Values,
    VerdictSlice,
)

from .gate import ChampionResult, GateDecision
from .metric_uncertainty import Measured
from .metrics import Measures
from .ranking_metrics import BINS
from .slice_checks import SliceResult, worst_first


def build_verdict(
    decision: GateDecision,
    evaluated_model: EvaluatedModel,
    scored: Mapping[str, Measures],
    champion: Champion | None,
    champion_result: ChampionResult | None,
) -> ModelVerdict:
    """Return the content of verdict.json; a number that is not finite becomes None.

    Args:
        decision: The gate's decision.
        evaluated_model: The evaluated model.
        scored: Metrics of `model`, of `baseline`, and of the champion by its name if compared.
        champion: The champion's record; None without a champion.
        champion_result: The champion's result, on which the gate decided.
    """
    model, comparison = scored["model"], decision.comparison
    return ModelVerdict(
        **vars(evaluated_model),
        blessed=decision.blessed,
        reasons=decision.reasons,
        primary_metric=decision.primary_metric,
        mode=decision.mode,
        confidence=model.confidence,
        checks=tuple(
            replace(
                check, value=_finite_or_none(check.value), interval=_stored_interval(check.interval)
            )
            for check in decision.checks
        ),
        slices=tuple(_stored_slice(slice_result) for slice_result in worst_first(decision.slices)),
        minimum_detectable_gain=_finite_or_none(comparison.detectable) if comparison else None,
        rows=model.predictions.rows,
        weighted=model.predictions.weights is not None,
        ranking="exact" if model.exact else f"{BINS:,} bins",
        metrics=_metric_values(model.measured),
        class_metrics=_metric_values(model.class_metrics),
        intervals={
            name: _stored_interval((item.low, item.high))
            for name, item in (model.measured | model.class_metrics).items()
        },
        baseline=_metric_values(scored["baseline"].measured),
        champion=_met_champion(champion, champion_result, scored),
    )


def _stored_slice(slice_result: SliceResult) -> VerdictSlice:
    stored = {
        stored_field.name: getattr(slice_result, stored_field.name)
        for stored_field in fields(VerdictSlice)
    }
    stored |= {
        name: _finite_or_none(stored[name]) for name in ("value", "champion", "gain", "chance")
    }
    thresholds = {name: _finite_or_none(value) for name, value in slice_result.thresholds.items()}
    stored |= {"interval": _stored_interval(slice_result.interval), "thresholds": thresholds}
    return VerdictSlice(**stored)


def _met_champion(
    champion: Champion | None,
    champion_result: ChampionResult | None,
    scored: Mapping[str, Measures],
) -> MetChampion | None:
    if champion is None or champion_result is None:
        return None
    measures = scored.get(champion_result.name)
    return MetChampion(
        number=champion.number,
        version=champion.version,
        run_id=champion.run_id,
        exported_weights_sha256=champion.exported_weights_sha256,
        schema_digest=champion.schema_digest,
        compared=measures is not None,
        obstacle=champion_result.obstacle,
        metrics=_metric_values(measures.measured) if measures else {},
    )


def _metric_values(measured: Mapping[str, Measured]) -> Values:
    return {name: _finite_or_none(item.value) for name, item in measured.items()}


def _stored_interval(interval: Interval) -> Interval:
    return _finite_or_none(interval[0]), _finite_or_none(interval[1])


def _finite_or_none(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
