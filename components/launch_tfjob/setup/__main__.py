"""Prepares a replica as its init container: `python -m kfp_tfjob.components.launch_tfjob.setup`.

It puts the supervisor, the user's code and the dataset into JOB_DIR. On the chief, it restores the
files of earlier attempts into OUTPUT_DIR. It verifies every byte from the store.
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
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.errors import ConfigurationError, Problem, StepError
from kfp_tfjob.storage.escaping import log_to
from kfp_tfjob.storage.layout import CODE, RunLayout
from kfp_tfjob.supervisor.pack import NAME, pack

if TYPE_CHECKING:
    from kfp_tfjob.storage.store import Store

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Task:
    """What a replica needs before it starts.

    Attributes:
        job_dir: The scratch folder of the replica.
        output_dir: The folder for the output.
        run: The run in the store.
        code: The copy of the user's code; None if the image has it.
        dataset: The prepared dataset; None if it is not downloaded.
        data_dir: The folder for the dataset.
        restore: Whether to restore stored files; true on the chief.
    """

    job_dir: Path
    output_dir: Path
    run: RunLayout
    code: S3Address | None
    dataset: S3Address | None
    data_dir: Path
    restore: bool

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Task:
        """Read the variables that the job manifest sets.

        Raises:
            ConfigurationError: Variables are missing or are not addresses; one problem for each.
        """
        missing = [
            name for name in ("JOB_DIR", "OUTPUT_DIR", "RUN_URI") if not environment.get(name)
        ]
        ConfigurationError.raise_if(
            Problem(f"{name} is not set", fix="start replicas through launch_tfjob")
            for name in missing
        )
        code, data = environment.get("CODE_URI"), environment.get("DATA_DIR")
        dataset = environment.get("DATASET_URI", "")
        return cls(
            Path(environment["JOB_DIR"]),
            Path(environment["OUTPUT_DIR"]),
            RunLayout(S3Address.parse(environment["RUN_URI"], "RUN_URI")),
            S3Address.parse(code, "CODE_URI") if code else None,
            S3Address.parse(dataset, "DATASET_URI") if data else None,
            Path(data or ""),
            environment.get("RESTORE") == "1",
        )


def run(task: Task, open_store: Callable[[], Store]) -> int | None:
    """Prepare a replica.

    Args:
        task: What the replica needs.
        open_store: Opens the store, which not every replica needs.

    Returns:
        The step of the checkpoint that was restored, or None.

    Raises:
        DataError: The user's code or the dataset in the store is missing or damaged.
    """
    from kfp_tfjob.storage.layout import is_for_training
    from kfp_tfjob.uploader import pull

    for folder in (task.job_dir / "home", task.job_dir / "tmp", task.output_dir):
        folder.mkdir(parents=True, exist_ok=True)
    pack(task.job_dir / NAME)
    if not (task.code or task.dataset or task.restore):
        return None
    store = open_store()
    if task.code:
        pull(store, task.code, task.job_dir / CODE)
    if task.dataset:
        pull(store, task.dataset, task.data_dir, only=is_for_training)
    if not task.restore:
        return None
    from kfp_tfjob.components.launch_tfjob.setup.restore import restore

    return restore(store, task.run, task.output_dir)


def _open_store() -> Store:
    from kfp_tfjob.storage.store import Store

    return Store(os.environ.get("AWS_ENDPOINT_URL", ""), os.environ.get("AWS_REGION", ""))


def main() -> int:
    """Prepare the replica of this process."""
    logging.basicConfig(level=logging.INFO, handlers=[log_to(sys.stdout)])
    logging.getLogger("botocore").setLevel(logging.WARNING)
    try:
        run(Task.from_environment(os.environ), _open_store)
    except StepError as error:
        log.error("%s", error)
        return error.code
    return 0


if __name__ == "__main__":
    sys.exit(main())
