"""Prepares a dataset so that later runs can append to it, and appends to an earlier one.

1. The files are cut into groups. The groups that an earlier dataset with the same options has are
   not read, if the kinds of the columns are still the same.
2. What all groups have is merged: labels, texts of categories, counts. A new class, or a new text
   in front of others, changes the codes of rows; then their groups are read after all.
3. The shards of the groups that were read are written, and those of the others are copied within
   the store. Each group keeps a summary of its rows, and the summaries give what is learned from
   train, and the statistics.

So the dataset is the one that this would prepare from all files without an earlier one, byte by
byte. Without data_options.append, the same files give other shards, because the rows of all files
are sorted together then.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from kfp_tfjob.components.prepare_data import crossing, dataset, enough, learned
from kfp_tfjob.components.prepare_data.appending import hash_lists, kept
from kfp_tfjob.components.prepare_data.appending.copier import Copier, UnusableError, usable
from kfp_tfjob.components.prepare_data.appending.groups import FORMAT, Group, groups_of
from kfp_tfjob.components.prepare_data.appending.hash_lists import HashList
from kfp_tfjob.components.prepare_data.appending.kept import Earlier, Entry
from kfp_tfjob.components.prepare_data.appending.reading import GroupReading, Groups
from kfp_tfjob.components.prepare_data.appending.records import Records
from kfp_tfjob.components.prepare_data.appending.summary import Summary
from kfp_tfjob.components.prepare_data.dataset import Content, Prepared
from kfp_tfjob.components.prepare_data.distributions import Edges
from kfp_tfjob.components.prepare_data.executors.exchange import discard
from kfp_tfjob.components.prepare_data.executors.executor import Executor
from kfp_tfjob.components.prepare_data.files import Source
from kfp_tfjob.components.prepare_data.hashes import split_of
from kfp_tfjob.components.prepare_data.placing import folder_problems
from kfp_tfjob.components.prepare_data.plan import Plan, Shard, encoder_of, leave, shards_of
from kfp_tfjob.components.prepare_data.progress import ProgressLog
from kfp_tfjob.components.prepare_data.scan import Reading
from kfp_tfjob.components.prepare_data.shards import document
from kfp_tfjob.components.prepare_data.sorted_rows import Meaning, SortedRows
from kfp_tfjob.components.prepare_data.statistics import SPLITS
from kfp_tfjob.components.prepare_data.vocabulary import Label
from kfp_tfjob.options.data import DataOptions
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.errors import DataError
from kfp_tfjob.storage.layout import (
    GROUP_INDEX,
    Layout,
    group_crossing,
    group_document,
    shard_hashes,
)
from kfp_tfjob.storage.manifest import ManifestObject
from kfp_tfjob.storage.store import Store
from kfp_tfjob.storage.words import counted
from kfp_tfjob.trainer.coding import CATEGORY, NUMBER, TEXT, Coded, Coding, Missing
from kfp_tfjob.uploader.parallel import each

_TASK = "kfp_tfjob.components.prepare_data.appending.tasks:shard"
_COPIES = 8  # at a time

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Inputs:
    """What is prepared, and where to.

    Attributes:
        store: The store.
        layout: Of output_uri.
        base: The folder of the dataset.
        source: All files.
        contents: For each file, what stands for its content.
        label: The label column.
        options: The typed `data_options`.
        block: Bytes of text to parse at a time.
        part: About the bytes of a part.
        executor: Runs the tasks.
    """

    store: Store
    layout: Layout
    base: S3Address
    source: Source
    contents: Sequence[str]
    label: str
    options: DataOptions
    block: int
    part: int
    executor: Executor


def remember(
    store: Store,
    layout: Layout,
    base: S3Address,
    source: Source,
    options: DataOptions,
    label: str,
) -> None:
    """Make sure that later runs find a finished dataset."""
    kept.remember(store, Records(store, layout, source, options, label), base)


def prepare(inputs: Inputs) -> Prepared:
    """Prepare a dataset, from an earlier one where that has the same groups.

    Raises:
        DataError: A file cannot be read, or there are too few rows, or they are wrong.
    """
    source, options, label = inputs.source, inputs.options, inputs.label
    DataError.raise_if(folder_problems(source, options))
    columns = Reading(source, label, options, inputs.executor).columns(inputs.block)
    groups = groups_of(source, inputs.contents, columns, options)
    inputs.store.probe(inputs.base)
    records = Records(inputs.store, inputs.layout, source, options, label)
    earlier = kept.find(inputs.store, inputs.layout, records, groups, inputs.base.name)

    def reading() -> GroupReading:
        given = (source, groups, label, options, columns, inputs.block, inputs.part)
        return GroupReading(*given, inputs.executor)

    try:
        done = _Preparing(inputs, groups, reading(), earlier).run()
    except UnusableError as error:
        log.warning("%s cannot be appended to, so all files are read: %s", earlier.base, error)
        done = _Preparing(inputs, groups, reading(), None).run()
    discard(inputs.executor.context.exchange)
    kept.remember(inputs.store, records, inputs.base)
    return done


@dataclass
class _Written:
    """The objects of one group.

    Attributes:
        entry: In the index.
        summary: What its rows say.
        objects: In the manifest.
    """

    entry: Entry
    summary: Summary
    objects: list[ManifestObject] = field(default_factory=list)


class _Preparing:
    """One try; `earlier` gives what it has, or nothing if it is None."""

    def __init__(
        self, inputs: Inputs, groups: list[Group], reading: GroupReading, earlier: Earlier | None
    ) -> None:
        self._inputs, self._groups, self._reading = inputs, groups, reading
        self._store, self._base = inputs.store, inputs.base
        self._exchange = inputs.executor.context.exchange
        self._earlier = earlier
        self._entries = {entry.key: entry for entry in earlier.entries} if earlier else {}

    def run(self) -> Prepared:
        """Prepare the dataset.

        Raises:
            UnusableError: The earlier dataset is damaged.
            DataError: The files are wrong.
        """
        documents = self._known()
        kinds = self._earlier.kinds if self._earlier else None
        found = self._reading.read(kinds, {at: doc["found"] for at, doc in documents.items()})
        label = enough.decide(found.whole, self._inputs.options)
        meanings = {
            group.number: kept.digest_of(_meaning(found, group.number, label))
            for group in self._groups
        }
        same = {
            group.number: documents[group.number]
            for group in self._groups
            if group.number in documents
            and group.number not in found.scans
            and self._entries[group.key].meaning == meanings[group.number]
        }
        if others := {group.number for group in self._groups} - same.keys() - found.scans.keys():
            log.info(
                "%s read again, because new classes or texts changed the codes of their rows",
                counted(len(others), "group") + " of files must be",
            )
            self._reading.again(found, others)
        plans = dict(self._plans(found, label))
        stems = self._stems(plans, same)
        self._copied = 0
        written = dict(self._copies(found, label, same, stems))
        written |= dict(self._writes(found, label, plans, meanings, stems))
        return self._finished(found, label, [written[group.number] for group in self._groups])

    # -- reading --------------------------------------------------------------------------------

    def _known(self) -> dict[int, dict[str, Any]]:
        """Return what the earlier dataset has of groups, by number."""
        with usable():
            return {
                group.number: self._earlier.document(self._entries[group.key])
                for group in self._groups
                if group.key in self._entries
            }

    # -- writing --------------------------------------------------------------------------------

    def _plans(self, found: Groups, label: Label) -> Iterator[tuple[int, Plan]]:
        """Yield the plan of each group that was read; the shards are those with rows."""
        coding = _texts_only(found)
        for number, scan in sorted(found.scans.items()):
            job, meanings = self._reading.job_of(number, found.kinds), found.meanings(number, label)
            is_class = label.classes is not None
            rows = SortedRows(
                self._exchange, scan.runs, job.row_kind, job.edges, is_class, meanings.__getitem__
            )
            classes = len(label.classes) if label.classes is not None else None
            size = encoder_of(job, classes).record_bytes
            shards = [
                shard
                for shard in shards_of(rows, split_of(job.edges, job.fractions), size)
                if shard.rows
            ]
            runs = [[run.name, run.part] for run in scan.runs]
            plan = Plan(job, self._base, label, coding, Edges(()), runs, shards)
            yield number, plan

    def _stems(
        self, plans: Mapping[int, Plan], same: Mapping[int, dict[str, Any]]
    ) -> dict[int, list[str]]:
        """Return the names of the shards of each group, without the ending.

        Shards are numbered in the order of the groups.
        """
        names: dict[int, list[str]] = {}
        following = dict.fromkeys(range(len(SPLITS)), 0)
        for group in self._groups:
            if group.number in same:
                splits = [split for split, _, _ in self._entries[group.key].shards]
            else:
                splits = [shard.split for shard in plans[group.number].shards]
            names[group.number] = []
            for split in splits:
                names[group.number].append(f"{SPLITS[split]}-{following[split]:05d}")
                following[split] += 1
        return names

    def _writes(
        self,
        found: Groups,
        label: Label,
        plans: Mapping[int, Plan],
        meanings: Mapping[int, str],
        stems: Mapping[int, list[str]],
    ) -> Iterator[tuple[int, _Written]]:
        """Write the shards of the groups that were read, and what is kept of them."""
        items: list[list[Any]] = []
        size = 0
        for number, plan in plans.items():
            shards = [
                Shard(i, shard.split, int(stem.rpartition("-")[2]), *list(vars(shard).values())[3:])
                for i, (shard, stem) in enumerate(zip(plan.shards, stems[number], strict=True))
            ]
            plan.shards[:] = shards
            name = plan.job.name
            leave(self._exchange, name, plan, found.meanings(number, label))
            known = set(self._exchange.names(name))
            missing = [shard for shard in shards if document(name, shard.number) not in known]
            items += [[name, shard.number] for shard in missing]
            size += sum(shard.rows for shard in missing) * plan.encoder.record_bytes
        progress = ProgressLog("wrote", size)
        for result in self._inputs.executor.map(_TASK, items):
            progress.add(*result)
        if items:
            progress.log()
        for number, plan in plans.items():
            yield number, self._group(number, found, label, plan, meanings[number])

    def _group(
        self, number: int, found: Groups, label: Label, plan: Plan, meaning: str
    ) -> _Written:
        """Keep what a group has, and return its objects."""
        name, summary = plan.job.name, Summary(plan.job, label)
        shards, objects, parts, hashes = [], [], [], []
        for shard in plan.shards:
            done = self._exchange.read_plain(document(name, shard.number))
            parts.append(Summary.from_plain(done["summary"], plan.job, label))
            hashes.append(ManifestObject(*done["hashes"]))
            objects += [ManifestObject(*item) for item in done["objects"]]
            shards.append([shard.split, shard.rows, [item[0] for item in done["objects"]]])
        summary.merge(parts)
        summary.spread.shorten()
        plain = json.loads(json.dumps(summary.to_plain()))
        crossings = [
            self._put(
                group_crossing(number, part),
                hash_lists.packed(hash_lists.rows_of(*crossing.rows_of(self._exchange, [name]))),
            )
            for part, name in enumerate(found.scans[number].shared)
        ]
        body = {"found": found.documents[number], "summary": plain}
        objects.append(self._put(group_document(number), json.dumps(body).encode()))
        objects += [*hashes, *crossings]
        of_split = {
            split: sum(count for at, count, _ in shards if SPLITS[at] == split) for split in SPLITS
        }
        group = self._groups[number]
        given = (group.key, meaning, of_split, group.size, shards)
        keys = ([item.key for item in of_kind] for of_kind in (hashes, crossings))
        entry = Entry(*given, group_document(number), *keys)
        return _Written(entry, Summary.from_plain(plain, plan.job, label), objects)

    def _put(self, key: str, data: bytes) -> ManifestObject:
        return ManifestObject(key, len(data), self._store.write(self._base / key, data))

    # -- copying --------------------------------------------------------------------------------

    def _copies(
        self,
        found: Groups,
        label: Label,
        same: Mapping[int, dict[str, Any]],
        stems: Mapping[int, list[str]],
    ) -> Iterator[tuple[int, _Written]]:
        """Copy the objects of the groups that are in the earlier dataset."""
        if not same:
            return
        pairs: list[tuple[ManifestObject, str]] = []
        written: dict[int, _Written] = {}
        for number in same:
            entry = self._entries[self._groups[number].key]
            renamed = {entry.document: group_document(number)}
            hashes = map(shard_hashes, stems[number])
            renamed |= dict(zip(entry.hashes, hashes, strict=True))
            renamed |= {key: group_crossing(number, i) for i, key in enumerate(entry.crossing)}
            for (_, _, keys), stem in zip(entry.shards, stems[number], strict=True):
                renamed |= {key: stem + Path(key).suffix for key in keys}
            shards = [[at, rows, [renamed[key] for key in keys]] for at, rows, keys in entry.shards]
            objects = [
                ManifestObject(new, item.size, item.crc64nvme)
                for key, new in renamed.items()
                for item in [self._earlier.objects[key]]
            ]
            pairs += zip((self._earlier.objects[key] for key in renamed), objects, strict=True)
            moved = Entry(
                entry.key,
                entry.meaning,
                entry.rows,
                entry.size,
                shards,
                renamed[entry.document],
                *([renamed[key] for key in keys] for keys in (entry.hashes, entry.crossing)),
            )
            with usable():
                summary = Summary.from_plain(same[number]["summary"], found.whole.job, label)
            written[number] = _Written(moved, summary, objects)
        there = {item.address: item.size for item in self._store.list(self._base)}
        with usable(), TemporaryDirectory(prefix="prepare-data-") as folder:
            copier = Copier(self._store, self._earlier.base, self._base, Path(folder), there)
            for _, outcome in each(copier.copy, pairs, _COPIES):
                outcome.result()
        self._copied = sum(item.size for item, _ in pairs)
        yield from written.items()

    # -- finishing ------------------------------------------------------------------------------

    def _finished(self, found: Groups, label: Label, written: list[_Written]) -> Prepared:
        whole, options = found.whole, self._inputs.options
        summary = Summary(whole.job, label)
        summary.merge([item.summary for item in written])
        kind = whole.job.row_kind
        sample = summary.spread.sample(kind, learned.sample_rows(kind))
        if whole.kinds.plain:
            coding = None
            known = Coding(tuple(Coded(name, NUMBER) for name in whole.job.features))
        else:
            train = whole.counted[0]
            if label.classes is not None:
                train.merge(whole.counted[1], [None] * len(train.codes))
            texts = {name: texts.texts for name, texts in whole.dictionaries.items()}
            coding = known = learned.learn(whole.kinds, train, sample, texts, options)
        of_label = None if label.classes is not None else summary.spread.labels(len(sample))
        edges = Edges.of(known, sample, of_label, label.name)
        equal = self._equal([key for item in written for key in item.entry.hashes])
        in_train = None
        if whole.job.placing.is_needed:
            keys = [key for item in written for key in item.entry.crossing]
            shared = self._equal(keys).in_train
            in_train = dict(zip(SPLITS[1:], shared, strict=True))
        stems: dict[str, list[str]] = {split: [] for split in SPLITS}
        for item in written:
            for split, _, keys in item.entry.shards:
                stems[SPLITS[split]].append(Path(keys[0]).stem)
        content = Content(
            label,
            coding,
            summary.statistics(coding, equal),
            summary.spread.distributions(edges),
            summary.weights,
            in_train,
            stems,
        )
        index = kept.index_of(found.kinds and whole.kinds, [item.entry for item in written])
        objects = [item for of_group in written for item in of_group.objects]
        objects.append(self._put(GROUP_INDEX, index))
        name = self._base.name
        done = dataset.finish(self._store, self._base, name, whole, content, objects)
        return self._told(found, done, written)

    def _equal(self, keys: list[str]) -> hash_lists.Equal:
        """Return the rows that are equal to others, over all groups."""

        def of(key: str) -> HashList:
            address = self._base / key
            return HashList(str(address), lambda *at: self._store.read_range(address, *at))

        return hash_lists.count([of(key) for key in keys])

    def _told(self, found: Groups, done: Prepared, written: list[_Written]) -> Prepared:
        """Log what the earlier dataset gave, and return the dataset with it as text."""
        same = [at for at in range(len(self._groups)) if at not in found.scans]
        size = sum(item.size for of_group in written for item in of_group.objects)
        read = sum(group.size for group in self._groups if group.number in found.scans)
        if not same:
            log.info("later runs can append to this dataset")
            return done
        files = sum(len(self._groups[at].source.files) for at in same)
        rows = sum(sum(written[at].entry.rows.values()) for at in same)
        source = self._inputs.source
        words = (
            f"appended to {self._earlier.base}: {files:,} of {counted(len(source.files), 'file')},"
            f" with {rows:,} rows, are as they were. {_mb(read)} of {_mb(source.size)} were parsed,"
            f" {_mb(self._copied)} copied in the store, {_mb(size - self._copied)} written"
        )
        log.info("%s", words)
        return Prepared(**{**vars(done), "appended": words})


def _texts_only(found: Groups) -> Coding | None:
    """Return a coding that has the texts of categories and nothing learned, for raw rows."""
    whole = found.whole
    if whole.kinds.plain:
        return None
    bins = whole.job.options.hash_bins
    none = Missing("constant", 0)
    return Coding(
        tuple(
            Coded(
                item.name,
                item.kind,
                None if item.kind in (CATEGORY, TEXT) else none,
                dictionary=whole.dictionaries[item.name].texts if item.kind == CATEGORY else (),
                bins=bins if item.kind == TEXT else 0,
            )
            for item in whole.kinds.features
        )
    )


def _meaning(found: Groups, group: int, label: Label) -> list[Any]:
    """Return everything beside the rows of a group that decides about the bytes of its shards."""
    meaning: Meaning = found.codes(group, label)
    whole = found.whole
    return [
        FORMAT,
        [[item.name, item.kind] for item in whole.kinds.features],
        whole.kinds.plain,
        [label.name, label.task, label.classes and list(label.classes)],
        None if meaning.classes is None else meaning.classes.tolist(),
        [None if codes is None else codes.tolist() for codes in meaning.codes],
    ]


def _mb(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"
