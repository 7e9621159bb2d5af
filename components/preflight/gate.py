"""Checks the code of the evaluator that `gate` names; prepare_data checks its columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kfp_tfjob.judging.evaluator_code import PATH, EvaluatorCode
from kfp_tfjob.options.gate import parse_gate
from kfp_tfjob.storage.errors import ConfigurationError, Problem
from kfp_tfjob.storage.store import Store
from kfp_tfjob.user_code.own_code import place_of


def place(gate: Mapping[str, Any]) -> dict[str, str]:
    """Return `gate.evaluator` with the place of its code; nothing if the image has it.

    Raises:
        ConfigurationError: It does not name a function.
    """
    return place_of(PATH, str(gate.get("evaluator") or ""))


def check_evaluator(store: Store, gate: Mapping[str, Any]) -> tuple[str, list[Problem | str]]:
    """Return the digest of the code of `gate.evaluator`, empty without one, and its problems."""
    options = parse_gate(gate)
    if not (options and options.evaluator):
        return "", []
    try:
        return EvaluatorCode.read(options.evaluator, store).digest, []
    except ConfigurationError as error:
        return "", list(error.problems)
