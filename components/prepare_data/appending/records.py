"""Remembers the datasets that can be appended to, and finds them again.

    datasets/appended/<family>/<n>.json    a dataset, and the keys of its groups

A dataset is in two families. One is a digest of label, options and the folder of data_uri, so that
data of other folders does not push it out of sight. The other is the key of its first group: this
finds it after its files were copied elsewhere, or when addresses were added.

A record is created after the manifest, and it is only looked for: a lost one costs time and nothing
else. So nothing that is wrong with records ends a step.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kfp_tfjob.components.prepare_data.appending.groups import family_of
from kfp_tfjob.components.prepare_data.files import Source
from kfp_tfjob.components.prepare_data.listing import folder_of
from kfp_tfjob.options.data import DataOptions
from kfp_tfjob.storage.errors import ObjectExistsError, StepError
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.store import Store
from kfp_tfjob.storage.words import counted

_MOST_LOOKED = 10  # records of a family
_MOST_CREATED = 20  # tries to be the next record
_DATASET = re.compile(r"[0-9a-f]{32}")

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Record:
    """A dataset that was finished.

    Attributes:
        dataset: Its name.
        groups: The keys of its groups.
    """

    dataset: str
    groups: frozenset[str]


class Records:
    """The records of datasets that may have groups of a source.

    Args:
        store: The store.
        layout: Of output_uri.
        source: The source.
        options: The typed `data_options`.
        label: The label column.
    """

    def __init__(
        self, store: Store, layout: Layout, source: Source, options: DataOptions, label: str
    ) -> None:
        self._store, self._layout = store, layout
        self._folder = folder_of(source.uri, source.files)
        self._family = family_of(options, label, self._folder)

    def newest(self, first: str) -> list[Record]:
        """Return the newest records, each dataset once.

        Args:
            first: The key of the first group of the source.
        """
        found: dict[str, Record] = {}
        try:
            for family in (self._family, first):
                for record in self._of(family):
                    found.setdefault(record.dataset, record)
        except StepError as error:
            log.warning("earlier datasets to append to cannot be looked for: %s", error)
        return list(found.values())

    def why_none(self, looked: int) -> str:
        """Return why none of so many records has a group of the source."""
        folder = self._folder or "these addresses"
        if not looked:
            return (
                f"this version has prepared none of {folder} with the same label and data_options"
            )
        return (
            f"{counted(looked, 'dataset')} of {folder} with the same label and data_options"
            f" {'has' if looked == 1 else 'have'} files of other names, contents or columns, or"
            " another version of this project or of data_options.reader read them"
        )

    def add(self, dataset: str, groups: Sequence[str]) -> None:
        """Leave a record of a dataset in its families, unless one is among the newest.

        Args:
            dataset: Its name.
            groups: The keys of its groups.

        Raises:
            StepError: The store refuses a record.
        """
        body = json.dumps({"dataset": dataset, "groups": list(groups)}).encode()
        for family in (self._family, groups[0]):
            if all(record.dataset != dataset for record in self._of(family)):
                self._create(family, body)

    def _create(self, family: str, body: bytes) -> None:
        numbers = self._store.numbers(self._layout.appended(family))
        following = (numbers[-1] if numbers else 0) + 1
        for number in range(following, following + _MOST_CREATED):
            address = self._layout.appended_record(family, number)
            try:
                self._store.create(address, body, "application/json")
                return
            except ObjectExistsError:
                if number + 1 == following + _MOST_CREATED:
                    raise
                # Another run has finished a dataset at the same time.

    def _of(self, family: str) -> Iterator[Record]:
        """Yield the newest records of a family, the newest first."""
        numbers = self._store.numbers(self._layout.appended(family))
        for number in numbers[::-1][:_MOST_LOOKED]:
            address = self._layout.appended_record(family, number)
            try:
                body = json.loads(self._store.read(address))
                name, groups = body["dataset"], frozenset(body["groups"])
                if not _DATASET.fullmatch(name):
                    raise ValueError(f"the dataset {name!r:.100}")
            except (StepError, KeyError, TypeError, ValueError) as error:
                log.warning("the record %s is not used: %s", address, error)
            else:
                yield Record(name, groups)
