"""Sets how much of their node's disk the replicas may use, if the run does not.

A replica's disk holds the shards, the rows that the trainer encodes from them, and its output. A
pod that uses more is evicted. Called by engine.py.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from kfp_tfjob.common.errors import ObjectNotFoundError
from kfp_tfjob.common.formatting import sized
from kfp_tfjob.jobs.spec import JobSpec
from kfp_tfjob.options.pod import DEFAULTS, bytes_of
from kfp_tfjob.options.train import NPY
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import LONGEST_SCHEMA, MANIFEST, SCHEMA, is_for_training
from kfp_tfjob.storage.manifest import Manifest

from ..step import Step

log = logging.getLogger(__name__)

_GIB = 1 << 30
_FOR_OUTPUT = 10 * _GIB  # of the default, which has as much for the data
# Bytes of an encoded value; a column of .npy files has at most 8 bytes for each row.
_PACKED_VALUE, _NPY_VALUE = 4, 8
_MOST_PACKED = 8  # packed columns of a feature: the parts of a date, and the indicator
_LABEL_AND_WEIGHT = 12  # bytes of a row


def with_disk(step: Step, spec: JobSpec) -> JobSpec:
    """Return the job with the disk that its data needs.

    Raises:
        StoreError: The store does not answer.
    """
    if not spec.dataset_uri or spec.options.stage_data is False or spec.pod.all.ephemeral_storage:
        return spec
    dataset = S3Address.parse(spec.dataset_uri, "dataset_uri")
    try:
        manifest = step.store.read_manifest(dataset / MANIFEST)
    except ObjectNotFoundError:
        return spec  # a program may read files of any kind
    stored = sum(item.size for item in manifest.objects if is_for_training(item.key))
    needed = stored + _encoded_bytes(step, spec, dataset, manifest)
    default = int(bytes_of(DEFAULTS["ephemeral_storage"]))
    if needed + _FOR_OUTPUT <= default:
        return spec
    quantity = f"{-(-(needed + _FOR_OUTPUT) // _GIB)}Gi"
    log.info("pod.all.ephemeral_storage: %s, because the data needs %s", quantity, sized(needed))
    everyone = spec.pod.all.model_copy(update={"ephemeral_storage": quantity})
    return replace(spec, pod=spec.pod.model_copy(update={"all": everyone}))


def _encoded_bytes(step: Step, spec: JobSpec, dataset: S3Address, manifest: Manifest) -> int:
    """Return the bytes that the rows take besides the shards: at most, if these are few."""
    from kfp_tfjob.features.schema import Schema
    from kfp_tfjob.features.statistics import TRAINING_SPLITS

    rows, features = manifest.details.get("rows"), manifest.details.get("features")
    if not isinstance(rows, dict) or not isinstance(features, int):
        return 0
    count = sum(rows.get(split, 0) for split in TRAINING_SPLITS)
    if spec.options.command:
        is_converted = spec.options.stage_data == NPY
        return count * (features + 1) * _NPY_VALUE if is_converted else 0
    most = count * (features * _MOST_PACKED * _PACKED_VALUE + _LABEL_AND_WEIGHT)
    if most < _GIB:
        return most
    schema = Schema.from_bytes(step.store.read(dataset / SCHEMA, LONGEST_SCHEMA))
    if schema.picture:
        return 0  # each shard is deleted once its images are copied
    return count * (schema.encoding.width * _PACKED_VALUE + _LABEL_AND_WEIGHT)
