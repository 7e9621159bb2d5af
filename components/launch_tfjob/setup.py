"""The init container of every replica: `python -m kfp_tfjob.components.launch_tfjob.setup`.

It puts into JOB_DIR what the replica runs, and on the chief into OUTPUT_DIR what an earlier attempt
of the run has stored. Every byte that comes from the store is verified.
"""

from __future__ import annotations

import os
import signal

# The first process of a container is not ended by a signal that it does not handle. What is half
# fetched is fetched again by the pod that follows.
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
from kfp_tfjob.storage.layout import CODE, RunLayout
from kfp_tfjob.storage.text import log_to
from kfp_tfjob.supervisor.pack import NAME, pack

if TYPE_CHECKING:
    from kfp_tfjob.storage.store import Store

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Task:
    """What a replica needs before it starts.

    Attributes:
        job_dir: Scratch of the replica.
        output_dir: Where the chief writes.
        run: The run in the store.
        code: The copy of the user's code; None when the image has it.
        dataset: The prepared dataset; None where it is not needed in a folder.
        data_dir: That folder.
        restore: Whether this replica resumes from what is stored: the chief.
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
        """Read what the manifest of the job says.

        Raises:
            ConfigurationError: Variables are missing or no addresses; one problem for each.
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
        task: What it needs.
        open_store: Gives the store with code and checkpoints, which not every replica needs.

    Returns:
        The step of the checkpoint that was restored, or None.

    Raises:
        DataError: The user's code or the dataset in the store is missing or damaged.
    """
    from kfp_tfjob.trainer.staging import is_for_training
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
    from kfp_tfjob.components.launch_tfjob.restore import restore

    return restore(store, task.run, task.output_dir)


def _open_store() -> Store:
    from kfp_tfjob.storage.store import Store

    return Store(os.environ.get("AWS_ENDPOINT_URL", ""), os.environ.get("AWS_REGION", ""))


def main() -> int:
    """Prepare the replica this process belongs to."""
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
