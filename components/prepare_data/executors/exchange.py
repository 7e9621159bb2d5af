"""Where tasks leave data for each other: named objects in a local folder, or in the store.

An object appears whole or not at all. Tasks that run twice write the same bytes twice.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Generic, TypeVar

from kfp_tfjob.storage import files
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.errors import DataError, ObjectNotFoundError, Problem, StepError
from kfp_tfjob.storage.store import Store

Value = TypeVar("Value")


log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Shared(Generic[Value]):
    """A value in the exchange: its name, and the SHA-256 of its bytes.

    It travels with a task, so nobody who may only write to the exchange can replace the value.
    """

    name: str
    digest: str


class Exchange:
    """Objects as files of a folder, which must exist."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, name: str, data: bytes | memoryview) -> None:
        """Write an object, or replace it."""
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write(path, data)

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """Return the bytes of an object from `start` up to `end`.

        Raises:
            ObjectNotFoundError: There is no such object.
        """
        try:
            with open(self._folder / name, "rb", buffering=0) as file:
                file.seek(start)
                return file.read() if end is None else file.read(end - start)
        except FileNotFoundError:
            raise ObjectNotFoundError(f"{self._folder / name} does not exist") from None

    def clear(self) -> None:
        """Delete what tasks have left; a local folder goes with the step."""

    def share(self, name: str, value: Value) -> Shared[Value]:
        """Write a value that can be pickled."""
        body = pickle.dumps(value)
        self.write(name, body)
        return Shared(name, sha256(body).hexdigest())

    def load(self, shared: Shared[Value]) -> Value:
        """Return a value that `share` has written.

        Raises:
            ObjectNotFoundError: There is no such object.
            DataError: The object is damaged.
        """
        body = self.read(shared.name)
        if sha256(body).hexdigest() != shared.digest:
            raise damaged(shared.name)
        return pickle.loads(body)

    @staticmethod
    def at(place: str, store: Callable[[], Store]) -> Exchange:
        """Return the exchange in a local folder or at an address in S3."""
        if place.startswith("s3://"):
            return StoreExchange(store(), S3Address.parse(place))
        return Exchange(Path(place))


def damaged(name: str) -> DataError:
    """Return the error for an object whose bytes are not those that were written."""
    return DataError(
        Problem(
            f"{name}, which an earlier task of this step wrote, is damaged",
            expected="the bytes that were written",
            fix="start the run again; if it happens again, find out what else writes to datasets/",
        )
    )


class StoreExchange(Exchange):
    """Objects below a prefix in S3."""

    def __init__(self, store: Store, prefix: S3Address) -> None:
        self._store, self._prefix = store, prefix

    def write(self, name: str, data: bytes | memoryview) -> None:
        """Write an object, or replace it."""
        self._store.write(self._prefix / name, bytes(data))

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """Return bytes of an object."""
        return self._store.read_range(self._prefix / name, start, end)

    def clear(self) -> None:
        """Delete what tasks have left; a store that refuses hides no other fault, fails no run."""
        try:
            for item in self._store.list(self._prefix):
                self._store.delete(item.address)
        except StepError as error:
            log.warning("the intermediate files of prepare_data were not deleted: %s", error)
