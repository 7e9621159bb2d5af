"""Prepares the disks of a replica: fetches the dataset, and checks the space for the output.

Each replica has its own copy, because training reads every row in each epoch. Called by
`__main__.py` before the model is built, so a full disk ends a run before it has used GPUs.
"""

from __future__ import annotations

import os
import resource
from pathlib import Path

from kfp_tfjob.common.errors import ConfigurationError, Problem
from kfp_tfjob.features.statistics import SPLITS
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import is_for_training, is_shard_of
from kfp_tfjob.storage.manifest import Manifest
from kfp_tfjob.storage.store import Store
from kfp_tfjob.uploader import pull

from .encoded_rows import EncodedDocument


def stage(store: Store, dataset: S3Address, folder: Path, encoded: Path) -> Manifest:
    """Fetch a dataset without its test rows, and verify it with its manifest.

    Files from an earlier start of this replica are kept if they are intact. If that start has
    encoded the rows, the shards are not needed again.

    Args:
        store: The store of the dataset.
        dataset: The dataset's address.
        folder: The target folder.
        encoded: The folder of the encoded rows.

    Returns:
        The dataset's manifest.

    Raises:
        DataError: Objects are missing or do not match the manifest.
        ConfigurationError: The disk is too small, or cannot be written to.
    """
    try:
        document = EncodedDocument.read(encoded)
        if document:
            manifest = pull(store, dataset, folder, only=_is_no_shard)
            if document.dataset == manifest.digest:
                return manifest
        return pull(store, dataset, folder, only=is_for_training)
    except OSError as error:
        raise not_writable(folder, "the dataset", error) from error


def _is_no_shard(key: str) -> bool:
    return not any(is_shard_of(split, key) for split in SPLITS)


def work_in(output: Path) -> None:
    """Make OUTPUT_DIR the working folder, so that files with relative paths are output.

    The folder is tested now, because the first write may come only after an epoch.

    Raises:
        ConfigurationError: It is not writable.
    """
    probe = output / ".writable.tmp"
    try:
        output.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"x")
        probe.unlink()
        os.chdir(output)
    except OSError as error:
        raise not_writable(output, "the output", error) from error
    # A crash must not write the process's memory, a core dump, into the output.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


def not_writable(folder: Path, content: str, error: OSError) -> ConfigurationError:
    """Return the error for a folder to which `content`, such as `the output`, cannot be written."""
    return ConfigurationError(
        Problem(
            f"{content} cannot be written to {folder}",
            received=error.strerror or str(error),
            expected="a writable folder with enough space",
            fix="correct the owner of the volume or give it more space; pod.all.ephemeral_storage"
            " sets the space of a pod's own disk, and train_options.checkpoint_keep the number of"
            " checkpoints",
            name="folder-not-writable",
        )
    )
