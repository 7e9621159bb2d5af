"""Lists the kinds of jobs, and finds the kind of a job or pod.

A new kind of training job needs a module in this package and a line in KINDS. Called by the
launcher, the checks, the back ends and `kfp-tfjob import`.
"""

from __future__ import annotations

from .jobset import JOBSET
from .kind import JobKind
from .objects import Object
from .pytorchjob import PYTORCHJOB
from .tfjob import TFJOB

DEFAULT: JobKind = TFJOB
# `auto` takes the first whose controller answers.
AUTOMATIC: tuple[JobKind, ...] = (TFJOB, JOBSET)
KINDS: list[JobKind] = [TFJOB, JOBSET, PYTORCHJOB]


def kind_of(job: Object) -> JobKind:
    """Return the kind of a job; the default for a job of an unknown kind."""
    type_meta = (job.get("apiVersion"), job.get("kind"))
    return next((kind for kind in KINDS if (kind.api_version, kind.name) == type_meta), DEFAULT)


def kind_named(name: str) -> JobKind:
    """Return the kind with this name, in upper or lower case; the default for an unknown name."""
    return next((kind for kind in KINDS if kind.name.lower() == name.lower()), DEFAULT)


def kind_of_pod(pod: Object) -> JobKind:
    """Return the kind of the job that a pod belongs to, from its labels."""
    labels = pod["metadata"].get("labels") or {}
    return next((kind for kind in KINDS if kind.owns(labels)), DEFAULT)
