"""Checks the code of the evaluator that `gate` names; prepare_data checks its columns."""

from __future__ import annotations

from kfp_tfjob.judging.evaluator_code import PATH, EvaluatorCode
from kfp_tfjob.options.gate import GateOptions
from kfp_tfjob.storage.errors import ConfigurationError, Problem
from kfp_tfjob.storage.store import Store
from kfp_tfjob.user_code.own_code import place_of


def place(gate: GateOptions | None) -> dict[str, str]:
    """Return `gate.evaluator` with the place of its code; nothing if the image has it."""
    return place_of(PATH, (gate and gate.evaluator) or "")


def check_evaluator(store: Store, gate: GateOptions | None) -> tuple[str, list[Problem | str]]:
    """Return the digest of the code of `gate.evaluator`, empty without one, and its problems."""
    if not (gate and gate.evaluator):
        return "", []
    try:
        return EvaluatorCode.read(gate.evaluator, store).digest, []
    except ConfigurationError as error:
        return "", list(error.problems)
