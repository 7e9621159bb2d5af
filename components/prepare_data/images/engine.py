"""Turns folders of pictures into a finished dataset in the store.

Each file is read once: it is checked and hashed, and its record goes into the run of its part
(parts.py). From the index of all pictures follow the splits, the model's input and the shards
(plan.py), which are then merged from the runs.
"""

from __future__ import annotations

import json
import logging
from hashlib import sha256
from typing import Any

from kfp_tfjob.components.prepare_data import row_requirements
from kfp_tfjob.components.prepare_data.dataset import Prepared
from kfp_tfjob.components.prepare_data.executors.exchange import discard
from kfp_tfjob.components.prepare_data.executors.executor import Executor
from kfp_tfjob.components.prepare_data.faults import Faults
from kfp_tfjob.components.prepare_data.images import parts
from kfp_tfjob.components.prepare_data.images.check import LABEL
from kfp_tfjob.components.prepare_data.images.plan import Plan
from kfp_tfjob.components.prepare_data.progress import ProgressLog
from kfp_tfjob.components.prepare_data.source.files import Source
from kfp_tfjob.components.prepare_data.statistics import SPLITS
from kfp_tfjob.features.types.image import PictureInput
from kfp_tfjob.options.data import DataOptions
from kfp_tfjob.options.pictures import PICTURE
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import CODEC_VERSION, MANIFEST, SCHEMA, SCHEMA_FORMAT, STATISTICS
from kfp_tfjob.storage.manifest import Manifest, ManifestObject
from kfp_tfjob.storage.store import Store

log = logging.getLogger(__name__)


def prepare(
    store: Store,
    executor: Executor,
    source: Source,
    data_label: str,
    options: DataOptions,
    base: S3Address,
    digest: str,
) -> Prepared:
    """Prepare a dataset of pictures.

    Args:
        store: The store.
        executor: Runs the tasks.
        source: Pictures.
        data_label: The name of the label; empty for `class`.
        options: The typed `data_options`.
        base: The directory of the dataset.
        digest: Its name.

    Raises:
        DataError: There are more bad files than the options allow, a file changed, a split has no
            pictures, or train has none of a class.
    """
    store.probe(base)  # from now on, checksums that it does not verify are verified here
    label = data_label.strip() or LABEL
    folders = source.pictures
    assert folders
    for note in folders.notes:
        log.warning("%s", note)
    faults, runs = Faults(), {}
    progress = ProgressLog("read", source.size)
    items = parts.parts_of(source, options, executor.context.exchange)
    for (_, files, size), result in zip(items, executor.map(parts.READ, items), strict=True):
        faults.merge(Faults.from_plain(result["faults"]))
        runs[result["run"]] = parts.index_of(result)
        progress.add(files, size)
    progress.log()
    row_requirements.check_bad(faults, faults.image_problems, options, row_requirements.PICTURES)
    by_folder = source.splits_by_folder and options.split.folders
    rule: dict[str, Any] = {"folders": True} if by_folder else {}
    plan = Plan.of(runs, folders.classes, options)
    plan.enough(label, options, rule)
    wanted = plan.input(options.pictures)
    shards = list(plan.shards(str(base)))
    names: dict[str, list[str]] = {split: [] for split in SPLITS}
    for split, item in shards:
        names[split].append(item["name"])
    progress = ProgressLog("wrote", int(plan.index["record"].sum(dtype=int)))
    objects = []
    items = [item for _, item in shards]
    for item, result in zip(items, executor.map(parts.WRITE, items), strict=True):
        objects.append(parts.sent(result))
        progress.add(len(parts.array_of(item["order"])), objects[-1].size)
    progress.log()
    schema = _schema(plan, label, options, rule, wanted, names)
    described = plan.statistics(label, len(source.files), faults.counts(), folders.notes, wanted)
    if by_folder:
        described["also_in_train"] = plan.also_in_train()
        described["warnings"] += [
            f"{count:,} of {plan.rows[split]:,} pictures of {split} are also in train; they stay"
            " where they are"
            for split, count in described["also_in_train"].items()
            if count
        ]
    details = {
        "rows": plan.rows,
        "task": schema["task"],
        "features": 1,
        "schema_digest": schema["schema_digest"],
    }
    objects += [
        _write_json(store, base, SCHEMA, schema),
        _write_json(store, base, STATISTICS, described),
    ]
    whole = Manifest.of("dataset", objects, details=details)
    store.write(base / MANIFEST, whole.to_bytes(), "application/json")
    discard(executor.context.exchange)
    return Prepared(str(base), digest, plan.rows, schema, described, reused=False)


def _schema(
    plan: Plan,
    label: str,
    options: DataOptions,
    rule: dict[str, Any],
    wanted: PictureInput,
    shards: dict[str, list[str]],
) -> dict[str, Any]:
    """Return schema.json.

    Its digest covers what makes two models comparable. Models take the bytes of the files, so the
    size of their input is not part of it.
    """
    comparable = {
        "task": "classification",
        "features": [{"name": PICTURE, "type": PICTURE}],
        "label": {"name": label, "classes": list(plan.classes)},
        "split": {"salt": options.split.salt, "fractions": options.split.fractions, **rule},
    }
    text = json.dumps(comparable, sort_keys=True, ensure_ascii=False)
    return {
        "format": SCHEMA_FORMAT,
        **comparable,
        "schema_digest": sha256(text.encode()).hexdigest(),
        PICTURE: wanted.to_plain(),
        "codec": {"version": CODEC_VERSION, "layout": "encoded"},
        "splits": {split: {"rows": plan.rows[split], "shards": shards[split]} for split in SPLITS},
    }


def _write_json(store: Store, base: S3Address, name: str, body: object) -> ManifestObject:
    data = (json.dumps(body, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()
    checksum = store.write(base / name, data, "application/json")
    return ManifestObject(name, len(data), checksum)
