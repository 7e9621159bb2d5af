"""Prepares a replica as its init container: `python -m kfp_tfjob.components.launch_tfjob.setup`.

It puts the supervisor, the user's code and the dataset into JOB_DIR, the dataset as Parquet or as
`.npy` files. On the chief, it restores the files of earlier attempts into OUTPUT_DIR. It verifies
every byte from the store.
"""

from __future__ import annotations

import os
import signal

# PID 1 ignores a signal that it does not handle. The next pod repeats unfinished downloads.
if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, _frame: os._exit(128 + number))

import logging
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from kfp_tfjob.common.errors import ConfigurationError, Problem, StepError
from kfp_tfjob.common.log_format import log_to
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import CODE, RunLayout
from kfp_tfjob.supervisor.pack import NAME, pack

if TYPE_CHECKING:
    from kfp_tfjob.storage.store import Store

log = logging.getLogger(__name__)


def run(environment: Mapping[str, str], open_store: Callable[[], Store]) -> int | None:
    """Prepare a replica by the variables that the job manifest sets.

    Returns:
        The step of the checkpoint that was restored, or None.

    Raises:
        ConfigurationError: Variables are missing or are not addresses, the disk is too small, or
            the dataset cannot be converted to `.npy` files.
        DataError: The user's code or the dataset in the store is missing or damaged.
    """
    from kfp_tfjob.storage.layout import is_for_training
    from kfp_tfjob.uploader import pull

    ConfigurationError.raise_if(
        Problem(f"{name} is not set", fix="start replicas through launch_tfjob")
        for name in ("JOB_DIR", "OUTPUT_DIR", "RUN_URI")
        if not environment.get(name)
    )
    job, output = Path(environment["JOB_DIR"]), Path(environment["OUTPUT_DIR"])
    run_layout = RunLayout(S3Address.parse(environment["RUN_URI"], "RUN_URI"))
    code, data = environment.get("CODE_URI"), environment.get("DATA_DIR")
    restores = environment.get("RESTORE") == "1"
    for folder in (job / "home", job / "tmp", output):
        folder.mkdir(parents=True, exist_ok=True)
    pack(job / NAME)
    if not (code or data or restores):
        return None
    store = open_store()
    if code:
        pull(store, S3Address.parse(code, "CODE_URI"), job / CODE)
    if data:
        dataset = S3Address.parse(environment.get("DATASET_URI", ""), "DATASET_URI")
        if environment.get("STAGE_DATA") == "npy":
            from .npy_columns import stage_npy

            stage_npy(store, dataset, Path(data))
        else:
            pull(store, dataset, Path(data), only=is_for_training)
    if not restores:
        return None
    from .restore import restore

    return restore(store, run_layout, output)


def _open_store() -> Store:
    from kfp_tfjob.storage.store import Store

    return Store(os.environ.get("AWS_ENDPOINT_URL", ""), os.environ.get("AWS_REGION", ""))


def main() -> int:
    """Prepare the replica of this process."""
    logging.basicConfig(level=logging.INFO, handlers=[log_to(sys.stdout)])
    logging.getLogger("botocore").setLevel(logging.WARNING)
    try:
        run(os.environ, _open_store)
    except StepError as error:
        log.error("%s", error)
        return error.code
    return 0


if __name__ == "__main__":
    sys.exit(main())
