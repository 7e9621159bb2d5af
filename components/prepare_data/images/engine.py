"""Turns folders of pictures into a finished dataset in the store.

Each file is read once: it is checked and hashed, and its record goes into the run of its part
(parts.py). From the index of all pictures follow the splits, the model's input and the shards,
which are then merged from the runs.
"""

from __future__ import annotations

import logging

import numpy as np

from kfp_tfjob.components.prepare_data import dataset, row_requirements
from kfp_tfjob.components.prepare_data.dataset import Prepared
from kfp_tfjob.components.prepare_data.executors.executor import Executor, ProgressLog
from kfp_tfjob.components.prepare_data.faults import Faults
from kfp_tfjob.components.prepare_data.images import parts
from kfp_tfjob.components.prepare_data.images.folders import LABEL
from kfp_tfjob.components.prepare_data.images.plan import Plan
from kfp_tfjob.components.prepare_data.source.files import Source
from kfp_tfjob.components.prepare_data.vocabulary import Label
from kfp_tfjob.features.schema import SchemaFeature, SchemaSplit
from kfp_tfjob.features.statistics import SPLITS
from kfp_tfjob.options.data import DataOptions
from kfp_tfjob.options.pictures import PICTURE
from kfp_tfjob.storage.address import S3Address

log = logging.getLogger(__name__)


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
