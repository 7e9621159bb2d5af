"""Makes the verdict on a model of what the gate decided and what was measured."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, replace

from kfp_tfjob.judging.estimates import Measured
from kfp_tfjob.judging.gate import GateDecision, Rival
from kfp_tfjob.judging.metrics import Measures
from kfp_tfjob.judging.ranking_metrics import BINS
from kfp_tfjob.judging.slice_checks import SliceResult, worst_first
from kfp_tfjob.storage.champion import Champion
from kfp_tfjob.storage.verdict_record import (
    EvaluatedModel,
    Interval,
    MetChampion,
    ModelVerdict,
    Values,
    VerdictSlice,
)


def build(
    decision: GateDecision,
    judged: EvaluatedModel,
    scored: Mapping[str, Measures],
    champion: Champion | None,
    rival: Rival | None,
) -> ModelVerdict:
    """Return the content of verdict.json; a number that is not finite becomes None.

    Args:
        decision: The decision of the gate.
        judged: The evaluated model.
        scored: `model`, `baseline`, and the champion by its name if it was compared.
        champion: The champion's record; None when there is none.
        rival: The champion as the gate saw it.
    """
    model, found = scored["model"], decision.comparison
    return ModelVerdict(
        **vars(judged),
        blessed=decision.blessed,
        reasons=decision.reasons,
        primary_metric=decision.primary_metric,
        mode=decision.mode,
        confidence=model.confidence,
        checks=tuple(
            replace(it, value=_finite(it.value), interval=_interval(it.interval))
            for it in decision.checks
        ),
        slices=tuple(_slice(it) for it in worst_first(decision.slices)),
        minimum_detectable_gain=_finite(found.detectable) if found else None,
        rows=model.predictions.rows,
        weighted=model.predictions.weights is not None,
        ranking="exact" if model.exact else f"{BINS:,} bins",
        metrics=_values(model.measured),
        class_metrics=_values(model.class_metrics),
        intervals={
            name: _interval((item.low, item.high))
            for name, item in (model.measured | model.class_metrics).items()
        },
        baseline=_values(scored["baseline"].measured),
        champion=_champion(champion, rival, scored),
    )


def _slice(found: SliceResult) -> VerdictSlice:
    stored = {it.name: getattr(found, it.name) for it in fields(VerdictSlice)}
    stored |= {name: _finite(stored[name]) for name in ("value", "champion", "gain", "chance")}
    thresholds = {name: _finite(value) for name, value in found.thresholds.items()}
    stored |= {"interval": _interval(found.interval), "thresholds": thresholds}
    return VerdictSlice(**stored)


def _champion(
    champion: Champion | None, rival: Rival | None, scored: Mapping[str, Measures]
) -> MetChampion | None:
    if champion is None or rival is None:
        return None
    found = scored.get(rival.name)
    return MetChampion(
        number=champion.number,
        version=champion.version,
        run_id=champion.run_id,
        exported_weights_sha256=champion.exported_weights_sha256,
        schema_digest=champion.schema_digest,
        compared=found is not None,
        obstacle=rival.obstacle,
        metrics=_values(found.measured) if found else {},
    )


def _values(measured: Mapping[str, Measured]) -> Values:
    return {name: _finite(item.value) for name, item in measured.items()}


def _interval(ends: Interval) -> Interval:
    return _finite(ends[0]), _finite(ends[1])


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
