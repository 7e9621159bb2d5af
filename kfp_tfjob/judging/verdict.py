"""Builds verdict.json: every check with value, interval and threshold, and the judged model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from kfp_tfjob.judging.curves import BINS
from kfp_tfjob.judging.gate import GateDecision, Rival
from kfp_tfjob.judging.scored import Scored
from kfp_tfjob.judging.slice_checks import worst_first
from kfp_tfjob.storage.champion import Champion
from kfp_tfjob.storage.verdict_record import EvaluatedModel

FORMAT = "kfp-tfjob/verdict/1"


def build(
    decision: GateDecision,
    judged: EvaluatedModel,
    scored: Mapping[str, Scored],
    confidence: float,
    champion: Champion | None,
    rival: Rival | None,
) -> dict[str, Any]:
    """Return the content of verdict.json; a number that is not finite becomes null.

    Args:
        decision: The decision of the gate.
        judged: The judged model.
        scored: `model`, `baseline`, and the champion by its name if it was compared.
        confidence: The confidence of the intervals.
        champion: The record of the champion; None when there is none.
        rival: The champion as the gate saw it.
    """
    found = decision.comparison
    return _plain(
        {
            "format": FORMAT,
            "blessed": decision.blessed,
            "reasons": decision.reasons,
            "primary_metric": decision.primary_metric,
            "mode": decision.mode,
            "confidence": confidence,
            "checks": [
                {
                    "name": check.name,
                    "metric": check.metric,
                    "value": check.value,
                    "interval": check.interval,
                    "threshold": check.threshold,
                    "pass": check.passed,
                    "explanation": check.explanation,
                }
                for check in decision.checks
            ],
            "slices": [
                {
                    "name": it.name,
                    "column": it.column,
                    "rows": it.rows,
                    "state": it.state,
                    "metric": it.metric,
                    "value": it.found.value,
                    "interval": (it.found.low, it.found.high),
                    "champion": it.other,
                    "gain": it.gain,
                    "chance": it.chance,
                    "thresholds": it.thresholds,
                }
                for it in worst_first(decision.slices)
            ],
            "minimum_detectable_gain": found.detectable if found else None,
            "rows": scored["model"].predictions.rows,
            "weighted": scored["model"].predictions.weights is not None,
            "ranking": "exact" if scored["model"].measures.exact else f"{BINS:,} bins",
            "metrics": _values(scored["model"]),
            "class_metrics": {name: item.value for name, item in scored["model"].classes.items()},
            "intervals": {
                name: (item.low, item.high)
                for name, item in (scored["model"].measured | scored["model"].classes).items()
            },
            "baseline": _values(scored["baseline"]),
            "champion": _champion(champion, rival, scored),
            **asdict(judged),
        }
    )


def _values(scored: Scored) -> dict[str, float]:
    return {name: item.value for name, item in scored.measured.items()}


def _champion(
    champion: Champion | None, rival: Rival | None, scored: Mapping[str, Scored]
) -> dict[str, Any] | None:
    """Return the champion's part of the verdict; publish relies on `number`."""
    if champion is None or rival is None:
        return None
    found = scored.get(rival.name)
    return {
        "number": champion.number,
        "version": champion.version,
        "run_id": champion.run_id,
        "exported_weights_sha256": champion.exported_weights_sha256,
        "schema_digest": champion.schema_digest,
        "compared": found is not None,
        "obstacle": rival.obstacle,
        "metrics": _values(found) if found else {},
    }


def _plain(value: Any) -> Any:
    """Return a value in a form that JSON can hold."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
