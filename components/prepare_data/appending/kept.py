"""What a dataset keeps for later runs that append to it.

    groups/index.json              the kinds; of each group its key, rows, and keys of objects
    groups/NNNNN.json              what was read from the group, and what its rows say
    groups/SPLIT-NNNNN.rows        the hashes of the rows of a shard
    groups/NNNNN-PPPPP.splits      those of a part, where not they decide about the split

All of these are objects of the manifest. `records.py` finds the dataset again.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from typing import Any

from kfp_tfjob.components.prepare_data.appending.groups import Group
from kfp_tfjob.components.prepare_data.appending.records import Records
from kfp_tfjob.components.prepare_data.job import kinds_of, plain_of
from kfp_tfjob.components.prepare_data.kinds import Kinds
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.checksum import crc64nvme
from kfp_tfjob.storage.errors import DataError, ObjectNotFoundError, Problem, StepError
from kfp_tfjob.storage.layout import GROUP_INDEX, MANIFEST, Layout
from kfp_tfjob.storage.manifest import Manifest, ManifestObject
from kfp_tfjob.storage.store import Store

FORMAT = "kfp-tfjob/groups/1"
_LONGEST_INDEX = 256 << 20  # bytes

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Entry:
    """A group in the index of a dataset.

    Attributes:
        key: The digest of what is read.
        meaning: The digest of what its values mean in the dataset.
        rows: Of each split.
        size: Bytes of its files.
        shards: For each shard its split, its rows and the keys of its objects.
        document: The key of what was read.
        hashes: The keys of the hashes of its rows, one for each shard.
        crossing: The keys of the hashes by which rows are compared across splits.
    """

    key: str
    meaning: str
    rows: Mapping[str, int]
    size: int
    shards: list[list[Any]]
    document: str
    hashes: list[str]
    crossing: list[str]

    @property
    def objects(self) -> list[str]:
        """The keys of its objects: of the shards, of the document and of the hashes."""
        shards = [key for _, _, keys in self.shards for key in keys]
        return [*shards, self.document, *self.hashes, *self.crossing]


@dataclass
class Earlier:
    """A dataset that has groups of the source already.

    Attributes:
        store: Its store.
        base: Its folder.
        manifest: Its manifest.
        kinds: The kinds of the features; None for a table of numbers without a gap.
        entries: Its groups.
    """

    store: Store
    base: S3Address
    manifest: Manifest
    kinds: Kinds | None
    entries: list[Entry]
    read: int = field(default=0)

    @cached_property
    def objects(self) -> dict[str, ManifestObject]:
        """The objects of the manifest by key."""
        return {item.key: item for item in self.manifest.objects}

    def document(self, entry: Entry) -> dict[str, Any]:
        """Return what was read from a group.

        Raises:
            DataError, ObjectNotFoundError: It is damaged or lost.
        """
        return json.loads(self._read(entry.document))

    def _read(self, key: str) -> bytes:
        item = self.objects[key]
        self.read += item.size
        return _verified(self.store, self.base, item)


def _verified(store: Store, base: S3Address, item: ManifestObject) -> bytes:
    data = store.read(base / item.key, max(item.size, 1))
    if crc64nvme(data) != item.crc64nvme:
        raise DataError(Problem(f"{base / item.key} differs from its manifest"))
    return data


def index_of(kinds: Kinds | None, entries: Iterable[Entry]) -> bytes:
    """Return the index of a dataset."""
    body = {
        "format": FORMAT,
        "kinds": None if kinds is None else plain_of(kinds),
        "groups": [vars(entry) for entry in entries],
    }
    return (json.dumps(body, indent=1, ensure_ascii=False) + "\n").encode()


def digest_of(body: object) -> str:
    """Return a digest of plain values."""
    return sha256(json.dumps(body, ensure_ascii=False).encode()).hexdigest()[:32]


def find(
    store: Store, layout: Layout, records: Records, groups: Sequence[Group], but: str
) -> Earlier | None:
    """Return the dataset that has most of the groups; None if none has any, which is logged.

    Args:
        store: The store.
        layout: Of output_uri.
        records: Of earlier datasets.
        groups: Those of the source.
        but: The name of the dataset to be written.
    """
    wanted = {group.key: group.size for group in groups}
    looked = [record for record in records.newest(groups[0].key) if record.dataset != but]
    common = {
        record.dataset: sum(max(wanted[key], 1) for key in record.groups & wanted.keys())
        for record in looked
    }
    found = sorted(filter(common.get, common), key=common.get, reverse=True)
    if not found:
        why = records.why_none(len(looked))
        log.info("no earlier dataset has these files, so all of them are read: %s", why)
    for name in found:
        try:
            return _opened(store, layout.dataset(name))
        except (StepError, AttributeError, KeyError, TypeError, ValueError) as error:
            log.warning("dataset %s is not appended to: %s", name, error)
    return None


def _opened(store: Store, base: S3Address) -> Earlier:
    manifest = store.read_manifest(base / MANIFEST)
    (item,) = (item for item in manifest.objects if item.key == GROUP_INDEX)
    body = json.loads(_verified(store, base, item))
    if body["format"] != FORMAT:
        raise ValueError(f"groups of the format {body['format']!r:.100}")
    kinds = body["kinds"] and kinds_of(body["kinds"])
    entries = [Entry(**entry) for entry in body["groups"]]
    found = Earlier(store, base, manifest, kinds, entries, read=item.size)
    for entry in entries:
        for key in entry.objects:
            found.objects[key]  # a KeyError now, and not in the middle
    return found


def remember(store: Store, records: Records, base: S3Address) -> None:
    """Leave a record of a finished dataset; if that fails, it is logged."""
    try:
        index = json.loads(store.read(base / GROUP_INDEX, _LONGEST_INDEX))
        records.add(base.name, [entry["key"] for entry in index["groups"]])
    except ObjectNotFoundError:
        log.warning("no later run can append to the dataset %s: it has no groups", base)
    except (StepError, IndexError, KeyError, TypeError, ValueError) as error:
        log.warning("no later run can append to the dataset %s: %s", base, error)
