"""The code of `gate.evaluator`, a user's function that computes metrics.

preflight reads and checks the code without running it, so that a wrong signature fails the run
before training. The evaluate step loads and calls it (own_metrics.py).
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

from kfp_tfjob.common.errors import Problem
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
    """The evaluator function and the source files that it needs."""

    path = PATH

    @classmethod
    def _wrong_arguments(cls, path: str, node: ast.FunctionDef) -> list[Problem]:
        names = _argument_names(node)
        accepted = {*ALWAYS, *ON_REQUEST}
        takes_any = node.args.kwarg is not None
        if (takes_any or set(ALWAYS) <= set(names)) and set(_required_names(node)) <= accepted:
            return []
        problem = Problem(
            f"{path}, line {node.lineno}: {node.name} cannot be called with labels and predictions",
            received=declared(node),
            expected=EXPECTED,
            fix="name the arguments as expected, because they are passed by name; give any other"
            " argument a default value",
        )
        return [problem]


def _argument_names(node: ast.FunctionDef) -> list[str]:
    arguments = node.args
    return [argument.arg for argument in (*arguments.args, *arguments.kwonlyargs)]


def _required_names(node: ast.FunctionDef) -> list[str]:
    """Return the arguments without a default; `/name` for one that cannot be passed by name."""
    arguments = node.args
    optional = len(arguments.defaults)
    names = [argument.arg for argument in arguments.args]
    needed = [f"/{argument.arg}" for argument in arguments.posonlyargs]
    needed += names[: len(names) - optional]
    pairs = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    return [*needed, *(argument.arg for argument, default in pairs if default is None)]
