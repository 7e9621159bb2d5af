"""Where tasks leave data for each other: named objects in a local folder, or in the store.

What tasks leave are dataclasses: the types of their fields say how they are written as JSON,
without a loss. An object appears whole or not at all. Tasks that run twice write the same bytes
twice.
"""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np
from pydantic import PlainSerializer, PlainValidator

from kfp_tfjob.storage import documents, files
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.errors import DataError, ObjectNotFoundError, Problem, StepError
from kfp_tfjob.storage.store import Store

Value = TypeVar("Value")


def plain_of(array: np.ndarray) -> dict[str, Any]:
    """Return an array of numbers as plain values."""
    return {
        "type": array.dtype.str,
        "shape": list(array.shape),
        "data": base64.b64encode(np.ascontiguousarray(array).tobytes()).decode(),
    }


def array_of(plain: dict[str, Any]) -> np.ndarray:
    """Return the array of `plain_of`; it may be changed."""
    data = np.frombuffer(base64.b64decode(plain["data"]), plain["type"])
    return data.reshape(plain["shape"]).copy()


Array = Annotated[np.ndarray, PlainValidator(array_of), PlainSerializer(plain_of)]
# A field that only this process can use: it is read as None, and whoever reads it sets it.
Unstored = Annotated[Value, PlainValidator(lambda plain: None), PlainSerializer(lambda value: None)]


def dump(value: Any) -> Any:
    """Return a dataclass, or plain values with dataclasses in them, as values of JSON."""
    return documents.adapter(type(value)).dump_python(value, mode="json")


def load(kind: type[Value], plain: Any) -> Value:
    """Return the value of a type of which `dump` has returned these values."""
    return documents.adapter(kind).validate_python(plain)


log = logging.getLogger(__name__)

_DIGEST_BYTES = 64  # of a SHA-256 in hexadecimal digits


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

    def names(self, prefix: str) -> Iterator[str]:
        """Yield the names of the objects below a prefix."""
        for path in sorted((self._folder / prefix).rglob("*")):
            if path.is_file() and not path.name.startswith("."):
                yield path.relative_to(self._folder).as_posix()

    def delete(self, name: str) -> None:
        """Delete an object; one that is gone is no error."""
        (self._folder / name).unlink(missing_ok=True)

    def clear(self) -> None:
        """Delete every object."""
        for name in list(self.names("")):
            self.delete(name)

    def write_plain(self, name: str, value: Any) -> None:
        """Write a dataclass, or plain values, with a digest."""
        body = json.dumps(dump(value)).encode()
        self.write(name, sha256(body).hexdigest().encode() + body)

    def read_plain(self, name: str, kind: type[Value]) -> Value:
        """Return what `write_plain` has written, given its type.

        Raises:
            ObjectNotFoundError: There is no such object.
            DataError: The object is damaged.
        """
        data = self.read(name)
        body = data[_DIGEST_BYTES:]
        if sha256(body).hexdigest().encode() != data[:_DIGEST_BYTES]:
            raise damaged(name)
        return load(kind, json.loads(body))

    @staticmethod
    def at(place: str, store: Callable[[], Store]) -> Exchange:
        """Return the exchange in a local folder or at an address in S3."""
        if place.startswith("s3://"):
            return StoreExchange(store(), S3Address.parse(place))
        return Exchange(Path(place))


def discard(exchange: Exchange) -> None:
    """Delete every object; a store that refuses hides no other fault and fails no run."""
    try:
        exchange.clear()
    except StepError as error:
        log.warning("the intermediate files of prepare_data were not deleted: %s", error)


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

    def names(self, prefix: str) -> Iterator[str]:
        """Yield the names of the objects below a prefix."""
        skipped = len(self._prefix.key) + 1
        for item in self._store.list(self._prefix / prefix if prefix else self._prefix):
            yield item.address.key[skipped:]

    def delete(self, name: str) -> None:
        """Delete an object."""
        self._store.delete(self._prefix / name)
