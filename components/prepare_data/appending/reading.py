"""Reads the groups of a source that no earlier dataset has, and merges what all groups have.

Each group is merged from its parts, and the source from its groups. So the result is the same
whether a group was read now or by an earlier run.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from kfp_tfjob.components.prepare_data import part_documents
from kfp_tfjob.components.prepare_data.appending.groups import Group
from kfp_tfjob.components.prepare_data.executors.executor import Executor
from kfp_tfjob.components.prepare_data.files import Source
from kfp_tfjob.components.prepare_data.job import Job
from kfp_tfjob.components.prepare_data.kinds import Kinds, LeftOut
from kfp_tfjob.components.prepare_data.parts import parts_of
from kfp_tfjob.components.prepare_data.rows import Columns
from kfp_tfjob.components.prepare_data.scan import Reading, may_be_plain, no_feature
from kfp_tfjob.components.prepare_data.scanned import NotPlainError, OtherKindsError, Scan
from kfp_tfjob.components.prepare_data.sorted_rows import Meaning
from kfp_tfjob.components.prepare_data.tasks import LOOK, ROWS
from kfp_tfjob.components.prepare_data.vocabulary import Label
from kfp_tfjob.options.data import DataOptions
from kfp_tfjob.storage.errors import DataError

log = logging.getLogger(__name__)


@dataclass
class Groups:
    """The result of reading a source by its groups.

    Attributes:
        whole: What all groups have, merged; its codes are those of groups, not of parts.
        documents: What each group has, by its number.
        scans: The groups that were read now, by number; their runs are in the exchange.
        kinds: The kinds with which they were read; None for a table of numbers without a gap.
    """

    whole: Scan
    documents: dict[int, dict[str, Any]]
    scans: dict[int, Scan]
    kinds: Kinds | None

    def codes(self, group: int, label: Label) -> Meaning:
        """Return what the codes of a group mean in the dataset."""
        labels = self.whole.label_codes[group]
        classes = None if label.classes is None else label.class_of[labels]
        return Meaning(classes, tuple(self.whole.text_codes[group]))

    def meanings(self, group: int, label: Label) -> list[Meaning]:
        """Return what the codes of each part of a group mean in the dataset."""
        scan, of_group = self.scans[group], self.codes(group, label)
        return [
            Meaning(
                None if of_group.classes is None else of_group.classes[labels],
                tuple(
                    None if part is None or whole is None else whole[part]
                    for part, whole in zip(codes, of_group.codes, strict=True)
                ),
            )
            for labels, codes in zip(scan.label_codes, scan.text_codes, strict=True)
        ]


class GroupReading:
    """Reads a source by its groups.

    Args:
        source: All files.
        groups: Their groups.
        label: The label column.
        options: The typed `data_options`.
        columns: Those of the first file.
        block: Bytes of text to parse at a time.
        part: About the bytes of a part.
        executor: Runs the tasks.
    """

    def __init__(
        self,
        source: Source,
        groups: list[Group],
        label: str,
        options: DataOptions,
        columns: Columns,
        block: int,
        part: int,
        executor: Executor,
    ) -> None:
        self._reading = Reading(source, label, options, executor)
        self._executor, self._groups, self._options = executor, groups, options
        self._job = Job(source, label, options, columns, None, (), block)
        self._seen: dict[int, list[Any]] = {}  # the counts of the values of each column, by group
        self._lost: dict[str, LeftOut] = {}  # categories that only the good rows show to be none
        self._certain = False  # whether the kinds are by all values
        self._parts = cache(lambda number: parts_of(groups[number].source, options, part))

    def read(self, kinds: Kinds | None, known: Mapping[int, dict[str, Any]]) -> Groups:
        """Read the groups.

        Args:
            kinds: Those of an earlier dataset; None for a table of numbers without a gap.
            known: What that dataset has of groups.

        Raises:
            DataError: A file cannot be read, or has other columns, or the kind of a column is
                unclear.
        """
        known = dict(known)
        first = self._reading.first_kinds(self._job)
        if first is None and may_be_plain(self._options):
            try:
                return self._rows(None, {} if kinds else known)
            except NotPlainError:
                if known and not kinds:
                    log.info("not all columns are numbers without a gap, as they were before")
        if not kinds:
            kinds, known = first, {}
        self._seen.update(
            {number: found["seen"] for number, found in known.items() if found["seen"]}
        )
        while True:
            if kinds is None:
                kinds, self._certain = self._looked(), True
            if not kinds.features:
                raise DataError(no_feature(self._job.source.first, kinds))
            try:
                return self._rows(kinds, known)
            except OtherKindsError as error:
                kinds, self._certain = error.kinds, error.kinds is not None
                log.info("the kinds of columns are others than expected, so all files are read")
                known = {}

    def again(self, found: Groups, numbers: Collection[int]) -> None:
        """Read groups whose rows are needed, although an earlier dataset has read them."""
        groups = [group for group in self._groups if group.number in numbers]
        found.scans |= self._read(groups, found.kinds)

    def _rows(self, kinds: Kinds | None, known: Mapping[int, dict[str, Any]]) -> Groups:
        missing = [group for group in self._groups if group.number not in known]
        if kinds is not None and kinds.plain:
            self._look(missing)
        scans = self._read(missing, kinds)
        read = {number: self._document(number, scan) for number, scan in scans.items()}
        documents = {**known, **read}
        job = replace(self._job, kinds=kinds, assumed=kinds is not None and not self._certain)
        whole = Scan.empty(job, self._executor)
        for group in self._groups:
            whole.merge(documents[group.number], 0)
        if kinds is not None:
            decided = self._decided()
            if not decided.is_like(kinds):
                raise OtherKindsError(decided)
            job = replace(job, kinds=decided, assumed=False)
            whole = replace(whole, kinds=decided, job=job)
        if lost := whole.identifiers:
            self._lost |= {item.name: item for item in lost}
            raise OtherKindsError(whole.kinds.without(lost))
        return Groups(whole, documents, scans, kinds)

    def _read(self, groups: list[Group], kinds: Kinds | None) -> dict[int, Scan]:
        """Sort the rows of groups."""
        counted = kinds is not None and not kinds.plain
        work = [(self.job_of(group.number, kinds), self._parts(group.number)) for group in groups]
        scans = {
            group.number: Scan.empty(replace(job, assumed=not self._certain), self._executor)
            for group, (job, _) in zip(groups, work, strict=True)
        }
        seen = {group.number: self._reading.nothing(self._job) for group in groups}
        for place, found, lines in part_documents.read(self._executor, ROWS, work):
            number = groups[place].number
            scans[number].merge(found, lines)
            if counted:
                self._reading.look(seen[number], found, lines)
        if counted:
            self._keep(seen)
        return scans

    def _looked(self) -> Kinds:
        """Return the kinds by all values."""
        self._look(self._groups)
        return self._decided()

    def _look(self, groups: list[Group]) -> None:
        """Count the values of groups, unless that is done."""
        groups = [group for group in groups if group.number not in self._seen]
        work = [(self._of(group, None, False), self._parts(group.number)) for group in groups]
        seen = {group.number: self._reading.nothing(self._job) for group in groups}
        for place, found, lines in part_documents.read(self._executor, LOOK, work):
            self._reading.look(seen[groups[place].number], found, lines)
        self._keep(seen)

    def _keep(self, seen: Mapping[int, Mapping[str, Any]]) -> None:
        for number, columns in seen.items():
            self._seen[number] = [column.to_plain() for column in columns.values()]

    def _decided(self) -> Kinds:
        """Return the kinds by what was counted.

        Raises:
            DataError: The kind of a column is unclear.
        """
        seen = self._reading.nothing(self._job)
        for group in self._groups:
            self._reading.look(seen, {"seen": self._seen[group.number]}, 0)
        kinds = self._reading.decide(seen)
        names = {item.name for item in kinds.features}
        return kinds.without(item for item in self._lost.values() if item.name in names)

    def job_of(self, number: int, kinds: Kinds | None) -> Job:
        """Return the job with which the rows of a group are read."""
        return self._of(self._groups[number], kinds, kinds is not None and not kinds.plain)

    def _of(self, group: Group, kinds: Kinds | None, assumed: bool) -> Job:
        return replace(self._job, source=group.source, kinds=kinds, assumed=assumed)

    def _document(self, number: int, scan: Scan) -> dict[str, Any]:
        """Return what a group has, as the task of a part does, but without runs."""
        found = {
            "plain": True,
            "runs": [],
            "faults": scan.faults.to_plain(),
            "vocabulary": scan.vocabulary.to_plain(),
            "dictionaries": [texts.to_plain() for texts in scan.dictionaries.values()],
            "counted": [counted.to_plain() for counted in scan.counted],
            "crossing": None,
            "regrouped": scan.regrouped,
            "seen": self._seen.get(number) if scan.job.kinds else None,
        }
        return json.loads(json.dumps(found, default=_whole))


def _whole(value: Any) -> Any:
    if isinstance(value, np.integer):
        return int(value)
    raise TypeError(f"{type(value).__name__} is no value of JSON")
