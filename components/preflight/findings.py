"""What a check has found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kfp_tfjob.storage.errors import Problem


@dataclass(frozen=True)
class Findings:
    """The warnings and problems of a run before it starts.

    Attributes:
        problems: What would make it fail.
        warnings: What a person should know: clusters scale from zero, and much may be hidden.
    """

    problems: Sequence[Problem | str] = ()
    warnings: Sequence[str] = ()
