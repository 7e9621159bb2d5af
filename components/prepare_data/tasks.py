"""The task that reads a part of the source: it profiles the columns, and writes bucket files.

Its result has everything but the rows. Called by the scan, through an executor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from kfp_tfjob.common.errors import DataError, Problem
from kfp_tfjob.common.formatting import setting
from kfp_tfjob.features.statistics import SPLITS
from kfp_tfjob.features.string_hashes import bytes_hash
from kfp_tfjob.features.types.base import CODES, CONTENTS, FIELDS, FLOATS, WHOLES
from kfp_tfjob.features.types.image import ImageProfile
from kfp_tfjob.options.data import DataOptions

from .buckets import BucketFile, BucketWriter, HashBins, kind_of
from .column_profile import ColumnProfile, DistinctTexts, profile
from .columns_to_rows import Converter, Rows
from .dictionary import Dictionary, HashedStrings, TooManyTextsError, too_large
from .duplicate_rows import OverlapWriter
from .executors.executor import Context
from .faults import Faults
from .fit_encoding import GROUPS, Counted
from .hashes import number_words, row_hashes, split_of
from .images.reader import chunks_of
from .kinds import NO_KINDS, Kinds, columns_of
from .labels import Labels
from .row_weights import read as read_weights
from .source.column_names import Columns, choose
from .source.files import Source, SourceFile
from .source.readers.arrow_table import ArrowTable, Chunk
from .source.readers.open_table import Part, open_table
from .split_rules import SplitRules, hashes_in

_MOST_NAMED = 10  # columns


@dataclass(frozen=True)
class Job:
    """A pass over the source.

    Attributes:
        columns: The columns of the first file.
        limits: With data_options.split.time, the times at which validation and test begin.
        block: Bytes of text to parse at a time.
        assumed: Whether the kinds come from the first block, and are compared with all values.
        name: A folder for the bucket files, which no other pass has.
    """

    source: Source
    label: str
    options: DataOptions
    columns: Columns
    kinds: Kinds = NO_KINDS
    limits: tuple[float, ...] = ()
    block: int = 0
    assumed: bool = False
    name: str = ""

    @cached_property
    def fractions(self) -> list[float]:
        """The shares of the splits."""
        return list(self.options.split.fractions.values())

    @cached_property
    def split_rules(self) -> SplitRules:
        """The rules that decide each row's split."""
        return SplitRules(self.source, self.options, np.array(self.limits))

    @cached_property
    def bins(self) -> HashBins:
        """The bins and the buckets of the hashes."""
        # A bucket of images costs next to nothing, and a large one is read for rows of few shards.
        is_fine = bool(self.kinds.in_field(CONTENTS))
        return HashBins.of(self.source.size, self.fractions, is_fine)

    @cached_property
    def row_kind(self) -> np.dtype:
        """The type of a row in memory."""
        kinds, weighted = self.kinds, self.options.weight is not None
        floats, codes, wholes, contents = (len(kinds.in_field(field)) for field in FIELDS)
        grouped, number = bool(self.options.split.group), kinds.number_type
        return kind_of(floats, codes, wholes, weighted, number, grouped, bool(contents))


@dataclass
class RowSummary:
    """The counts and labels of a part's rows, or of all rows.

    Attributes:
        counted: The counts over rows of train: rows with a number as label, then other rows.
        dictionaries: The dictionaries of the categories.
        seen: The profile of each column; empty if the kinds are known.
        images: The profile of images; None for tables.
        files: The bucket files, in the order of the source.
        content_bytes: int64 of shape [bins], the bytes of the images or of long strings in each bin
            of the hashes; of shape [1] for other tables.
        reached: How far a range of text was read: its start, its end, and its lines.
        overlaps: The names of the files that `count_overlap` reads.
    """

    labels: Labels
    counted: list[Counted]
    dictionaries: dict[str, Dictionary]
    seen: dict[str, ColumnProfile]
    images: ImageProfile | None = None
    faults: Faults = field(default_factory=Faults)
    content_bytes: np.ndarray = field(default_factory=lambda: np.zeros(1, np.int64))
    files: list[BucketFile] = field(default_factory=list)
    reached: tuple[int, int, int] | None = None
    overlaps: list[str] = field(default_factory=list)

    @classmethod
    def empty(cls, job: Job) -> RowSummary:
        """Return the summary of no rows."""
        dictionaries = {name: Dictionary() for name in job.kinds.with_dictionaries}
        profiles = {
            name: ColumnProfile(name, texts=None if name in dictionaries else DistinctTexts())
            for name in (job.columns.features if job.assumed else ())
        }
        counted = [Counted.empty(job.kinds) for _ in range(GROUPS)]
        if (folders := job.source.pictures) is None:
            return cls(Labels(job.label), counted, dictionaries, profiles)
        # The folders name all classes, so a part has the same codes as the others.
        counts = np.zeros((len(SPLITS), len(folders.classes)), np.int64)
        labels = Labels(job.label, folders.codes, counts=counts)
        return cls(labels, counted, dictionaries, profiles, ImageProfile())

    def merge(self, part: RowSummary, lines: int) -> None:
        """Add the rows of the next part, after some lines of its file.

        Raises:
            TooManyTextsError: Of all categories together.
        """
        part.faults.shift(lines)
        part.labels.shift(lines)
        self.faults.merge(part.faults)
        for name, column in part.seen.items():
            column.shift(lines)
            self.seen[name].merge(column)
        self.labels.merge(part.labels)
        codes = {
            name: dictionary.merge(part.dictionaries[name])
            for name, dictionary in self.dictionaries.items()
        }
        TooManyTextsError.raise_if(filter(None, [too_large(self.dictionaries)]))
        for counts, counts_of_part in zip(self.counted, part.counted, strict=True):
            counts.merge(counts_of_part, codes)
        if self.images and part.images:
            self.images.merge(part.images)
        self.content_bytes = self.content_bytes + part.content_bytes
        self.files += part.files
        self.overlaps += part.overlaps


def rows(context: Context, job: Job, part: Part) -> RowSummary:
    """Write the rows of one part of a job to bucket files."""
    writer, source = _PartWriter(job, context, part), replace(job.source, store=context.store)
    if source.pictures:
        for folder, chunk in chunks_of(source, part.files, job.label, job.options):
            writer.add(folder, chunk)
        return writer.end()
    for file in part.files:
        with open_table(source, file, job.options, job.block, part.span) as table:
            columns = _columns(job, table, file)
            for chunk in table.chunks(columns):
                writer.add(file.split, chunk)
            if part.span:
                writer.summary.reached = table.reached
    return writer.end()


def _columns(job: Job, table: ArrowTable, file: SourceFile) -> Columns:
    """Return the columns to read from a file; they must match the first file's."""
    # A column to drop need not be in every file; `first_block` looked for it.
    options = job.options
    columns, problems = choose(table.header, job.label, options, file.name, options.drop)
    problems += table.problems(columns) if columns else []
    if columns and _read_columns(columns) != _read_columns(job.columns):
        problems.append(_other_columns(job, file.name, columns))
    DataError.raise_if(problems)
    assert columns is not None
    columns_to_read = columns_of(job.kinds, job.label, columns.extra)
    # While kinds are assumed, those that may be left out are counted too.
    return (
        replace(columns_to_read, features=job.columns.features) if job.assumed else columns_to_read
    )


def _read_columns(columns: Columns) -> set[str]:
    """Return the features, and the column without a name that is dropped."""
    return {*columns.features, *([""] if columns.has_index else [])}


def _other_columns(job: Job, name: str, columns: Columns) -> Problem:
    expected = _read_columns(job.columns)
    additional = sorted(_read_columns(columns) - expected)
    missing = sorted(expected - _read_columns(columns))
    spellings = {text.lower(): text for text in additional}
    respelled = [(text, spellings[text.lower()]) for text in missing if text.lower() in spellings]
    fix = "".join(
        f"write {name!r} and {spelling!r} in the same way; or " for name, spelling in respelled[:5]
    )
    drop = "data_options.drop"
    if len(additional) + len(missing) <= _MOST_NAMED:
        drop = setting(drop, [*job.options.drop, *additional, *missing])
    return Problem(
        f"{name} does not have the columns of {job.source.first.name}",
        received="; ".join(
            f"{kind} {', '.join(map(repr, names[:10]))}"
            for kind, names in (("additional", additional), ("missing", missing))
            if names
        ),
        expected="the same columns in every file, in any order",
        fix=f"{fix}list the features in data_options.columns, or drop the columns that some files"
        f" lack with {drop}",
        name="columns-differ",
    )


class _PartWriter:
    """Converts the rows of a part, writes them to bucket files, and counts what they have."""

    def __init__(self, job: Job, context: Context, part: Part) -> None:
        self._job, self._folder = job, context.buckets
        self._converter = Converter(job.kinds, job.label, job.options.format_of(job.label))
        self._name = f"{job.name}/part-{part.number:06d}"
        if part.span and part.span.exact:
            # A process that Dask takes for lost may still read the part from where it was guessed
            # to begin, and must not replace these rows.
            self._name += f"-from-{part.span.start}"
        self.summary = RowSummary.empty(job)
        self._strings: list[Dictionary | HashedStrings] = [
            self.summary.dictionaries.get(item.name) or HashedStrings(job.options.hash_bins)
            for item in job.kinds.in_field(CODES)
        ]
        strings = enumerate(job.kinds.in_field(CODES))
        sized = [at for at, feature in strings if feature.type.most_bytes]
        self._buckets = BucketWriter(self._folder, self._name, job.row_kind, job.bins, sized)
        self._has_sizes = bool(sized or job.source.pictures)
        self._overlap = OverlapWriter() if job.split_rules.is_needed else None

    def add(self, folder: str, chunk: Chunk) -> None:
        """Add the good rows of a chunk from a folder that names a split, or from any other."""
        job, weight = self._job, self._job.options.weight
        chunk.faults.dropping = job.options.dropping(chunk.columns, job.label)
        rules = job.split_rules
        groups = rules.group_hashes(chunk)
        splits = rules.splits(folder, chunk, groups) if rules.is_needed else None
        weights = None if weight is None else read_weights(chunk, weight)
        if job.assumed:
            profile(self.summary.seen, chunk)
        converted = self._converter.rows(chunk)
        keep = chunk.faults.good
        coded = [
            strings.add(column)
            for strings, column in zip(self._strings, converted.texts, strict=True)
        ]
        images = converted.images
        image_bytes = images.contents if images else []
        image_hashes = np.array([*map(bytes_hash, image_bytes)], np.uint64)
        string_hashes = [column.hashes for column in coded]
        feature_hashes = self._row_hashes(converted, string_hashes, image_hashes)
        hashes = feature_hashes
        if splits is not None:
            hashes = hashes_in(hashes, splits[keep], job.fractions, rules.folders)
        self.summary.faults.merge(converted.faults)
        split = split_of(hashes, job.fractions)
        labels, numbers = self.summary.labels.add(converted, split)
        if self._overlap:
            self._overlap.add(feature_hashes, labels, split)
        rows = np.empty(len(hashes), job.row_kind)
        if images and self.summary.images:
            rows["content"], rows["size"] = image_hashes, images.properties["bytes"]
            self.summary.images.add(images.properties, split == 0)
        rows["hash"], rows["code"], rows["number"] = hashes, labels, numbers
        np.add(converted.features, 0, out=rows["features"])  # -0.0 is 0.0
        rows["dates"] = converted.dates
        if weights is not None:
            rows["weight"] = weights[keep]
        if groups is not None:
            rows["group"] = groups[keep]
        self._count(rows, [column.counted for column in coded], split)
        for j, column in enumerate(coded):
            rows["codes"][:, j] = column.codes
        string_bytes = sum(column.new_bytes for column in coded)
        self._buckets.add(rows, string_bytes, image_bytes)
        if self._buckets.is_full:
            self._flush()

    def _row_hashes(
        self, rows: Rows, string_hashes: Sequence[np.ndarray], image_hashes: np.ndarray
    ) -> np.ndarray:
        """Return the hashes of rows, given those of their strings by column and of their images."""
        words = {
            FLOATS: iter(number_words(rows.features).T),
            CODES: iter(string_hashes),
            WHOLES: iter(rows.dates.view(np.uint64).T),
            CONTENTS: iter([image_hashes]),
        }
        columns = (next(words[feature.type.field]) for feature in self._job.kinds.features)
        return row_hashes(columns, len(rows.lines), self._job.options.split.salt)

    def _count(self, rows: np.ndarray, codes: list[np.ndarray], split: np.ndarray) -> None:
        """Add the rows of train to the counts of dates and of strings."""
        if not any(counts.is_needed for counts in self.summary.counted):
            return
        is_train, is_other = split == 0, np.isnan(rows["number"])
        for counts, mask in zip(self.summary.counted, (~is_other, is_other), strict=True):
            mask &= is_train
            counts.add(rows["dates"][mask], [column[mask] for column in codes])

    def _flush(self) -> None:
        self._buckets.flush(
            list(self.summary.labels.codes), [strings.texts for strings in self._strings]
        )
        for strings in self._strings:
            strings.written()

    def end(self) -> RowSummary:
        """Write the remaining rows, and return the part's summary."""
        self._flush()
        self.summary.files = self._buckets.files
        if self._has_sizes:
            self.summary.content_bytes = self._buckets.content_bytes
        for column in self.summary.seen.values():
            column.forms = {}  # only this part needs them
        if self._overlap:
            name = f"{self._name}.splits"
            self._folder.write(name, self._overlap.to_bytes())
            self.summary.overlaps = [name]
        return self.summary
