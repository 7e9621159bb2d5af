"""Describes the inputs of a step for Kubeflow Pipelines.

A run parameter means the same in every step, so `kfp_tfjob.options` declares its sentence once.
The docstring of a `component.py` describes only the other inputs, and what is special about a run
parameter in that step.
"""

import inspect
import re
from collections.abc import Callable
from typing import Any, TypeVar

from kfp_tfjob.options.pipeline import PARAMETERS

_Step = TypeVar("_Step", bound=Callable[..., Any])
_SECTION = re.compile(r"^(Args|Returns):\n((?:    .*(?:\n|$))+)", re.MULTILINE)
_NEXT_ENTRY = re.compile(r"\n {4}(?=\S)")


def with_parameter_docs(step: _Step) -> _Step:
    """Complete the docstring of a step with the sentences of its run parameters.

    What the docstring says about a run parameter follows that parameter's sentence. Every
    description becomes one line, because Kubeflow Pipelines shows no more than the first.

    Args:
        step: The function below `@dsl.component`, with a Google style docstring that has the
            section `Args:`.

    Returns:
        The same function.
    """
    names = list(inspect.signature(step).parameters)

    def complete(section: re.Match[str]) -> str:
        title, body = section.groups()
        entries = _NEXT_ENTRY.split(body.strip("\n").removeprefix("    "))
        texts = dict(" ".join(entry.split()).split(": ", 1) for entry in entries)
        if title == "Args":
            texts = {name: _description(name, texts.get(name, "")) for name in names}
        return "\n".join([f"{title}:", *(f"    {name}: {texts[name]}" for name in texts), ""])

    step.__doc__ = _SECTION.sub(complete, inspect.getdoc(step) or "")
    return step


def _description(name: str, special: str) -> str:
    """Return the description of an input; `special` is what the step's docstring says about it."""
    sentence = PARAMETERS[name].plain_sentence if name in PARAMETERS else ""
    return f"{sentence} {special}".strip()
