"""Collects the parts of a job that a run does not take over, and the parts that it cannot express.

The former become comments in the parameters file; the latter are reasons to reject the job. Filled
by all modules of this package; shown by `kfp-tfjob import`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from kfp_tfjob.common.errors import ConfigurationError, Problem

Path = tuple[str, ...]  # keys of the run parameters, for example ("pod", "chief")


@dataclass(frozen=True)
class Note:
    """A part of the job that is not carried over unchanged.

    Attributes:
        field: The field in the job, for example `Chief.restartPolicy`.
        reason: Why it is not carried over, or what the run does differently.
        instead: The run's replacement, or what a person may do.
        anchor: The parameter above which the comment stands; empty for the top of the file.
    """

    field: str
    reason: str
    instead: str = ""
    anchor: Path = ()


@dataclass
class Report:
    """The notes and problems of one job.

    Attributes:
        job: The job's kind and name, for messages.
        notes: In the order of the job.
        problems: The reasons to reject the job.
    """

    job: str
    notes: list[Note] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    def note(self, name: str, reason: str, instead: str = "", anchor: Path = ()) -> None:
        """Add a note, unless the same note exists; the arguments are a Note's fields."""
        note = Note(name, reason, instead, anchor)
        if note not in self.notes:
            self.notes.append(note)

    def refuse(self, name: str, received: object, expected: str, fix: str) -> None:
        """Add a problem with a field of the job."""
        problem = Problem(
            f"a run cannot do the same as {self.job}", f"{name}: {received}", expected, fix, name
        )
        if problem not in self.problems:
            self.problems.append(problem)

    def raise_if_refused(self) -> None:
        """Raise all problems as one error, if there are any.

        Raises:
            ConfigurationError: The job would train something else as a run.
        """
        ConfigurationError.raise_if(self.problems)

    def merged(self) -> Iterator[Note]:
        """Yield the notes; notes that differ only in their field become one."""
        groups: dict[tuple[str, str, Path], list[str]] = {}
        for note in self.notes:
            groups.setdefault((note.reason, note.instead, note.anchor), []).append(note.field)
        for (reason, instead, anchor), names in groups.items():
            yield Note(", ".join(names), reason, instead, anchor)
