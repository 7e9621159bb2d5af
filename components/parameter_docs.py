"""Describes a step's inputs for Kubeflow Pipelines.

A run parameter means the same in every step, so `kfp_tfjob.options` declares its sentence once.
The docstring of a `component.py` describes only the other inputs, and how that step uses a run
parameter differently. Every component.py decorates its function with `with_parameter_docs`.
"""

import inspect
import re
from collections.abc import Callable
from typing import Any, TypeVar

from kfp_tfjob.options.parameters import PARAMETERS

_Step = TypeVar("_Step", bound=Callable[..., Any])
_SECTION = re.compile(r"^(Args|Returns):\n((?:    .*(?:\n|$))+)", re.MULTILINE)
_NEXT_ENTRY = re.compile(r"\n {4}(?=\S)")


def with_parameter_docs(step: _Step) -> _Step:
    """Complete the docstring of a step with the sentences of its run parameters.

    The docstring's own description of a run parameter follows that parameter's sentence. Every
    description becomes one line, because Kubeflow Pipelines shows only the first line.

    Args:
        step: The function below `@dsl.component`, with a Google style docstring that contains the
            section `Args:`.

    Returns:
        The same function.
    """
    names = list(inspect.signature(step).parameters)

    def complete(section: re.Match[str]) -> str:
        title, body = section.groups()
        entries = _NEXT_ENTRY.split(body.strip("\n").removeprefix("    "))
        descriptions = dict(" ".join(entry.split()).split(": ", 1) for entry in entries)
        if title == "Args":
            descriptions = {name: _description(name, descriptions.get(name, "")) for name in names}
        described = (f"    {name}: {sentence}" for name, sentence in descriptions.items())
        return "\n".join([f"{title}:", *described, ""])

    step.__doc__ = _SECTION.sub(complete, inspect.getdoc(step) or "")
    return step


def _description(name: str, own_sentence: str) -> str:
    """Return an input's description: the run parameter's sentence, then the step's own."""
    sentence = PARAMETERS[name].plain_sentence if name in PARAMETERS else ""
    return f"{sentence} {own_sentence}".strip()
