"""Turns folders of pictures into a finished dataset in the store.

Each file is read once: it is checked and hashed, and its record goes into the run of its part
(parts.py). From the index of all pictures follow the splits, the model's input and the shards,
which are then merged from the runs.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from kfp_tfjob.components.prepare_data import dataset, row_requirements
from kfp_tfjob.components.prepare_data.dataset import Prepared
from kfp_tfjob.components.prepare_data.executors.executor import Executor, ProgressLog
from kfp_tfjob.components.prepare_data.faults import Faults
from kfp_tfjob.components.prepare_data.hashes import split_of
from kfp_tfjob.components.prepare_data.images import parts
from kfp_tfjob.components.prepare_data.images.folders import LABEL
from kfp_tfjob.components.prepare_data.images.header import FORMATS, MODES
from kfp_tfjob.components.prepare_data.images.parts import Shard
from kfp_tfjob.components.prepare_data.shards import SHARD_BYTES
from kfp_tfjob.components.prepare_data.source.files import Source
from kfp_tfjob.components.prepare_data.vocabulary import Label
from kfp_tfjob.features.schema import SchemaFeature, SchemaSplit
from kfp_tfjob.features.statistics import SPLITS, BadRows, LabelStatistics, StatisticsDocument
from kfp_tfjob.features.types.image import ImageStatistics, PictureInput, Span
from kfp_tfjob.options.data import DataOptions
from kfp_tfjob.options.pictures import PICTURE, Pictures
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.formatting import listed

log = logging.getLogger(__name__)

_LARGEST_COMMON, _USUAL = 256, 128  # pixels
_MOST_SIZES = 10  # named in statistics.json


def prepare(
    executor: Executor, source: Source, data_label: str, options: DataOptions, base: S3Address
) -> Prepared:
    """Prepare a dataset of pictures in the directory `base`; the label is `class` unless named.

    Raises:
        DataError: There are more bad files than the options allow, a file changed, a split has no
            pictures, or train has none of a class.
    """
    store = executor.context.store
    store.probe(base)  # from now on, checksums that it does not verify are verified here
    label = data_label.strip() or LABEL
    folders = source.pictures
    assert folders
    for note in folders.notes:
        log.warning("%s", note)
    faults, runs = Faults(), {}
    progress = ProgressLog("read", source.size)
    items = list(parts.parts_of(source, options))
    for part, found in zip(items, executor.map(parts.READ, items), strict=True):
        faults.merge(found.faults)
        runs[part.name] = found.index.view(parts.INDEX)
        progress.add(len(part.files), part.size)
    progress.log()
    row_requirements.check_bad(faults, faults.image_problems, options)
    by_folder = source.splits_by_folder and options.split.folders
    rule: dict[str, str | int] = {"folders": True} if by_folder else {}
    plan = Plan.of(runs, folders.classes, options)
    row_requirements.check(plan.rows, label, plan.classes, plan.class_counts, options, rule)
    wanted = plan.input(options.pictures)
    shards = {split: list(plan.shards(base, i)) for i, split in enumerate(SPLITS)}
    progress = ProgressLog("wrote", int(plan.index["record"].sum(dtype=int)))
    objects = []
    items = [shard for found in shards.values() for shard in found]
    for shard, written in zip(items, executor.map(parts.WRITE, items), strict=True):
        objects.append(written)
        progress.add(len(shard.order), written.size)
    progress.log()
    # Models take the bytes of the files, so the size of their input is not comparable.
    schema = dataset.schema_of(
        Label(label, "classification", plan.classes, np.empty(0, np.int32)),
        [SchemaFeature(PICTURE, PICTURE)],
        options,
        rule,
        "encoded",
        {
            split: SchemaSplit(plan.rows[split], tuple(shard.name for shard in found))
            for split, found in shards.items()
        },
        picture=wanted,
    )
    described = plan.statistics(label, len(source.files), faults.counts(), folders.notes, wanted)
    if by_folder:
        shared = plan.also_in_train()
        how = "are also in train"
        described = dataset.note_overlap(described, shared, plan.rows, "pictures", how)
    return dataset.complete(store, base, objects, schema, described)


@dataclass(frozen=True)
class Plan:
    """The pictures in the order of the dataset.

    Attributes:
        index: As in `parts.INDEX`, sorted by hash, then label.
        run: int32 of shape [pictures], the number of the run that has each.
        names: The names of the runs.
        split: int64 of shape [pictures], the number of its split.
        classes: The names of the classes.
    """

    index: np.ndarray
    run: np.ndarray
    names: tuple[str, ...]
    split: np.ndarray
    classes: tuple[str, ...]

    @classmethod
    def of(
        cls, runs: dict[str, np.ndarray], classes: tuple[str, ...], options: DataOptions
    ) -> Plan:
        """Merge the indices of the runs, in their order.

        Args:
            runs: The index of each run, by its name; emptied, to save memory.
            classes: The names of the classes.
            options: The typed `data_options`.
        """
        names = tuple(runs)
        sizes = [len(run) for run in runs.values()]
        numbers = np.repeat(np.arange(len(runs), dtype=np.int32), sizes)
        index = np.concatenate(list(runs.values()))
        runs.clear()
        # Equal pictures of one label have equal records, so their order does not matter.
        order = np.lexsort((numbers, index["label"], index["hash"]))
        index = index[order]
        split = split_of(index["hash"], list(options.split.fractions.values()))
        return cls(index, numbers[order], names, split, classes)

    @property
    def rows(self) -> dict[str, int]:
        """The pictures by split."""
        counts = np.bincount(self.split, minlength=len(SPLITS)).tolist()
        return dict(zip(SPLITS, counts, strict=True))

    @property
    def class_counts(self) -> np.ndarray:
        """int64 of shape [3, classes], pictures by split and class."""
        size = len(self.classes)
        cells = np.bincount(self.split * size + self.index["label"], minlength=3 * size)
        return cells.reshape(3, size)

    def shards(self, base: S3Address, split: int) -> Iterator[Shard]:
        """Yield the shards of a split, given its number."""
        record, starts = self.index["record"].astype(np.int64), self._starts
        first, end = np.searchsorted(self.split, (split, split + 1)).tolist()
        ends = first + _ends(record[first:end])
        for number, (start, stop) in enumerate(zip([first, *ends], ends, strict=False)):
            name = f"{SPLITS[split]}-{number:05d}.tfrecord"
            runs, order = np.unique(self.run[start:stop], return_inverse=True)
            low = np.full(len(runs), np.iinfo(np.int64).max)
            high = np.zeros(len(runs), np.int64)
            np.minimum.at(low, order, starts[start:stop])
            np.maximum.at(high, order, (starts + record)[start:stop])
            ranges = zip(runs.tolist(), low.tolist(), high.tolist(), strict=True)
            pieces = [(self.names[run], at, to) for run, at, to in ranges]
            yield Shard(name, base / name, pieces, order.astype(np.int32))

    @cached_property
    def _starts(self) -> np.ndarray:
        """Where each record begins in its run."""
        record = self.index["record"].astype(np.int64)
        by_run = np.argsort(self.run, kind="stable")
        before = np.cumsum(record[by_run]) - record[by_run]
        first_of_run = np.searchsorted(self.run[by_run], self.run[by_run])
        starts = np.empty(len(record), np.int64)
        starts[by_run] = before - before[first_of_run]
        return starts

    def also_in_train(self) -> dict[str, int]:
        """Return the pictures of other splits that are also in train, where folders decide."""
        content, found = self.index["content"], {}
        train = content[self.split == 0]
        for i, split in enumerate(SPLITS[1:], 1):
            found[split] = int(np.isin(content[self.split == i], train).sum())
        return found

    def input(self, options: Pictures) -> PictureInput:
        """Return what the model gets: what the options say, or what suits the pictures."""
        height, width = options.height, options.width
        if not height:
            height, width = int(self.index["height"][0]), int(self.index["width"][0])
            same = (self.index["height"] == height).all() and (self.index["width"] == width).all()
            if not same or max(height, width) > _LARGEST_COMMON:
                height = width = _USUAL
        grey = all(mode.startswith("grey") for mode in _named(self.index["mode"], MODES))
        channels = options.channels or (1 if grey else 3)
        return PictureInput(height, width, channels, options.resize, options.interpolation)

    def statistics(
        self, label: str, read: int, bad: dict[str, int], notes: list[str], input: PictureInput
    ) -> StatisticsDocument:
        """Return the content of statistics.json, given the files read and the bad ones by rule."""
        hashes, labels = self.index["content"], self.index["label"]
        # Equal pictures follow each other unless folders have divided them.
        order = np.lexsort((labels, hashes))
        same = hashes[order][1:] == hashes[order][:-1]
        conflicts = int((same & (labels[order][1:] != labels[order][:-1])).sum())
        described = self._described(self.index)
        return StatisticsDocument(
            features={PICTURE: self._described(self.index[self.split == 0])},
            label=LabelStatistics.of_classes(label, self.classes, self.class_counts),
            rows={"read": read, **self.rows},
            duplicates=int(same.sum()),
            conflicts=conflicts,
            bad_rows=BadRows(sum(bad.values()), bad),
            warnings=(*notes, *self._warnings(described, conflicts, input)),
        )

    @staticmethod
    def _described(index: np.ndarray) -> ImageStatistics:
        """Return the formats, modes and sizes of some pictures."""
        sizes = Counter(zip(index["width"].tolist(), index["height"].tolist(), strict=True))
        ranked = sorted(sizes.items(), key=lambda item: (-item[1], item[0]))
        return ImageStatistics(
            kind=PICTURE,
            count=len(index),
            formats=_named(index["format"], FORMATS),
            modes=_named(index["mode"], MODES),
            width=_span(index["width"]),
            height=_span(index["height"]),
            bytes=_span(index["size"]),
            distinct_sizes=len(ranked),
            sizes=[(width, height, count) for (width, height), count in ranked[:_MOST_SIZES]],
            turned=int(index["turned"].sum()),
        )

    def _warnings(
        self, described: ImageStatistics, conflicts: int, input: PictureInput
    ) -> Iterator[str]:
        modes = described.modes.items()
        alpha = sum(count for mode, count in modes if "alpha" in mode)
        deep = sum(count for mode, count in modes if "16" in mode)
        colour = sum(count for mode, count in modes if not mode.startswith("grey"))
        small = int(
            (
                (self.index["height"] < input.height // 2)
                | (self.index["width"] < input.width // 2)
            ).sum()
        )
        counts = {
            "the same image as an earlier one, with a different label": conflicts,
            "EXIF asks for a rotation, which training and the exported model ignore": (
                described.turned
            ),
            "an alpha channel, which is dropped": alpha,
            "16 bits per value; the model receives 8": deep,
            "in colour; the model receives grey": colour if input.channels == 1 else 0,
            f"less than half as large as the model's input of {input.height} x {input.width}"
            " pixels": small,
        }
        for what, count in counts.items():
            if count:
                yield f"{count:,} of {len(self.index):,} pictures: {what}"
        for i, split in enumerate(SPLITS[1:], 1):
            row = self.class_counts[i]
            lacking = [name for name, count in zip(self.classes, row, strict=True) if not count]
            if lacking:
                yield f"{split} has no image of these classes: {listed(lacking, 10)}"


def _ends(sizes: np.ndarray) -> np.ndarray:
    """Return where the shards of a split end: about equal bytes, at most about 64 MiB each."""
    reached = np.cumsum(sizes)
    shards = max(1, -(-int(reached[-1]) // SHARD_BYTES))
    wanted = reached[-1] * np.arange(1, shards + 1) // shards
    return np.unique(np.searchsorted(reached, wanted) + 1)


def _named(numbers: np.ndarray, names: tuple[str, ...]) -> dict[str, int]:
    counts = np.bincount(numbers, minlength=len(names)).tolist()
    return {name: count for name, count in zip(names, counts, strict=True) if count}


def _span(values: np.ndarray) -> Span:
    return Span(int(values.min()), float(values.mean()), int(values.max()))
