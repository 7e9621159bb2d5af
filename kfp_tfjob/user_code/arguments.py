"""Checks how the user's function can be called, from its code alone or as it was imported.

Preflight's image lacks TensorFlow, so it must not import the user's code; it reads the `def` line.
The trainer checks again with the imported function, whose decorators may change the arguments.
Called by `model_code.py`, `evaluator_code.py` and the trainer's `user_model.py`.
"""

from __future__ import annotations

import ast
import inspect
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from kfp_tfjob.common.errors import Problem
from kfp_tfjob.common.formatting import choices, did_you_mean, nearest

_EXPECTED_VALUES = {"bool": "true or false", "int": "a whole number", "float": "a number"}
_UNION_WORDS = ("None", "Optional", "Union", "typing")  # in annotations such as Optional[int]
# The words that people write for a boolean, by its JSON.
_BOOLEAN_WORDS = {
    "true": ("true", "yes", "on", "y", "t", "1"),
    "false": ("false", "no", "off", "n", "f", "0"),
}


def wrong_arguments(
    path: str, node: ast.FunctionDef, hyperparameters: Mapping[str, object]
) -> list[Problem]:
    """Check that a function can be called as `function(dataset, **hyperparameters)`."""
    arguments = node.args
    positional = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]
    where = f"{path}, line {node.lineno}: {node.name}"
    problems = []
    if not positional and not arguments.vararg:
        problems.append(
            Problem(
                f"{where} does not take the dataset",
                received=declared(node),
                expected=f"def {node.name}(dataset, ...)",
                fix="add a first argument for the dataset",
            )
        )
    names = positional[1:] + [argument.arg for argument in arguments.kwonlyargs]
    optional = set(positional[len(positional) - len(arguments.defaults) :])
    pairs = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    optional |= {argument.arg for argument, default in pairs if default is not None}
    for name in hyperparameters:
        if name not in names and not arguments.kwarg:
            suggestion = nearest(name, names)
            problems.append(
                Problem(
                    f"{where} does not take the hyperparameter {name!r}",
                    received=name,
                    expected=f"one of {choices(names, suggestion) or 'none'}",
                    fix=did_you_mean(suggestion, f"remove {name!r}"),
                    path=f"model_hyperparameters.{name}",
                    suggestion=suggestion,
                    name="hyperparameter-mismatch",
                )
            )
    problems += _string_problems(where, _arguments_of(arguments), hyperparameters)
    for name in names:
        if name not in optional and name not in hyperparameters:
            problems.append(
                Problem(
                    f"{where} needs the hyperparameter {name!r}",
                    received=f"model_hyperparameters with {sorted(hyperparameters) or 'nothing'}",
                    expected=f"a value for {name!r}",
                    fix=f"add {name!r} to model_hyperparameters, or give it a default",
                    name="hyperparameter-mismatch",
                )
            )
    return problems


def wrong_strings(
    function: Callable[..., object], hyperparameters: Mapping[str, object]
) -> list[Problem]:
    """Return a problem for each string that an imported function takes as a boolean or a number.

    Args:
        function: Any function, even a decorated one, or one that only its image has.
        hyperparameters: Its arguments by name.
    """
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # some functions in C do not declare a signature
        return []
    name = getattr(function, "__name__", "the function")
    arguments = [
        (parameter.name, _expression(parameter.annotation), parameter.default)
        for parameter in parameters.values()
    ]
    return [*_string_problems(name, arguments, hyperparameters)]


def _string_problems(
    where: str,
    arguments: Iterable[tuple[str, ast.expr | None, object]],
    hyperparameters: Mapping[str, object],
) -> Iterator[Problem]:
    """Yield a problem for each string that an argument for a boolean or a number gets.

    Python would accept it: the string "no" is true.

    Args:
        where: The function, for messages.
        arguments: Name, annotation and default of each argument.
        hyperparameters: Values by name.
    """
    for name, annotation, default in arguments:
        value = hyperparameters.get(name)
        kinds = _kinds(annotation, default)
        if not isinstance(value, str) or not kinds:
            continue
        suggestion = _intended_json(value, kinds)
        yield Problem(
            f"{where} gets a string for the hyperparameter {name!r}",
            received=repr(value),
            # A default of 1 does not tell whether 0.5 is valid.
            expected=_EXPECTED_VALUES["float"]
            if not annotation and kinds == ["int"]
            else " or ".join(_EXPECTED_VALUES[kind] for kind in kinds),
            fix=did_you_mean(
                suggestion,
                "correct the value; if the function also takes strings, declare it:"
                f" {name}: {' | '.join([*kinds, 'str'])}",
            ),
            path=f"model_hyperparameters.{name}",
            suggestion=suggestion,
            name="hyperparameter-mismatch",
        )


def _arguments_of(arguments: ast.arguments) -> Iterator[tuple[str, ast.expr | None, object]]:
    """Yield each argument's name, its annotation or None, and its constant default or None."""
    positional = [*arguments.posonlyargs, *arguments.args]
    without_default = len(positional) - len(arguments.defaults)
    defaults = [*[None] * without_default, *arguments.defaults, *arguments.kw_defaults]
    for argument, default in zip([*positional, *arguments.kwonlyargs], defaults, strict=True):
        if isinstance(default, ast.UnaryOp):  # -1
            default = default.operand
        value = default.value if isinstance(default, ast.Constant) else None
        yield argument.arg, argument.annotation, value


def _expression(annotation: object) -> ast.expr | None:
    """Return the syntax tree of an imported function's annotation; None without an annotation."""
    if annotation is inspect.Parameter.empty:
        return None
    with suppress(SyntaxError):
        return ast.parse(inspect.formatannotation(annotation), mode="eval").body
    return ast.Name("Any")  # such as <object object>


def _kinds(annotation: ast.expr | None, default: object) -> list[str]:
    """Return the types of an argument for a boolean or a number; empty for any other argument."""
    if annotation is None:
        return [type(default).__name__] if isinstance(default, bool | int | float) else []
    words: set[str] = set()
    for node in ast.walk(annotation):
        if isinstance(node, ast.Name | ast.Attribute):
            words.add(node.id if isinstance(node, ast.Name) else node.attr)
        elif isinstance(node, ast.Constant):
            words.update(re.findall(r"[\w.]+", str(node.value)))
    kinds = [kind for kind in _EXPECTED_VALUES if kind in words]
    return kinds if words <= {*_EXPECTED_VALUES, *_UNION_WORDS} else []


def _intended_json(string: str, kinds: Sequence[str]) -> str:
    """Return the JSON of the value that a string was meant to be; empty if that is unclear."""
    word = string.strip().lower()
    if word in ("none", "null"):
        return "null"
    if "bool" in kinds:
        return next((value for value, words in _BOOLEAN_WORDS.items() if word in words), "")
    try:
        number = float(word)
    except ValueError:
        return ""
    return f"{number:.15g}" if math.isfinite(number) else ""


def declared(node: ast.FunctionDef) -> str:
    """Return a function's name and arguments as its `def` line declares them, for a message."""
    try:
        arguments = ast.unparse(node.args)
    except RecursionError:  # a default may be nested deeper than Python can write it
        arguments = "..."
    return f"def {node.name}({arguments})"
