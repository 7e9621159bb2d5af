"""The run and attempt that a job belongs to; they give the job's name, labels and folder in S3.

Called by the launcher, and by the commands and checks that show or try a job before it exists.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .kind import JobKind
from .labels import dns_label
from .objects import Object


@dataclass(frozen=True)
class Identity:
    """The run and attempt that a job belongs to.

    Attributes:
        run_id: The run's id, as KFP gives it.
        attempt: The number of the attempt, from 1.
        task: The step that launched it.
        task_key: Distinguishes the tasks of that step in a run; usually empty.
        namespace: The namespace; empty for the caller's own.
        owner: The ownerReference that deletes the job with its Workflow, or None.
        run_uri: The run's folder in S3; empty for the one that output_uri and run_id give.
        tracking: The MLflow run that the chief continues, as variables.
    """

    run_id: str
    attempt: int
    task: str = "launch-tfjob"
    task_key: str = ""
    namespace: str = ""
    owner: Object | None = None
    run_uri: str = ""
    tracking: Mapping[str, str] = field(default_factory=dict)

    def job_name(self, kind: JobKind) -> str:
        """Return the job's name: a DNS-1035 label, unique for each task and attempt."""
        suffix = f"-{self.task_key}-{self.attempt}" if self.task_key else f"-{self.attempt}"
        return dns_label(f"{kind.prefix}-{self.run_id}", kind.longest_name - len(suffix)) + suffix
