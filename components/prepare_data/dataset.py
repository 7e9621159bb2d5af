"""Finds and writes datasets: shards, schema.json, statistics.json and, last, manifest.json.

They hold no name of a source file, no address and no time, so equal rows give equal bytes.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from kfp_tfjob.components.prepare_data import learned
from kfp_tfjob.components.prepare_data.column_statistics import AnyColumns, left_out_warnings
from kfp_tfjob.components.prepare_data.kinds import Kinds
from kfp_tfjob.components.prepare_data.progress import ProgressLog
from kfp_tfjob.components.prepare_data.raw_rows import RawRows
from kfp_tfjob.components.prepare_data.scan import Scan
from kfp_tfjob.components.prepare_data.shards import Shards
from kfp_tfjob.components.prepare_data.spill import split_of
from kfp_tfjob.components.prepare_data.statistics import SPLITS, Described, Numbers, Statistics
from kfp_tfjob.components.prepare_data.tfrecord import Encoder
from kfp_tfjob.components.prepare_data.vocabulary import Label
from kfp_tfjob.options.data import DataOptions
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.errors import ObjectNotFoundError
from kfp_tfjob.storage.layout import (
    CODEC_VERSION,
    MANIFEST,
    SCHEMA,
    SCHEMA_FORMAT,
    STATISTICS,
    TEST_RAW,
)
from kfp_tfjob.storage.manifest import Manifest, ManifestObject
from kfp_tfjob.storage.store import Store
from kfp_tfjob.trainer.coding import BOOLEAN, CATEGORY, NUMBER, TEXT, Coding

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
        reused: Whether it existed already.
    """

    dataset_uri: str
    dataset_digest: str
    rows: dict[str, int]
    schema: dict[str, Any]
    statistics: dict[str, Any]
    reused: bool

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics that the pipeline shows."""
        found = {f"rows_{split}": count for split, count in self.rows.items()}
        found["features"] = len(self.schema["features"])
        found["classes"] = len(self.schema["label"]["classes"] or ())
        found["duplicate_rows"] = self.statistics["duplicates"]
        found["bad_rows_dropped"] = self.statistics["bad_rows"]["dropped"]
        return {name: float(value) for name, value in found.items()}


def find(store: Store, base: S3Address, digest: str) -> Prepared | None:
    """Return a complete dataset, or None: its manifest exists, and every object has its size.

    Raises:
        DataError: The object at its manifest's address is not a manifest.
    """
    try:
        found = store.read_manifest(base / MANIFEST)
    except ObjectNotFoundError:
        return None
    sizes = {item.address: item.size for item in store.list(base)}
    lost = [item.key for item in found.objects if sizes.get(base / item.key) != item.size]
    if lost:
        log.warning("dataset %s lacks %s and is written again", base, ", ".join(lost[:5]))
        return None
    # They grow with the number of columns and labels, so the usual limit on a read does not apply.
    schema = json.loads(store.read(base / SCHEMA, sizes[base / SCHEMA]))
    statistics = json.loads(store.read(base / STATISTICS, sizes[base / STATISTICS]))
    rows = {split: schema["splits"][split]["rows"] for split in SPLITS}
    return Prepared(str(base), digest, rows, schema, statistics, reused=True)


def write(
    store: Store,
    base: S3Address,
    digest: str,
    scan: Scan,
    label: Label,
    options: DataOptions,
    folder: Path,
) -> Prepared:
    """Store the shards, schema.json, statistics.json and the manifest.

    Args:
        store: The store.
        base: The directory of the dataset; files of an interrupted run are overwritten.
        digest: Its name.
        scan: The rows.
        label: The label and its classes.
        options: The typed `data_options`.
        folder: Local folder for one shard at a time.
    """
    store.probe(base)  # from now on, checksums that it does not verify are verified here
    rows = scan.rows(label)
    coding = None if scan.kinds.plain else learned.learn(scan, label, options)
    described = _described(scan, coding)
    statistics = Statistics(described, _places(scan.kinds), label)
    classes = None if label.classes is None else len(label.classes)
    floats, codes, dates = (scan.spill.kind[key].shape[0] for key in ("features", "codes", "dates"))
    encoder = Encoder(floats, classes, codes, dates)
    shards = Shards(store, base, folder, encoder, rows)
    raw = RawRows(folder / TEST_RAW, coding, label, scan.texts) if coding else None
    fractions = list(options.split.fractions.values())
    progress = ProgressLog("wrote")
    for part in scan.spill.bins():
        part, labels = learned.in_order(part, label)
        split = split_of(part["hash"], fractions)
        statistics.add(part, split, labels)
        for i, name in enumerate(SPLITS):
            start, end = np.searchsorted(split, (i, i + 1))
            shards.add(name, part[start:end], labels[start:end])
            if raw and name == "test":
                raw.add(part[start:end], labels[start:end])
        progress.add(len(part), len(part) * encoder.record_bytes)
    progress.log()
    objects = list(shards.objects)
    if raw:
        raw.close()
        objects.append(store.send(folder / TEST_RAW, base / TEST_RAW, TEST_RAW))
    schema = _schema(scan, coding, label, options, rows, shards.names)
    faults = scan.faults
    described = statistics.to_dict(faults.seen, faults.counts(), rows, faults.left_out)
    if scan.crossing:
        described["also_in_train"] = scan.crossing.count()
        described["warnings"] += _crossing_warnings(described["also_in_train"], rows)
    details = {
        "rows": rows,
        "task": label.task,
        "features": len(schema["features"]),
        "schema_digest": schema["schema_digest"],
    }
    objects += [
        _write_json(store, base, SCHEMA, schema),
        _write_json(store, base, STATISTICS, described),
    ]
    whole = Manifest.of("dataset", objects, details=details)
    store.write(base / MANIFEST, whole.to_bytes(), "application/json")
    return Prepared(str(base), digest, rows, schema, described, reused=False)


def _crossing_warnings(shared: dict[str, int], rows: dict[str, int]) -> list[str]:
    return [
        f"{count:,} of {rows[split]:,} rows of {split} have the same features as a row of train;"
        " they stay where they are"
        for split, count in shared.items()
        if count
    ]


def _described(scan: Scan, coding: Coding | None) -> Described:
    if coding:
        return AnyColumns(coding, scan.kinds)
    return Numbers(scan.columns.features, left_out_warnings(scan.kinds))


def _places(kinds: Kinds) -> dict[str, tuple[str, int]]:
    """Return for each feature that may copy the label its array in the spill, and its column."""
    groups = {"features": (NUMBER, BOOLEAN), "codes": (CATEGORY, TEXT)}
    hashed = kinds.of(TEXT)
    return {
        name: (group, j)
        for group, of in groups.items()
        for j, name in enumerate(kinds.of(*of))
        if name not in hashed
    }


def _schema(
    scan: Scan,
    coding: Coding | None,
    label: Label,
    options: DataOptions,
    rows: dict[str, int],
    shards: dict[str, list[str]],
) -> dict[str, Any]:
    """Return schema.json; its digest covers what makes two models comparable, but no counts."""
    names = scan.columns.features
    numbers = {"features": [{"name": name, "type": "float32"} for name in names]}
    columns = coding.to_schema() if coding else numbers
    comparable = {
        "task": label.task,
        "features": columns["features"],
        "label": {
            "name": label.name,
            "classes": None if label.classes is None else list(label.classes),
        },
        "split": {
            "salt": options.split.salt,
            "fractions": options.split.fractions,
            **scan.split_rule,
        },
    }
    text = json.dumps(comparable, sort_keys=True, ensure_ascii=False)
    more: dict[str, Any] = {"coding": columns["coding"], "test_raw": TEST_RAW} if coding else {}
    left_out = [{"name": item.name, "reason": item.reason} for item in scan.kinds.left_out]
    if coding:
        left_out += [{"name": name, "reason": "data_options.drop"} for name in options.drop]
    return {
        "format": SCHEMA_FORMAT,
        **comparable,
        "schema_digest": sha256(text.encode()).hexdigest(),
        **more,
        **({"left_out": left_out} if left_out else {}),
        "codec": {"version": CODEC_VERSION, "layout": "packed"},
        "splits": {split: {"rows": rows[split], "shards": shards[split]} for split in SPLITS},
    }


def _write_json(store: Store, base: S3Address, name: str, body: object) -> ManifestObject:
    data = (json.dumps(body, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()
    checksum = store.write(base / name, data, "application/json")
    return ManifestObject(name, len(data), checksum)
