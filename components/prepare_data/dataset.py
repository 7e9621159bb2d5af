"""Finds and writes datasets: shards, schema.json, statistics.json and, last, manifest.json.

They hold no name of a source file, no address and no time, so equal rows give equal bytes. Called
by prepare_data's engine.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kfp_tfjob.common.errors import DataError, ObjectNotFoundError
from kfp_tfjob.common.formatting import counted
from kfp_tfjob.features.image_decoding import ImageInput
from kfp_tfjob.features.schema import (
    DROP,
    LeftOut,
    Schema,
    SchemaFeature,
    SchemaLabel,
    SchemaSplit,
    SchemaWeight,
)
from kfp_tfjob.features.statistics import SPLITS, StatisticsDocument, WeightStatistics
from kfp_tfjob.features.types.base import CODES, FLOATS, WHOLES
from kfp_tfjob.options.data import DataOptions
from kfp_tfjob.options.image_options import ImageOptions
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.documents import InvalidDocumentError
from kfp_tfjob.storage.layout import (
    CODEC_LAYOUT,
    CODEC_VERSION,
    DISTRIBUTIONS,
    MANIFEST,
    SCHEMA,
    STATISTICS,
)
from kfp_tfjob.storage.manifest import Manifest, ManifestObject
from kfp_tfjob.storage.store import Store

from . import fit_encoding
from .buckets import BucketFile, Sorted, SortedRows, Vocabulary, joined
from .column_warnings import uneven_splits
from .distributions import Distributions, DistributionsDocument
from .executors.executor import ProgressLog
from .hashes import split_of
from .images.statistics import described as described_images
from .images.statistics import input_of
from .labels import Label
from .row_weights import WeightSums, check
from .scan import Scan
from .shards import Plan, Shard, shards_of
from .source.digest import copies
from .source.files import Source
from .source.unread_files import large_unread_files
from .split_rules import ignored_folders
from .statistics import SAMPLE_ROWS, Statistics, Train, described, sample_rows
from .tallies import TallyPlan, tallies_of
from .tasks import Job

_COPIED = 0.1  # of the rows; copies of files with few rows or none do not matter
_MOST_FILES = 10  # named in the log
_TASK = "kfp_tfjob.components.prepare_data.shards:shard"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Prepared:
    """A finished dataset, at `s3://.../datasets/<digest>`; `reused` if it existed already."""

    dataset_uri: str
    dataset_digest: str
    schema: Schema
    statistics: StatisticsDocument
    reused: bool

    @property
    def rows(self) -> dict[str, int]:
        """The rows by split."""
        return self.schema.rows

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics that the pipeline shows."""
        metrics = {f"rows_{split}": count for split, count in self.rows.items()}
        metrics["features"] = len(self.schema.features)
        metrics["classes"] = len(self.schema.classes)
        metrics["duplicate_rows"] = self.statistics.duplicates
        metrics["bad_rows_dropped"] = self.statistics.bad_rows.dropped
        return {name: float(value) for name, value in metrics.items()}


def find(store: Store, base: S3Address) -> Prepared | None:
    """Return a complete dataset, or None: its manifest exists, and every object has its size.

    Raises:
        DataError: The object at its manifest's address is not a manifest.
    """
    try:
        manifest = store.read_manifest(base / MANIFEST)
    except ObjectNotFoundError:
        return None
    sizes = {item.address: item.size for item in store.list(base)}
    missing = [item.key for item in manifest.objects if sizes.get(base / item.key) != item.size]
    if missing:
        log.warning("dataset %s lacks %s and is written again", base, ", ".join(missing[:5]))
        return None
    # They grow with the number of columns and labels, so the usual limit on a read does not apply.
    try:
        schema = Schema.from_bytes(store.read(base / SCHEMA, sizes[base / SCHEMA]))
        data = store.read(base / STATISTICS, sizes[base / STATISTICS])
        statistics = StatisticsDocument.from_bytes(data)
    except InvalidDocumentError as error:
        log.warning("dataset %s is damaged and is written again: %s", base, error)
        return None
    return Prepared(str(base), base.name, schema, statistics, reused=True)


def write(base: S3Address, scan: Scan, label: Label) -> Prepared:
    """Store the shards, schema.json, statistics.json and the manifest.

    Files of an interrupted run are overwritten.
    """
    store, options = scan.executor.context.store, scan.job.options
    store.probe(base)  # from now on, checksums that it does not verify are verified here
    plan, shards, train = _planned(scan, label, base)
    summed, distributions, objects, digests = _shards(scan, plan, shards)
    label_moments = [moments.column(0) for moments in summed.labels]
    DataError.raise_if(filter(None, [label.problem(label_moments)]))
    rows, faults, images = scan.rows(label), scan.faults, scan.summary.images
    model_input = input_of(images, options.images) if images else None
    features = plan.coding.features
    dropped = (LeftOut(name, DROP) for name in options.drop)
    schema = _schema_of(
        label,
        [SchemaFeature(feature.name, feature.schema_type) for feature in features],
        options,
        scan.job.split_rules.comparable,
        {split: _schema_split(split, rows[split], shards, digests) for split in SPLITS},
        coding=() if model_input else tuple(feature.learned for feature in features),
        formats={item.name: item.format for item in scan.kinds.features if item.format},
        weight=None if options.weight is None else SchemaWeight(options.weight),
        group=plan.group,
        null_values=tuple(sorted({*scan.job.columns.null_values} - {""})),
        left_out=(*scan.kinds.left_out, *dropped),
        picture=model_input,
        max_megapixels=_megapixels(options) if model_input else None,
    )
    if model_input:
        statistics = _image_statistics(scan, label, summed, model_input)
        return _complete(store, base, objects, schema, statistics)
    rule, source = scan.job.split_rules.rule, scan.job.source
    suspicions = [
        *uneven_splits(rows, summed.duplicates, options.split.fractions, rule),
        *ignored_folders(source, options),
        *_copied_files(source, summed, rows),
        *large_unread_files(source),
    ]
    statistics = described(
        summed, train, plan.coding, scan.kinds, label, rows, faults, options, suspicions
    )
    if options.weight is not None:
        weights: dict[str, WeightSums] = dict(zip(SPLITS, summed.weights, strict=True))
        check(options.weight, weights)
        splits = {split: sums.of_split(label.classes) for split, sums in weights.items()}
        statistics = replace(statistics, weight=WeightStatistics(options.weight, splits))
    if overlap := scan.overlap():
        clause = "have the same features as a row of train"
        statistics = _note_overlap(statistics, overlap.also_in_train, rows, "rows", clause)
    return _complete(store, base, objects, schema, statistics, distributions.document())


def _image_statistics(
    scan: Scan, label: Label, summed: Statistics, model_input: ImageInput
) -> StatisticsDocument:
    """Return the content of statistics.json for a dataset of images."""
    rows, folders, faults = scan.rows(label), scan.job.source.pictures, scan.faults
    assert scan.summary.images and folders and label.classes
    # Equal images in different folders are not next to each other in a shard. The shards' sums miss
    # these duplicates; the overlap of the splits counts them.
    overlap = scan.overlap()
    totals = overlap or summed
    statistics = described_images(
        scan.summary.images,
        model_input,
        label=label.name,
        classes=label.classes,
        class_counts=scan.labels.class_counts(label),
        rows={"read": faults.seen, **rows},
        bad=faults.counts(),
        duplicates=totals.duplicates,
        conflicts=totals.conflicts,
        notes=folders.notes,
    )
    if not overlap:
        return statistics
    clause = "are also in train"
    return _note_overlap(statistics, overlap.also_in_train, rows, "pictures", clause)


def _schema_split(
    split: str, rows: int, shards: Sequence[Shard], digests: Sequence[str]
) -> SchemaSplit:
    """Return the entry of a split in schema.json, given all shards with the hash of their rows."""
    pairs = zip(shards, digests, strict=True)
    split_shards = [(shard, digest) for shard, digest in pairs if SPLITS[shard.split] == split]
    return SchemaSplit(
        rows,
        tuple(shard.key for shard, _ in split_shards),
        tuple(digest for _, digest in split_shards),
    )


def _copied_files(source: Source, summed: Statistics, rows: Mapping[str, int]) -> list[str]:
    """Return a line if rows count several times because their file has a copy."""
    same = summed.duplicates - summed.conflicts
    if same < _COPIED * sum(rows.values()) or not (copied := copies(source)):
        return []
    for name, first in list(copied.items())[:_MOST_FILES]:
        log.warning("%s has the same content as %s", name, first)
    return [
        f"{counted(len(copied), 'file')} of data_uri {'has' if len(copied) == 1 else 'have'} the"
        " same content as another one, so the rows count several times: remove the copies"
    ]


def _planned(scan: Scan, label: Label, base: S3Address) -> tuple[Plan, list[Shard], Train]:
    """Return the plan that all shards share, the shards, and the summary of train."""
    job, files = scan.job, scan.summary.files
    vocabulary = _vocabulary(scan, label)
    folder, content_bytes = scan.executor.context.buckets, scan.summary.content_bytes
    rows = SortedRows(folder, job.row_kind, job.bins, vocabulary, content_bytes)
    counts = rows.counts(files)
    sample = _sample(rows, job, files, counts, label)
    splits = split_of(job.bins.edges, job.fractions)
    shards = list(shards_of(rows, files, counts, splits))
    tallies = tallies_of(scan.executor, TallyPlan(job, label, vocabulary), shards)
    counted, of_texts = scan.summary.counted
    if label.classes is not None:
        counted.merge(of_texts)
    fitted = sample.cut(0, fit_encoding.sample_rows(job.row_kind))
    texts = {name: dictionary.texts for name, dictionary in scan.dictionaries.items()}
    coding = fit_encoding.learn(scan.kinds, counted, fitted.rows, texts, job.options, tallies)
    vocabulary = vocabulary.learned(coding)
    label_values = None if label.classes is not None else fitted.labels
    bins = Distributions.of(coding, fitted.rows, label_values, label.name)
    by_class = (
        np.zeros((3, 0), np.int64) if label.classes is None else scan.labels.class_counts(label)
    )
    plan = Plan(job, base, label, coding, bins, vocabulary)
    train = Train(sample.rows, sample.labels[:SAMPLE_ROWS], counted, by_class, tallies)
    return plan, shards, train


def _vocabulary(scan: Scan, label: Label) -> Vocabulary:
    """Return the codes of the dataset, which follow the order of the source."""
    classes = None
    if label.classes is not None:
        classes = dict(zip(scan.labels.codes, label.class_of.tolist(), strict=True))
    dictionaries, bins = scan.dictionaries, scan.job.options.hash_bins
    columns = (feature.name for feature in scan.kinds.in_field(CODES))
    return Vocabulary(
        classes,
        tuple(dictionaries[name].codes if name in dictionaries else bins for name in columns),
    )


def _sample(
    rows: SortedRows, job: Job, files: Sequence[BucketFile], counts: np.ndarray, label: Label
) -> Sorted:
    """Return the first rows of train, given the rows of each bin; none if nothing needs them."""
    numeric = [*job.kinds.in_field(FLOATS), *job.kinds.in_field(WHOLES)]
    if not numeric and label.classes is not None:
        return Sorted(np.empty(0, job.row_kind), np.empty(0))
    row_count = max(fit_encoding.sample_rows(job.row_kind), sample_rows(job.row_kind))
    train = int(np.searchsorted(split_of(job.bins.edges, job.fractions), 1))
    last = min(int(np.searchsorted(np.cumsum(counts[:train]), row_count)) + 1, train)
    # Without their strings, which may be far larger.
    pieces = [(part.rows, part.labels) for part in rows.read(rows.range(files, counts, 0, last))]
    sample = Sorted(
        joined([np.empty(0, job.row_kind), *(part_rows for part_rows, _ in pieces)]),
        np.concatenate([np.empty(0), *(labels for _, labels in pieces)]),
    )
    return sample.cut(0, row_count)


def _shards(
    scan: Scan, plan: Plan, shards: Sequence[Shard]
) -> tuple[Statistics, Distributions, list[ManifestObject], list[str]]:
    """Write the shards, and merge what they say of their rows; return their digests as well."""
    progress = ProgressLog("wrote", sum(shard.size for shard in shards))
    statistics = Statistics.empty(plan.coding, plan.label)
    distributions = replace(plan.bins)
    objects: list[ManifestObject] = []
    digests: list[str] = []
    results = scan.executor.map(_TASK, plan, shards)
    for shard, done in zip(shards, results, strict=True):
        progress.add(shard.rows, shard.size)
        statistics.merge(done.statistics)
        distributions.merge(done.distributions)
        objects.append(done.object)
        digests.append(done.digest)
    progress.log()
    return statistics, distributions, objects, digests


def _note_overlap(
    statistics: StatisticsDocument,
    shared: dict[str, int],
    rows: dict[str, int],
    noun: str,
    overlap: str,
) -> StatisticsDocument:
    """Add to statistics.json what validation and test share with train, and warn of it."""
    warnings = (
        f"{count:,} of {rows[split]:,} {noun} of {split} {overlap}; they stay where they are"
        for split, count in shared.items()
        if count
    )
    return replace(statistics, also_in_train=shared, warnings=(*statistics.warnings, *warnings))


def _schema_of(
    label: Label,
    features: Sequence[SchemaFeature],
    options: DataOptions,
    split_rule: Mapping[str, str | int],
    splits: Mapping[str, SchemaSplit],
    **incomparable: Any,
) -> Schema:
    """Return schema.json with its digest; fields in `more` are not comparable.

    `split_rule` is what decides about the split besides salt and fractions.
    """
    schema = Schema(
        task=label.task,
        features=tuple(features),
        label=SchemaLabel(label.name, label.classes),
        split={"salt": options.split.salt, "fractions": options.split.fractions, **split_rule},
        codec={"version": CODEC_VERSION, "layout": CODEC_LAYOUT},
        splits=splits,
        **incomparable,
    )
    return replace(schema, schema_digest=schema.digest())


def _megapixels(options: DataOptions) -> float | None:
    """Return the limit of images for schema.json; None if it is the default."""
    limit, default = options.images.max_megapixels, ImageOptions().max_megapixels
    return None if limit == default else limit


def _complete(
    store: Store,
    base: S3Address,
    shards: list[ManifestObject],
    schema: Schema,
    statistics: StatisticsDocument,
    distributions: DistributionsDocument | None = None,
) -> Prepared:
    """Store the documents of a dataset and, last, its manifest with the shards that are stored."""
    written = {SCHEMA: schema.to_bytes(), STATISTICS: statistics.to_bytes()}
    if distributions:
        written[DISTRIBUTIONS] = distributions.to_bytes()
    objects = list(shards)
    for name, data in written.items():
        checksum = store.write(base / name, data, "application/json")
        objects.append(ManifestObject(name, len(data), checksum))
    details = {
        "rows": schema.rows,
        "task": schema.task,
        "features": len(schema.features),
        "schema_digest": schema.schema_digest,
    }
    manifest = Manifest.of("dataset", objects, details=details)
    store.write(base / MANIFEST, manifest.to_bytes(), "application/json")
    return Prepared(str(base), base.name, schema, statistics, reused=False)
