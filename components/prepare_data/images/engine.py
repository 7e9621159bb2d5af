"""Turns folders of images into a finished dataset in the store.

Each file is read once: a task checks and hashes the files of its part, and writes their records as
a run, in the order of their hashes. The index of all images determines the splits, the model's
input and the shards. A shard is merged from one range of each run.

An image is hashed like a row with one column (hashes.py). The hash determines split and order.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from uuid import uuid4

import numpy as np
import pyarrow as pa

from kfp_tfjob.components.prepare_data import dataset, row_requirements
from kfp_tfjob.components.prepare_data.buckets import Sorted, kind_of
from kfp_tfjob.components.prepare_data.column_warnings import alike_classes
from kfp_tfjob.components.prepare_data.dataset import Prepared
from kfp_tfjob.components.prepare_data.executors.executor import (
    Context,
    Executor,
    ProgressLog,
)
from kfp_tfjob.components.prepare_data.faults import Fault, Faults
from kfp_tfjob.components.prepare_data.hashes import row_hashes, split_of
from kfp_tfjob.components.prepare_data.images.folders import LABEL
from kfp_tfjob.components.prepare_data.images.header import FORMATS, MODES, Unusable, check
from kfp_tfjob.components.prepare_data.labels import Label
from kfp_tfjob.components.prepare_data.parquet_shard import ParquetShard
from kfp_tfjob.components.prepare_data.shards import SHARD_BYTES
from kfp_tfjob.components.prepare_data.source.files import Source, SourceFile
from kfp_tfjob.components.prepare_data.source.header import Columns
from kfp_tfjob.components.prepare_data.source.readers.byte_range import ranges_of
from kfp_tfjob.components.prepare_data.split_rules import SplitRules, place
from kfp_tfjob.components.prepare_data.tasks import Job
from kfp_tfjob.features.coding import Coding
from kfp_tfjob.features.schema import SchemaFeature, SchemaSplit
from kfp_tfjob.features.statistics import SPLITS, BadRows, LabelStatistics, StatisticsDocument
from kfp_tfjob.features.string_hashes import bytes_hash
from kfp_tfjob.features.types.image import Image, ImageStatistics, PictureInput, Span
from kfp_tfjob.options.data import DataOptions
from kfp_tfjob.options.pictures import PICTURE, Pictures
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.formatting import listed
from kfp_tfjob.storage.manifest import ManifestObject

READ = f"{__name__}:read"
WRITE = f"{__name__}:write"
# Of a part. A task holds its records in memory.
_PART_BYTES, PART_FILES = 16 << 20, 4096
_LARGEST_COMMON, _USUAL = 256, 128  # pixels
_MOST_SIZES = 10  # named in statistics.json
# The record of each image in memory: 58 bytes.
INDEX = np.dtype(
    [
        ("hash", "<u8"),  # places the row
        ("content", "<u8"),  # the hash of the image alone
        ("label", "<i4"),
        ("run", "<i4"),  # the number of the part
        ("start", "<u8"),  # of its record in the run
        ("record", "<u4"),  # bytes of its record
        ("size", "<u4"),  # bytes of its file
        ("width", "<u4"),
        ("height", "<u4"),
        ("format", "u1"),  # the index in FORMATS
        ("mode", "u1"),  # the index in MODES
        ("turned", "?"),
    ]
)

log = logging.getLogger(__name__)


def prepare(
    executor: Executor, source: Source, data_label: str, options: DataOptions, base: S3Address
) -> Prepared:
    """Prepare a dataset of images in the directory `base`; the label is `class` unless named.

    Raises:
        DataError: There are more bad files than the options allow, a file changed, a split has no
            images, or train has none of a class.
    """
    context = executor.context
    context.store.probe(base)  # from now on, checksums that it does not verify are verified here
    label = data_label.strip() or LABEL
    folders = source.pictures
    assert folders
    for note in folders.notes:
        log.warning("%s", note)
    rules = SplitRules(source, options, np.empty(0))
    # Each part has its files, as there may be millions.
    job = Job(replace(source, files=()), label, options, Columns((), label), name=uuid4().hex)
    ranges = ranges_of([file.size for file in source.files], _PART_BYTES, PART_FILES)
    parts = [
        Part(number, list(source.files[span.start : span.end]), rules.folders)
        for number, span in enumerate(ranges)
    ]
    faults, indices = Faults(options=options), []
    progress = ProgressLog("read", source.size)
    results = executor.map(READ, job, parts)
    for part, done in zip(parts, results, strict=True):
        progress.add(len(part.files), sum(file.size for file in part.files))
        faults.merge(done.faults)
        indices.append(done.index)
    progress.log()
    row_requirements.check_bad(faults, faults.image_problems, options)
    plan = Plan.of(indices, folders.classes, options)
    row_requirements.check(
        plan.rows, label, plan.classes, plan.class_counts, options, rules.rule, "image"
    )
    model_input = plan.input(options.images)
    shards = list(plan.shards(base))
    progress = ProgressLog("wrote", int(plan.index["record"].sum(dtype=int)))
    done: list[tuple[ManifestObject, str]] = []
    of_shards = Label(label, "classification", plan.classes, np.empty(0, np.int32))
    for stored, digest in executor.map(WRITE, (job.name, of_shards), shards):
        progress.add(len(shards[len(done)].records), stored.size)
        done.append((stored, digest))
    progress.log()
    objects = [stored for stored, _ in done]
    # Models take the bytes of the files, so the size of their input is not comparable.
    schema = dataset.schema_of(
        of_shards,
        [SchemaFeature(PICTURE, PICTURE)],
        options,
        rules.comparable,
        "parquet",
        {split: _schema_split(split, rows, done) for split, rows in plan.rows.items()},
        picture=model_input,
    )
    described = plan.statistics(
        label, len(source.files), faults.counts(), folders.notes, model_input
    )
    if rules.folders:
        shared, how = plan.also_in_train(), "are also in train"
        described = dataset.note_overlap(described, shared, plan.rows, "pictures", how)
    return dataset.complete(context.store, base, objects, schema, described)


def _schema_split(split: str, rows: int, done: list[tuple[ManifestObject, str]]) -> SchemaSplit:
    """Return the entry of a split in schema.json, given the shards of all splits."""
    shards = [shard for shard in done if shard[0].key.startswith(f"{split}/")]
    keys, digests = (stored.key for stored, _ in shards), (digest for _, digest in shards)
    return SchemaSplit(rows, tuple(keys), tuple(digests))


@dataclass(frozen=True)
class Part:
    """Images that one task reads; `folders` are the splits of folders, if these decide."""

    number: int
    files: list[SourceFile]
    folders: frozenset[str]


@dataclass(frozen=True)
class PartDone:
    """The result of reading one part.

    Attributes:
        index: The images in the order of the run, as in INDEX.
        faults: The files that cannot be used for training.
    """

    index: np.ndarray
    faults: Faults


@dataclass(frozen=True)
class Shard:
    """Images that one task writes.

    Attributes:
        base: The dataset.
        key: Of the object, below the dataset.
        records: int64 of shape [images, 4]: the run of each image, its start there, its bytes, and
            its label.
    """

    base: S3Address
    key: str
    records: np.ndarray


def read(context: Context, job: Job, part: Part) -> PartDone:
    """Check the files of a part, and write its run.

    Raises:
        DataError: A file changed since it was listed, or cannot be read.
    """
    source = replace(job.source, store=context.store)
    folders, options = source.pictures, job.options
    assert folders
    label_of = {name: i for i, name in enumerate(folders.classes)}
    faults, rows, records, splits = [], [], [], []
    for file, content in zip(part.files, source.contents(part.files), strict=True):
        header = check(file, content, options.images)
        if isinstance(header, Unusable):
            faults.append(Fault(file.name, 0, "", header.value, header.rule))
            continue
        assert content is not None
        label = label_of[folders.class_of(file.name)]
        row = (0, bytes_hash(content), label, part.number, 0, len(content), len(content))
        format, mode = FORMATS.index(header.format), MODES.index(header.mode)
        rows.append((*row, header.width, header.height, format, mode, header.is_turned))
        records.append(content)
        splits.append(SPLITS.index(file.split) if part.folders else 0)
    index = np.array(rows, INDEX)
    index["content"] = row_hashes([index["content"]], len(index), options.split.salt)
    index["hash"] = index["content"]
    if part.folders:
        fractions = list(options.split.fractions.values())
        index["hash"] = place(index["content"], np.array(splits, np.int8), fractions, part.folders)
    order = np.lexsort((index["label"], index["hash"]))
    index = index[order]
    index["start"] = np.cumsum(index["record"], dtype=np.uint64) - index["record"]
    run = b"".join(records[i] for i in order.tolist())
    context.buckets.write(_run_of(job.name, part.number), run)
    return PartDone(index, Faults.of_files(len(part.files), faults))


def _run_of(job: str, part: int) -> str:
    """Return the name of a part's run."""
    return f"{job}/{part:06d}.records"


def write(context: Context, common: tuple[str, Label], shard: Shard) -> tuple[ManifestObject, str]:
    """Write a shard of the job of this name, and send it to the store; return its digest, too."""
    job, label = common
    runs: dict[int, tuple[str, int, bytes]] = {}
    for number in np.unique(shard.records[:, 0]).tolist():
        # Both are in the same order, so a run's records follow each other.
        _, starts, sizes, _ = shard.records[shard.records[:, 0] == number].T.tolist()
        name = _run_of(job, number)
        data = context.buckets.read(name, starts[0], starts[-1] + sizes[-1])
        runs[number] = name, starts[0], data
    path, kind = context.folder / shard.key.replace("/", "-"), kind_of(0, with_contents=True)
    try:
        parquet = ParquetShard(path, Coding((Image(PICTURE),)), label, kind)
        for number, start, size, code in shard.records.tolist():
            _, first, data = runs[number]
            content = data[start - first : start - first + size]
            contents = pa.array([content], pa.large_binary())
            rows = np.zeros(1, kind)
            rows["content"] = bytes_hash(content)
            parquet.add(Sorted(rows, np.array([code], np.int32), (), contents))
        parquet.close()
        sent = context.store.send(path, shard.base / shard.key, shard.key)
    finally:
        path.unlink(missing_ok=True)
    return ManifestObject(sent.key, sent.size, sent.crc64nvme), parquet.digest


@dataclass(frozen=True)
class Plan:
    """The images in the order of the dataset.

    Attributes:
        index: As in `INDEX`, sorted by hash, then label.
        split: int64 of shape [images], the number of its split.
        classes: The names of the classes.
    """

    index: np.ndarray
    split: np.ndarray
    classes: tuple[str, ...]

    @classmethod
    def of(cls, runs: list[np.ndarray], classes: tuple[str, ...], options: DataOptions) -> Plan:
        """Merge the indices of the runs, which are in their order; the list is emptied."""
        index = np.concatenate(runs)
        runs.clear()  # there may be millions of images
        # Equal images of one label have equal records, so their order does not matter.
        index = index[np.lexsort((index["label"], index["hash"]))]
        split = split_of(index["hash"], list(options.split.fractions.values()))
        return cls(index, split, classes)

    @property
    def rows(self) -> dict[str, int]:
        """The images by split."""
        counts = np.bincount(self.split, minlength=len(SPLITS)).tolist()
        return dict(zip(SPLITS, counts, strict=True))

    @property
    def class_counts(self) -> np.ndarray:
        """int64 of shape [3, classes], images by split and class."""
        size = len(self.classes)
        cells = np.bincount(self.split * size + self.index["label"], minlength=3 * size)
        return cells.reshape(3, size)

    def shards(self, base: S3Address) -> Iterator[Shard]:
        """Yield the shards: of each split, about equal bytes, at most about 64 MiB each."""
        for split, word in enumerate(SPLITS):
            index = self.index[self.split == split]
            reached = np.cumsum(index["record"], dtype=np.int64)
            count = max(1, -(-int(reached[-1]) // SHARD_BYTES))
            shares = reached[-1] * np.arange(1, count) // count
            ends = np.unique(np.searchsorted(reached, shares) + 1)
            for number, rows in enumerate(np.split(index, ends)):
                columns = ("run", "start", "record", "label")
                records = [rows[key].astype(np.int64) for key in columns]
                yield Shard(base, f"{word}/{number:05d}.parquet", np.stack(records, axis=1))

    def also_in_train(self) -> dict[str, int]:
        """Return the images of other splits that are also in train, where folders decide."""
        content, counts = self.index["content"], {}
        train = content[self.split == 0]
        for i, split in enumerate(SPLITS[1:], 1):
            counts[split] = int(np.isin(content[self.split == i], train).sum())
        return counts

    def input(self, options: Pictures) -> PictureInput:
        """Return the model's input: as the options set it, otherwise as it suits the images."""
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
        # Equal images follow each other unless folders have divided them.
        order = np.lexsort((labels, hashes))
        same = hashes[order][1:] == hashes[order][:-1]
        conflicts = int((same & (labels[order][1:] != labels[order][:-1])).sum())
        described = self._described(self.index)
        alike = alike_classes(self.classes)
        return StatisticsDocument(
            features={PICTURE: self._described(self.index[self.split == 0])},
            label=LabelStatistics.of_classes(label, self.classes, self.class_counts),
            rows={"read": read, **self.rows},
            duplicates=int(same.sum()),
            conflicts=conflicts,
            bad_rows=BadRows(sum(bad.values()), bad),
            warnings=(*notes, *self._warnings(described, conflicts, input), *alike),
            suspicions=tuple(alike) or None,
        )

    @staticmethod
    def _described(index: np.ndarray) -> ImageStatistics:
        """Return the formats, modes and sizes of some images."""
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
            "an EXIF rotation, which training and the exported model ignore": (described.turned),
            "an alpha channel, which is dropped": alpha,
            "16 bits per value; the model receives 8": deep,
            "in color; the model receives grayscale": colour if input.channels == 1 else 0,
            f"less than half as large as the model's input of {input.height} x {input.width}"
            " pixels": small,
        }
        for observation, count in counts.items():
            if count:
                yield f"{count:,} of {len(self.index):,} images: {observation}"
        for i, split in enumerate(SPLITS[1:], 1):
            row = self.class_counts[i]
            lacking = [name for name, count in zip(self.classes, row, strict=True) if not count]
            if lacking:
                yield f"{split} has no image of these classes: {listed(lacking, 10)}"


def _named(numbers: np.ndarray, names: tuple[str, ...]) -> dict[str, int]:
    counts = np.bincount(numbers, minlength=len(names)).tolist()
    return {name: count for name, count in zip(names, counts, strict=True) if count}


def _span(values: np.ndarray) -> Span:
    return Span(int(values.min()), float(values.mean()), int(values.max()))
