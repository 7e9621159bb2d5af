"""prepare_data: from the files of data_uri to a finished dataset in the store.

1. The dataset has a name that depends on data, label and options; if it is there, it is used.
2. The source is read once, block by block: rows are checked, hashed and laid on local disk; labels
   are counted. Then it is known what the task is and whether every split has what it needs.
3. The rows are taken back in the order of their hashes, counted, encoded and stored as shards; then
   schema.json, statistics.json and, last, manifest.json.
"""

from __future__ import annotations

import errno
import json
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from components.parameters import parse
from components.prepare_data.csv_records import BLOCK
from components.prepare_data.faults import Faults
from components.prepare_data.files import Source
from components.prepare_data.header import choose, no_rows
from components.prepare_data.options import DataOptions
from components.prepare_data.shards import Shards
from components.prepare_data.source import list_source
from components.prepare_data.source import source_digest as digest_of
from components.prepare_data.spill import Spill, row_hashes, split_of
from components.prepare_data.statistics import SPLITS, Statistics
from components.prepare_data.tables import Columns, open_table
from components.prepare_data.tfrecord import CODEC_VERSION, Encoder
from components.prepare_data.vocabulary import Label, Vocabulary
from components.step import Step
from storage import manifest
from storage.address import S3Address
from storage.errors import DataError, ObjectNotFoundError, Problem, StepError
from storage.manifest import Manifest, ManifestObject
from storage.store import Store

SCHEMA_FORMAT = "kfp-tfjob/schema/1"
_LOG_SECONDS = 5.0

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Prepared:
    """A finished dataset.

    Attributes:
        dataset_uri: Its directory, `s3://.../datasets/<digest>`.
        dataset_digest: 32 hexadecimal digits.
        rows: Rows by split.
        schema: The content of schema.json.
        statistics: The content of statistics.json.
        reused: Whether it was there already.
    """

    dataset_uri: str
    dataset_digest: str
    rows: dict[str, int]
    schema: dict[str, Any]
    statistics: dict[str, Any]
    reused: bool

    @property
    def metrics(self) -> dict[str, float]:
        """What the pipeline shows as metrics."""
        found = {f"rows_{split}": count for split, count in self.rows.items()}
        found["features"] = len(self.schema["features"])
        found["classes"] = len(self.schema["label"]["classes"] or ())
        found["duplicate_rows"] = self.statistics["duplicates"]
        found["bad_rows_dropped"] = self.statistics["bad_rows"]["dropped"]
        return {name: float(value) for name, value in found.items()}


@dataclass(frozen=True)
class _Scan:
    columns: Columns
    faults: Faults
    vocabulary: Vocabulary
    spill: Spill


class _Progress:
    """A line at most every five seconds while something long goes on."""

    def __init__(self, verb: str) -> None:
        self._verb, self._rows, self._bytes = verb, 0, 0
        self._start = self._last = time.monotonic()

    def add(self, rows: int, size: int) -> None:
        self._rows += rows
        self._bytes += size
        if time.monotonic() - self._last >= _LOG_SECONDS:
            self.log()

    def log(self) -> None:
        self._last = time.monotonic()
        rate = self._bytes / 1e6 / max(self._last - self._start, 1e-3)
        log.info(
            "%s %s rows, %.1f MB, %.1f MB/s", self._verb, f"{self._rows:,}", self._bytes / 1e6, rate
        )


def run(
    step: Step,
    data_uri: str,
    data_label: str,
    data_options: Mapping[str, Any],
    source_digest: str = "",
    block: int = BLOCK,
) -> Prepared:
    """Prepare a dataset, or find it finished.

    Args:
        step: Where and in which run.
        data_uri: One file or a folder, CSV or Parquet, in S3 or on this machine.
        data_label: The label column.
        data_options: The keys of `options.DataOptions`.
        source_digest: What preflight found; empty to take the source as it is.
        block: Bytes of a CSV to parse at a time; it changes nothing in the result.

    Raises:
        ConfigurationError: The options are wrong.
        DataError: The source is missing, changed since preflight, does not parse, or is not enough
            for three splits.
    """
    options = parse(DataOptions, "data_options", data_options)
    source = list_source(step.store, data_uri)
    digest = options.dataset_digest(_unchanged(source, source_digest), data_label)
    base = step.layout.dataset(digest)
    if finished := _finished(step.store, base, digest):
        log.info("dataset %s is there already and is used as it is", base)
        return finished
    log.info("prepare %s from %d files, %.1f MB", base, len(source.files), source.size / 1e6)
    try:
        with TemporaryDirectory(prefix="prepare-data-") as folder:
            scan = _scan(source, data_label, options, Path(folder), block)
            label = _decide(scan, options)
            schema, statistics = _write(step.store, base, scan, label, options, Path(folder))
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise StepError(
            Problem(
                "the local disk is full",
                received=str(error),
                expected="room for the features as float32: 4 bytes for each value, and 64 MiB",
                fix="give the step more ephemeral storage, or set TMPDIR to a larger disk",
            )
        ) from error
    rows = {split: schema["splits"][split]["rows"] for split in SPLITS}
    log.info("dataset %s is complete: %s", base, rows)
    for warning in statistics["warnings"]:
        log.warning("%s", warning)
    return Prepared(str(base), digest, rows, schema, statistics, reused=False)


def _unchanged(source: Source, expected: str) -> str:
    found = digest_of(source)
    if expected and found != expected:
        raise DataError(
            Problem(
                "the data changed since preflight looked at it",
                received=f"source_digest {found}",
                expected=f"source_digest {expected}",
                fix="start the run again once nobody writes to data_uri any more",
            )
        )
    return found


def _finished(store: Store, base: S3Address, digest: str) -> Prepared | None:
    """Return the dataset if it is complete: its manifest is there, and every object by its size."""
    try:
        found = store.read_manifest(base / manifest.NAME)
    except ObjectNotFoundError:
        return None
    sizes = {item.address: item.size for item in store.list(base)}
    lost = [item.key for item in found.objects if sizes.get(base / item.key) != item.size]
    if lost:
        log.warning("dataset %s has lost %s and is made again", base, ", ".join(lost[:5]))
        return None
    schema = json.loads(store.read(base / "schema.json"))
    statistics = json.loads(store.read(base / "statistics.json"))
    rows = {split: schema["splits"][split]["rows"] for split in SPLITS}
    return Prepared(str(base), digest, rows, schema, statistics, reused=True)


def _scan(source: Source, data_label: str, options: DataOptions, folder: Path, block: int) -> _Scan:
    """Read the source once."""
    scan: _Scan | None = None
    progress = _Progress("read")
    fractions = list(options.split.fractions.values())
    for file in source.files:
        with open_table(source, file, options, block) as table:
            columns, problems = choose(table.names, data_label, options, file.name)
            problems += table.problems(columns) if columns else []
            if scan and columns and set(columns.features) != set(scan.columns.features):
                problems.append(_other_columns(file.name, source.files[0].name, columns, scan))
            DataError.raise_if(problems)
            if scan is None:
                spill = Spill(folder, len(columns.features))
                scan = _Scan(columns, Faults(), Vocabulary(data_label), spill)
            for rows in table.rows(scan.columns):
                scan.faults.add(rows.faults)
                hashes = row_hashes(rows.features, options.split.salt)
                split = split_of(hashes, fractions)
                codes, numbers = scan.vocabulary.add(rows, split)
                scan.spill.add(hashes, codes, numbers, rows.features)
                progress.add(rows.faults.seen, rows.size)
    scan.spill.close()
    progress.log()
    return scan


def _other_columns(name: str, first: str, columns: Columns, scan: _Scan) -> Problem:
    more = sorted(set(columns.features) - set(scan.columns.features))
    fewer = sorted(set(scan.columns.features) - set(columns.features))
    return Problem(
        f"{name} does not have the columns of {first}",
        received="; ".join(
            f"{kind} {', '.join(map(repr, names[:10]))}"
            for kind, names in (("in addition", more), ("without", fewer))
            if names
        ),
        expected="the same columns in every file, in any order",
        fix="name the features with data_options.columns, or leave out with data_options.drop"
        " what not every file has",
    )


def _decide(scan: _Scan, options: DataOptions) -> Label:
    """Decide what the label is; refuse faults that are not allowed and splits that lack rows."""
    faults, vocabulary = scan.faults, scan.vocabulary
    if not faults.seen:
        raise DataError(no_rows("data_uri"))
    if faults.bad and (options.on_bad_row == "fail" or faults.bad == faults.seen):
        raise DataError(*faults.problems())
    label = vocabulary.decide(options.task)
    counts = vocabulary.number_rows.copy()
    if label.classes is not None:
        counts += vocabulary.text_rows
    elif vocabulary.text_rows.any():
        rows = vocabulary.text_fault_rows()
        cells = {(label.name, rule): count for rule, count in rows.items()}
        faults.include(rows, cells, vocabulary.text_faults)
    if faults.bad and options.on_bad_row == "fail":
        raise DataError(*faults.problems())
    if faults.bad > options.max_bad_fraction * faults.seen:
        limit = Problem(
            "more rows are bad than data_options.max_bad_fraction allows",
            received=f"{faults.bad:,} of {faults.seen:,}, a fraction of"
            f" {faults.bad / faults.seen:.3g}",
            expected=f"at most {options.max_bad_fraction:g}",
            fix="correct the data, or raise data_options.max_bad_fraction",
        )
        raise DataError(limit, *faults.problems())
    if faults.bad:
        log.warning("%s", "\n  ".join(map(str, faults.problems())))
    _enough(counts, vocabulary, label, options)
    return label


def _enough(counts: np.ndarray, vocabulary: Vocabulary, label: Label, options: DataOptions) -> None:
    """Refuse a division in which a split has no row, or train has no row of a class."""
    shown = ", ".join(f"{name} {n:,}" for name, n in zip(SPLITS, counts, strict=True))
    if not counts.all():
        raise DataError(
            Problem(
                "a split has no rows",
                received=f"{shown}, with the fractions {options.split.fractions}",
                expected="rows in train, validation and test",
                fix="give more rows, larger fractions or another data_options.split.salt; rows with"
                " equal features always go to the same split",
            )
        )
    if label.classes is None:
        return
    by_class = vocabulary.class_counts(label)
    lacking = [
        f"{name!r} ({total:,} rows)"
        for name, train, total in zip(label.classes, by_class[0], by_class.sum(0), strict=True)
        if not train
    ]
    if lacking:
        more = f" and {len(lacking) - 10} more" if len(lacking) > 10 else ""
        raise DataError(
            Problem(
                f"train has no row of {len(lacking)} of the {len(label.classes)} classes of"
                f" {label.name!r}",
                received=", ".join(lacking[:10]) + more,
                expected="rows of every class in train",
                fix="give more rows of them, leave them out, use another data_options.split.salt,"
                ' or set data_options.task to "regression" if the label is a number',
            )
        )


def _write(
    store: Store,
    base: S3Address,
    scan: _Scan,
    label: Label,
    options: DataOptions,
    folder: Path,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Store the shards, schema.json, statistics.json and the manifest."""
    names = scan.columns.features
    counts = scan.vocabulary.number_rows.copy()
    if label.classes is not None:
        counts += scan.vocabulary.text_rows
    rows = dict(zip(SPLITS, counts.tolist(), strict=True))
    classes = None if label.classes is None else len(label.classes)
    encoder = Encoder(len(names), classes)
    shards = Shards(store, base, folder, encoder, rows)
    statistics = Statistics(names, label)
    fractions = list(options.split.fractions.values())
    progress = _Progress("wrote")
    for part in scan.spill.bins():
        if label.classes is None:
            part = part[~np.isnan(part["number"])]  # labels that are text are bad rows
            labels = part["number"]
        else:
            labels = label.class_of[part["code"]]
        # By the label too, so that equal rows do not stand as the input happened to have them.
        order = np.lexsort((labels, part["hash"]))
        hashes, features, labels = part["hash"][order], part["features"][order], labels[order]
        split = split_of(hashes, fractions)
        statistics.add(hashes, split, features, labels)
        for i, name in enumerate(SPLITS):
            start, end = np.searchsorted(split, (i, i + 1))
            shards.add(name, features[start:end], labels[start:end])
        progress.add(len(part), len(part) * encoder.record_bytes)
    progress.log()
    schema = _schema(names, label, options, rows, shards.names)
    described = statistics.to_dict(scan.faults.seen, scan.faults.counts(), rows)
    details = {
        "rows": rows,
        "task": label.task,
        "features": len(names),
        "schema_digest": schema["schema_digest"],
    }
    objects = [
        *shards.objects,
        _write_json(store, base, "schema.json", schema),
        _write_json(store, base, "statistics.json", described),
    ]
    whole = Manifest.of("dataset", objects, details=details)
    store.write(base / manifest.NAME, whole.to_bytes(), "application/json")
    return schema, described


def _schema(
    names: tuple[str, ...],
    label: Label,
    options: DataOptions,
    rows: dict[str, int],
    shards: dict[str, list[str]],
) -> dict[str, Any]:
    """Return schema.json; its digest covers what makes two models comparable, and no counts."""
    comparable = {
        "task": label.task,
        "features": [{"name": name, "type": "float32"} for name in names],
        "label": {
            "name": label.name,
            "classes": None if label.classes is None else list(label.classes),
        },
        "split": {"salt": options.split.salt, "fractions": options.split.fractions},
    }
    text = json.dumps(comparable, sort_keys=True, ensure_ascii=False)
    return {
        "format": SCHEMA_FORMAT,
        **comparable,
        "schema_digest": sha256(text.encode()).hexdigest(),
        "codec": {"version": CODEC_VERSION, "layout": "packed"},
        "splits": {split: {"rows": rows[split], "shards": shards[split]} for split in SPLITS},
    }


def _write_json(store: Store, base: S3Address, name: str, body: object) -> ManifestObject:
    data = (json.dumps(body, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()
    checksum = store.write(base / name, data, "application/json")
    return ManifestObject(name, len(data), checksum)
