"""Holds the problems and warnings that a check finds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kfp_tfjob.storage.errors import Problem


@dataclass(frozen=True)
class Findings:
    """The warnings and problems of a run before it starts.

    Attributes:
        problems: What would make the run fail.
        warnings: What may be wrong: a cluster may hide some objects.
        waits: Why pods would wait for nodes: a cluster can scale from zero.
    """

    problems: Sequence[Problem | str] = ()
    warnings: Sequence[str] = ()
    waits: Sequence[str] = ()
