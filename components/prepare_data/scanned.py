"""What the tasks that read a source have left, merged in the order of its parts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kfp_tfjob.components.prepare_data import kinds as columns_kinds
from kfp_tfjob.components.prepare_data import split_rules
from kfp_tfjob.components.prepare_data.dictionary import (
    Dictionary,
    TooManyTextsError,
    too_large,
)
from kfp_tfjob.components.prepare_data.executors.exchange import Exchange
from kfp_tfjob.components.prepare_data.executors.executor import Executor
from kfp_tfjob.components.prepare_data.faults import Faults
from kfp_tfjob.components.prepare_data.fit_encoding import Counted, counted_for
from kfp_tfjob.components.prepare_data.job import Job
from kfp_tfjob.components.prepare_data.kinds import Kinds, LeftOut
from kfp_tfjob.components.prepare_data.sorted_rows import GROUPS, Run
from kfp_tfjob.components.prepare_data.source.header import Columns
from kfp_tfjob.components.prepare_data.split_rules import GROUP_REVISION
from kfp_tfjob.components.prepare_data.statistics import SPLITS
from kfp_tfjob.components.prepare_data.tasks import PartDone
from kfp_tfjob.components.prepare_data.vocabulary import Label, Vocabulary
from kfp_tfjob.features.types.base import CODES
from kfp_tfjob.storage.errors import DataError


class OtherKindsError(Exception):
    """The rows show that the kinds are others.

    Args:
        kinds: The kinds.
        assumed: Whether they are only assumed, as the kinds before.
    """

    def __init__(self, kinds: Kinds, assumed: bool = False) -> None:
        super().__init__(kinds)
        self.kinds, self.assumed = kinds, assumed


@dataclass
class Scan:
    """The result of reading the source.

    Attributes:
        job: What was read, and how.
        executor: Has read the source.
        kinds: The kinds of the features, and the columns that were left out.
        vocabulary: The labels of the good rows.
        counted: What rows of train say, for rows with a number as label and for others.
        dictionaries: The texts of each category, by name.
        faults: The bad rows.
        runs: The good rows.
        label_codes: For each part, the code in `vocabulary` of each of its labels.
        text_codes: For each part and column of texts, the code of each of its texts; None if
            codes mean the same everywhere.
        shared: The names of what `split_overlap` counts.
    """

    job: Job
    executor: Executor
    kinds: Kinds
    vocabulary: Vocabulary
    counted: list[Counted]
    dictionaries: dict[str, Dictionary]
    faults: Faults = field(default_factory=Faults)
    runs: list[Run] = field(default_factory=list)
    label_codes: list[np.ndarray] = field(default_factory=list)
    text_codes: list[list[np.ndarray | None]] = field(default_factory=list)
    shared: list[str] = field(default_factory=list)

    @classmethod
    def empty(cls, job: Job, executor: Executor) -> Scan:
        """Return the result of reading nothing."""
        kinds = job.kinds
        return cls(
            job,
            executor,
            kinds,
            Vocabulary(job.label),
            [counted_for(kinds) for _ in range(GROUPS)],
            {name: Dictionary() for name in kinds.with_dictionaries},
        )

    @property
    def exchange(self) -> Exchange:
        """Where the runs are."""
        return self.executor.context.exchange

    @property
    def columns(self) -> Columns:
        """The features and the label."""
        return Columns(self.job.features, self.job.label, extra=self.job.columns.extra)

    @property
    def split_rule(self) -> dict[str, Any]:
        """What decides about the split besides salt and fractions.

        Without the revision, a champion of an earlier version would be evaluated on rows that it
        was trained on.
        """
        revision = {"group_revision": GROUP_REVISION} if self.job.options.split.group else {}
        return self.job.split_rules.rule | revision

    @property
    def identifiers(self) -> list[LeftOut]:
        """The categories in which every text is different, unless the options name them."""
        return [
            LeftOut(name, columns_kinds.ALL_DIFFERENT)
            for name, dictionary in self.dictionaries.items()
            if dictionary.rows >= columns_kinds.FEWEST_IDS
            and dictionary.all_different
            and not columns_kinds.is_wanted(name, self.job.options)
        ]

    def also_in_train(self) -> dict[str, int] | None:
        """Return the rows of validation and test whose features are in train.

        None if there are none, because equal rows stay together.
        """
        return (
            split_rules.count_overlap(self.exchange, self.shared)
            if self.job.split_rules.is_needed
            else None
        )

    def rows(self, label: Label) -> dict[str, int]:
        """Return the number of good rows in each split, given the label."""
        counts = self.vocabulary.number_rows.copy()
        if label.classes is not None:
            counts += self.vocabulary.text_rows
        return dict(zip(SPLITS, counts.tolist(), strict=True))

    def merge(self, found: PartDone, lines: int) -> None:
        """Add what the next part has.

        Args:
            found: What the task `rows` has left.
            lines: The lines of its file before the part.

        Raises:
            OtherKindsError: Texts of a category are too many, so the kinds are others.
            DataError: They are too many in a category that the options ask for, or in all together.
        """
        if found.lost is not None:
            raise self._lost(found.lost)
        found.faults.shift(lines)
        found.vocabulary.shift(lines)
        self.faults.merge(found.faults)
        part = len(self.label_codes)
        self.label_codes.append(self.vocabulary.merge(found.vocabulary))
        dictionaries = iter(found.dictionaries)
        codes: list[np.ndarray | None] = []
        for name in (item.name for item in self.kinds.in_field(CODES)):
            if name not in self.dictionaries:
                codes.append(None)
                continue
            try:
                codes.append(self.dictionaries[name].merge(next(dictionaries)))
            except TooManyTextsError:
                raise self._lost(name) from None
        if problem := too_large(self.dictionaries):
            raise self._assumed(self.dictionaries) if self.job.assumed else DataError(problem)
        self.text_codes.append(codes)
        for counted, plain in zip(self.counted, found.counted, strict=True):
            counted.merge(Counted.from_plain(plain), codes)
        self.runs += [Run.read(self.exchange, name, part) for name in found.runs]
        if found.overlap:
            self.shared.append(found.overlap)

    def _lost(self, name: str) -> Exception:
        """Return the error for a category with too many texts."""
        reason = columns_kinds.TOO_MANY_TEXTS
        if self.job.assumed:
            return self._assumed([name])
        if columns_kinds.is_wanted(name, self.job.options):
            return DataError(columns_kinds.too_many(name, reason))
        return OtherKindsError(self.kinds.without([LeftOut(name, reason)]))

    def _assumed(self, names: Iterable[str]) -> OtherKindsError:
        """Return the error for assumed categories that have too many texts."""
        return OtherKindsError(self.kinds.as_hashed(names), assumed=True)
