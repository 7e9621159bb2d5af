"""Gives a pipeline its inputs as the signature and the docstring that KFP reads.

The run parameters are declared in `options`; a pipeline function with its own signature would
repeat them. Called by `tfjob_training.py` and `one_step.py`.
"""

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

REQUIRED = inspect.Parameter.empty


@dataclass(frozen=True)
class Field:
    """One input of a pipeline.

    Attributes:
        name: Its name.
        type: Its Python type.
        default: Its default; REQUIRED if there is none.
        words: Its meaning, as the form shows it.
    """

    name: str
    type: type
    default: Any
    words: str


def with_signature(
    pipeline: Callable[..., Any], fields: Iterable[Field], outputs: Any = REQUIRED
) -> Callable[..., Any]:
    """Set a pipeline function's signature and its docstring's `Args`, and return the function.

    Args:
        pipeline: The function, which is changed.
        fields: Its inputs; required ones come first.
        outputs: The return annotation; without it, the pipeline has none.
    """
    fields = list(fields)
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    pipeline.__signature__ = inspect.Signature(
        [
            inspect.Parameter(field.name, kind, default=field.default, annotation=field.type)
            for field in fields
        ],
        return_annotation=outputs,
    )
    # KFP does not read the arguments after a description of several lines.
    arguments = [f"    {field.name}: {' '.join(field.words.split())}" for field in fields]
    pipeline.__doc__ = "\n".join([pipeline.__doc__ or "", "", "Args:", *arguments])
    return pipeline
