"""Draws the live line of a command that deletes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from kfp_tfjob.common.formatting import counted
from kfp_tfjob.common.progress import ProgressReport

from .terminal import is_live

if TYPE_CHECKING:
    from ..live_lines import LiveLines


class HasFiles(Protocol):
    """An item that a prune can delete."""

    @property
    def files(self) -> int:
        """The number of its objects."""
        ...


Candidate = TypeVar("Candidate", bound=HasFiles)


class DeletionProgress:
    """A live line of a command that deletes candidates; draws nothing without a terminal.

    It vanishes at the end, because the command then prints what it has deleted.

    Args:
        command: The name on the line.
    """

    def __init__(self, command: str) -> None:
        self._command = command
        self._live: LiveLines | None = None
        if is_live():
            from ..live_lines import LiveLines  # only a terminal needs it

            self._live = LiveLines(transient=True)
            self._live.begin(command)

    def note(self, text: str) -> None:
        """Show what the command is doing."""
        if self._live:
            self._live.note(self._command, text)

    def counted(
        self, deletions: Iterable[tuple[Candidate, str]], planned: Sequence[Candidate]
    ) -> Iterator[tuple[Candidate, str]]:
        """Yield the deletions, and show how many of the planned objects are deleted.

        Args:
            deletions: Each candidate with the reason why it stays.
            planned: All candidates.
        """
        done, files = 0, sum(candidate.files for candidate in planned)
        self._report(done, files)
        for candidate, obstacle in deletions:
            done += candidate.files
            self._report(done, files)
            yield candidate, obstacle

    def _report(self, done: int, files: int) -> None:
        if self._live:
            detail = f"{done:,} of {counted(files, 'object')}"
            share = done / files if files else 1.0
            self._live.report(self._command, ProgressReport("deleting", share, detail))
            self._live.note(self._command, f"deleted {detail}")

    def __enter__(self) -> DeletionProgress:
        """Draw the line."""
        if self._live:
            self._live.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        """Remove the line."""
        if self._live:
            self._live.__exit__(*error)
