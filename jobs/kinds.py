"""The kinds of jobs there are, and which one a job or pod is of.

A new kind is a module of this room and its line in KINDS.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kfp_tfjob.jobs.kind import JobKind
from kfp_tfjob.jobs.tfjob import TFJOB

DEFAULT: JobKind = TFJOB
KINDS: list[JobKind] = [TFJOB]


def kind_of(job: Mapping[str, Any]) -> JobKind:
    """Return the kind of a job; one that does not name its kind is of the default."""
    named = (job.get("apiVersion"), job.get("kind"))
    return next((kind for kind in KINDS if (kind.api_version, kind.name) == named), DEFAULT)


def kind_named(name: str) -> JobKind:
    """Return the kind of this name; the default for a name that is not known any more."""
    return next((kind for kind in KINDS if kind.name == name), DEFAULT)


def kind_of_pod(pod: Mapping[str, Any]) -> JobKind:
    """Return the kind of the job that a pod belongs to, by the mark of its operator."""
    labels = pod["metadata"].get("labels") or {}
    found = (kind for kind in KINDS if labels.get(kind.operator_label) == kind.operator)
    return next(found, DEFAULT)
