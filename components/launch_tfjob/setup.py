"""The init container of every replica: `python -m components.launch_tfjob.setup`.

It puts into JOB_DIR what the replica runs, and on the chief into OUTPUT_DIR what an earlier attempt
of the run has stored. Every byte that comes from the store is proven by a manifest.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from storage.address import S3Address
from storage.errors import ConfigurationError, DataError, ObjectNotFoundError, Problem, StepError
from storage.layout import RunLayout

if TYPE_CHECKING:
    from storage.store import Store

log = logging.getLogger(__name__)
_REPOSITORY = Path(__file__).parents[2]


@dataclass(frozen=True)
class Task:
    """What a replica needs before it starts.

    Attributes:
        job_dir: Scratch of the replica.
        output_dir: Where the chief writes.
        run: The run in the store.
        code: The copy of the user's code; None when the image has it.
        dataset: The prepared dataset; None where nobody needs it in a folder.
        data_dir: That folder.
        restore: Whether this replica goes on from what is stored: the chief.
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
    from uploader import pull

    for folder in (task.job_dir / "home", task.job_dir / "tmp", task.output_dir):
        folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(_REPOSITORY / "trainer/supervisor.py", task.job_dir / "supervisor.py")
    if not (task.code or task.dataset or task.restore):
        return None
    store = open_store()
    if task.code:
        pull(store, task.code, task.job_dir / "code")
    if task.dataset:
        # A program that could read the test rows would be judged by what it has seen.
        pull(store, task.dataset, task.data_dir, only=lambda key: not key.startswith("test-"))
    return restore(task, store) if task.restore else None


def restore(task: Task, store: Store) -> int | None:
    """Bring the newest stored checkpoint that verifies, and the lines written before it.

    The one that the trainer calls the best comes too, or the sidecar would remove it from the
    store as one that the trainer has removed.

    Returns:
        Its step, or None when there is no checkpoint to go on from.
    """
    stored = store.numbers(task.run.checkpoints)
    for step in reversed(stored):
        if (task.output_dir / "checkpoints" / str(step)).exists():
            return step
        if _fetch_checkpoint(task, store, step):
            _restore_progress(task, store)
            log.info("checkpoint %d is restored", step)
            best = _best_step(task.output_dir / "checkpoints" / str(step))
            if best in stored and best != step and _fetch_checkpoint(task, store, best):
                log.info("checkpoint %d is restored, the best one", best)
            return step
    return None


def _fetch_checkpoint(task: Task, store: Store, step: int) -> bool:
    """Bring a checkpoint, which appears whole or not at all; tell whether it did."""
    from uploader import pull

    folder = task.output_dir / "checkpoints"
    partial = folder / f".{step}.part"
    try:
        pull(store, task.run.checkpoints / str(step), partial)
    except ObjectNotFoundError:
        log.info("checkpoint %d is not complete in the store", step)
    except DataError as error:
        log.warning("checkpoint %d is not used: %s", step, error)
    else:
        partial.rename(folder / str(step))
        return True
    shutil.rmtree(partial, ignore_errors=True)
    return False


def _best_step(folder: Path) -> int | None:
    """Return the step that a checkpoint of the project's trainer calls the best, if it does."""
    try:
        return json.loads((folder / "checkpoint.json").read_text())["best_checkpoint"]["step"]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _restore_progress(task: Task, store: Store) -> None:
    """Bring the progress lines, which the trainer cuts back to its checkpoint."""
    try:
        lines = store.read(task.run.output / "progress.jsonl")
    except ObjectNotFoundError:
        return
    (task.output_dir / "progress.jsonl").write_bytes(lines)


def _open_store() -> Store:
    from storage.store import Store  # half a second, which most replicas need not spend

    return Store(os.environ.get("AWS_ENDPOINT_URL", ""), os.environ.get("AWS_REGION", ""))


def main() -> int:
    """Prepare the replica this process belongs to."""
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S", stream=sys.stdout
    )
    logging.getLogger("botocore").setLevel(logging.WARNING)
    try:
        run(Task.from_environment(os.environ), _open_store)
    except StepError as error:
        log.error("%s", error)
        return error.code
    return 0


if __name__ == "__main__":
    sys.exit(main())
