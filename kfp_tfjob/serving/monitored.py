"""What a comparison of requests with the training data says."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ColumnDrift:
    """A column in the requests and in train.

    Attributes:
        name: The column.
        kind: number, boolean, date, category or text.
        rows: The sampled rows that have the column, gaps too.
        psi: The population stability index.
        chance: Whether so few rows may differ so much by chance.
        gaps_before: The share of gaps in train.
        gaps_now: The share of gaps in the requests.
        unseen: The share of the requests with a category that train does not have.
        examples: Such categories, the most frequent first.
        beyond: The limits that the column is beyond: `psi`, `gaps`, `unseen`.
    """

    name: str
    kind: str
    rows: int
    psi: float
    chance: bool
    gaps_before: float
    gaps_now: float
    unseen: float = 0.0
    examples: tuple[str, ...] = ()
    beyond: tuple[str, ...] = ()


@dataclass(frozen=True)
class Monitored:
    """What the requests say.

    Attributes:
        model_name: The model.
        version: The version that answered the requests.
        run_id: The run that trained it.
        since: The beginning of the time that was looked at, ISO 8601, UTC.
        until: Its end.
        files: The samples that were read.
        rows: Their rows in that time.
        requested: The rows of all requests that they stand for.
        columns: The columns, those that have moved most first.
        left_out: Features that no sample has.
        bad_rows: Rows with values that are not of the kind of their columns.
        unreadable: Samples that could not be read, and why.
        judged: Whether there were rows enough.
    """

    model_name: str
    version: int
    run_id: str
    since: str
    until: str
    files: int
    rows: int
    requested: int
    columns: tuple[ColumnDrift, ...]
    left_out: tuple[str, ...] = ()
    bad_rows: int = 0
    unreadable: tuple[str, ...] = ()
    judged: bool = True

    @property
    def moved(self) -> tuple[ColumnDrift, ...]:
        """The columns that are beyond a limit."""
        return tuple(column for column in self.columns if column.beyond)
