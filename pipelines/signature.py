"""Gives a pipeline its inputs as the signature and the docstring that KFP reads."""

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

REQUIRED = inspect.Parameter.empty


@dataclass(frozen=True)
class Field:
    """One input of a pipeline; the default of one that must be given is REQUIRED."""

    name: str
    type: type
    default: Any
    words: str


def with_form(
    pipeline: Callable[..., Any], fields: Iterable[Field], outputs: Any = REQUIRED
) -> Callable[..., Any]:
    """Give a pipeline its inputs.

    Returns:
        The same function.
    """
    fields = list(fields)
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    pipeline.__signature__ = inspect.Signature(
        [inspect.Parameter(it.name, kind, default=it.default, annotation=it.type) for it in fields],
        return_annotation=outputs,
    )
    # KFP does not read what follows a text of several lines.
    arguments = [f"    {it.name}: {' '.join(it.words.split())}" for it in fields]
    pipeline.__doc__ = "\n".join([pipeline.__doc__ or "", "", "Args:", *arguments])
    return pipeline
