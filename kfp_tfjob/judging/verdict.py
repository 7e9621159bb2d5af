"""Makes the verdict on a model of what the gate decided and what was measured."""

from __future__ import annotations

import math
from collections.abc import Mapping

from kfp_tfjob.judging.check import Check
from kfp_tfjob.judging.gate import GateDecision, Rival
from kfp_tfjob.judging.ranking_metrics import BINS
from kfp_tfjob.judging.scored import Scored
from kfp_tfjob.judging.slice_checks import SliceResult, worst_first
from kfp_tfjob.storage.champion import Champion
from kfp_tfjob.storage.verdict_record import (
    EvaluatedModel,
    Interval,
    MetChampion,
    ModelVerdict,
    Values,
    VerdictCheck,
    VerdictSlice,
)


def build(
    decision: GateDecision,
    judged: EvaluatedModel,
    scored: Mapping[str, Scored],
    confidence: float,
    champion: Champion | None,
    rival: Rival | None,
) -> ModelVerdict:
    """Return the content of verdict.json; a number that is not finite becomes None.

    Args:
        decision: The decision of the gate.
        judged: The judged model.
        scored: `model`, `baseline`, and the champion by its name if it was compared.
        confidence: The confidence of the intervals.
        champion: The record of the champion; None when there is none.
        rival: The champion as the gate saw it.
    """
    model, found = scored["model"], decision.comparison
    return ModelVerdict(
        **vars(judged),
        blessed=decision.blessed,
        reasons=decision.reasons,
        primary_metric=decision.primary_metric,
        mode=decision.mode,
        confidence=confidence,
        checks=tuple(_check(it) for it in decision.checks),
        slices=tuple(_slice(it) for it in worst_first(decision.slices)),
        minimum_detectable_gain=_finite(found.detectable) if found else None,
        rows=model.predictions.rows,
        weighted=model.predictions.weights is not None,
        ranking="exact" if model.measures.exact else f"{BINS:,} bins",
        metrics=_values(model),
        class_metrics={name: _finite(item.value) for name, item in model.classes.items()},
        intervals={
            name: _interval((item.low, item.high))
            for name, item in (model.measured | model.classes).items()
        },
        baseline=_values(scored["baseline"]),
        champion=_champion(champion, rival, scored),
    )


def _check(check: Check) -> VerdictCheck:
    numbers = {"value": _finite(check.value), "interval": _interval(check.interval)}
    return VerdictCheck(**vars(check) | numbers)


def _slice(found: SliceResult) -> VerdictSlice:
    return VerdictSlice(
        name=found.name,
        column=found.column,
        rows=found.rows,
        state=found.state,
        metric=found.metric,
        value=_finite(found.found.value),
        interval=_interval((found.found.low, found.found.high)),
        champion=_finite(found.other),
        gain=_finite(found.gain),
        chance=_finite(found.chance),
        thresholds={name: _finite(value) for name, value in found.thresholds.items()},
    )


def _champion(
    champion: Champion | None, rival: Rival | None, scored: Mapping[str, Scored]
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
        metrics=_values(found) if found else {},
    )


def _values(scored: Scored) -> Values:
    return {name: _finite(item.value) for name, item in scored.measured.items()}


def _interval(ends: tuple[float, float]) -> Interval:
    return _finite(ends[0]), _finite(ends[1])


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
