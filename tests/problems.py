"""What a call is refused with."""

from collections.abc import Callable
from typing import Any

import pytest

from kfp_tfjob.common.errors import ConfigurationError, StepError


def problems_of(
    call: Callable[..., object],
    *given: Any,
    kind: type[StepError] = ConfigurationError,
    **more: Any,
) -> list[Any]:
    """Return the problems with which a call is refused by an error of a kind."""
    with pytest.raises(kind) as caught:
        call(*given, **more)
    return list(caught.value.problems)


def problem_of(call: Callable[..., object], *given: Any, **more: Any) -> Any:
    """Return the one problem with which a call is refused; `kind` is as in `problems_of`."""
    (found,) = problems_of(call, *given, **more)
    return found
