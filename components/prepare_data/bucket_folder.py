"""Where bucket files lie between the task that writes them and the tasks that read them.

That is a folder on local disk, or a prefix in the store: where the disk is too small, or where the
workers of Dask, which share no disk, do the work. A prefix belongs to one run, and no other run
clears it. Called by the executors and wherever buckets are read, written or cleared.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from pathlib import Path

from kfp_tfjob.common import files
from kfp_tfjob.common.errors import DataError, ObjectNotFoundError, Problem, StepError
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.store import Store

log = logging.getLogger(__name__)


class BucketFolder:
    """Files of a local folder; a file appears whole or not at all."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, name: str, data: bytes | memoryview) -> None:
        """Write a file, or replace it: a task that runs twice writes the same bytes."""
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write(path, data)

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """Return the bytes of a file from `start` up to `end`.

        Raises:
            ObjectNotFoundError: There is no such file.
        """
        try:
            with open(self._folder / name, "rb", buffering=0) as file:
                file.seek(start)
                return file.read() if end is None else file.read(end - start)
        except FileNotFoundError:
            raise ObjectNotFoundError(f"{self._folder / name} does not exist") from None

    def delete(self, name: str) -> None:
        """Delete a file."""
        (self._folder / name).unlink(missing_ok=True)

    def clear(self, prefix: str = "") -> None:
        """Delete all files below a prefix."""
        shutil.rmtree(self._folder / prefix, ignore_errors=True)


class BucketPrefix(BucketFolder):
    """Objects below a prefix in S3."""

    def __init__(self, store: Store, prefix: S3Address) -> None:
        self._store, self._prefix = store, prefix

    def write(self, name: str, data: bytes | memoryview) -> None:
        """Write an object, or replace it."""
        self._store.write(self._prefix / name, bytes(data))

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """Return bytes of an object."""
        return self._store.read_range(self._prefix / name, start, end)

    def delete(self, name: str) -> None:
        """Delete an object."""
        self._delete(iter([self._prefix / name]))

    def clear(self, prefix: str = "") -> None:
        """Delete all objects below a prefix of this one."""
        self._delete(self._listed(prefix))

    def _listed(self, prefix: str) -> Iterator[S3Address]:
        below = self._prefix / prefix if prefix else self._prefix
        yield from (item.address for item in self._store.list(below))

    def _delete(self, addresses: Iterator[S3Address]) -> None:
        """Delete objects; a store that rejects this hides no other fault, and fails no run."""
        try:
            for address in addresses:
                self._store.delete(address)
        except StepError as error:
            log.warning("the intermediate files of prepare_data were not deleted: %s", error)


def damaged(name: str) -> DataError:
    """Return the error for a file whose bytes are not those that were written."""
    return DataError(
        Problem(
            f"{name}, which an earlier task of this step wrote, is damaged",
            expected="the bytes that were written",
            fix="retry the run; if it happens again, find out what else writes to datasets/",
        )
    )
