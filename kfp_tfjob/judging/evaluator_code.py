"""The code of `gate.evaluator`: a function that computes the user's own metrics."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from kfp_tfjob.storage.errors import Problem
from kfp_tfjob.user_code.arguments import declared
from kfp_tfjob.user_code.own_code import OwnCode

PATH = "gate.evaluator"
ALWAYS = ("labels", "predictions")
ON_REQUEST = ("weights", "features", "classes")
EXPECTED = (
    "def evaluate(labels, predictions), also with weights, features or classes; it returns a dict"
    " of names and numbers, or arrays with a value for each row"
)


@dataclass(frozen=True)
class EvaluatorCode(OwnCode):
    """The function and its code."""

    path = PATH

    @classmethod
    def _wrong_arguments(cls, path: str, node: ast.FunctionDef) -> list[Problem]:
        names = _arguments(node)
        known = {*ALWAYS, *ON_REQUEST}
        free = node.args.kwarg is not None
        if (free or set(ALWAYS) <= set(names)) and set(_needed(node)) <= known:
            return []
        problem = Problem(
            f"{path}, line {node.lineno}: {node.name} does not take labels and predictions",
            received=declared(node),
            expected=EXPECTED,
            fix="name its arguments like this; they are passed by name",
        )
        return [problem]


def _arguments(node: ast.FunctionDef) -> list[str]:
    arguments = node.args
    return [it.arg for it in (*arguments.args, *arguments.kwonlyargs)]


def _needed(node: ast.FunctionDef) -> list[str]:
    """Return the arguments without a default; one without a name cannot be passed by name."""
    arguments = node.args
    optional = len(arguments.defaults)
    names = [it.arg for it in arguments.args]
    needed = [f"/{it.arg}" for it in arguments.posonlyargs] + names[: len(names) - optional]
    pairs = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    return [*needed, *(it.arg for it, default in pairs if default is None)]
