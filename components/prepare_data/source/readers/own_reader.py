"""Reads files with a user's own function.

`data_options.reader` names the function, as `model_code` names the model's. The function gets one
file, as a stream of bytes that can only be read forward, and the file's name. It yields record
batches of pyarrow.

It runs in the step's process, or in several that the step starts; each loads it once. It sees the
store's keys. Called by `open_table.py`, and by preflight to check the code.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import chain, count
from typing import Any

import pyarrow as pa

from kfp_tfjob.common.errors import DataError, Problem
from kfp_tfjob.options.data import DataOptions
from kfp_tfjob.user_code.own_code import OwnCode, code_address_of

from ..column_names import Columns
from .arrow_table import Chunk, Reader, chunks_of

PATH = "data_options.reader"
_EXPECTED = "def read(stream, name), which yields pyarrow.RecordBatch"
_SHOWN = 10  # columns in a message
_BUFFER = 1 << 20  # bytes
_END = object()


@dataclass(frozen=True)
class OwnReader(OwnCode):
    """The function and its code."""

    path = PATH

    def batches(
        self, open_file: Callable[[], Any], name: str
    ) -> Generator[pa.RecordBatch, None, None]:
        """Yield what the function yields for a file; all batches have the columns of the first.

        Raises:
            DataError: The function fails, or the file changed since it was listed.
        """
        schema = None
        with open_file() as file:
            source = _Forward(file)
            stream = io.BufferedReader(source, _BUFFER)
            begun = self._users(source, name, lambda: iter(self.load()(stream, name)))
            for number in count(1):
                batch = self._users(source, name, lambda: next(begun, _END))
                if batch is _END:
                    break
                if mismatch := _batch_problem(number, batch, schema):
                    raise self._failed(name, *mismatch)
                schema = batch.schema
                yield batch
        if schema is None:
            raise self._failed(
                name,
                "no record batch",
                "at least one, which names the columns; it may have no rows",
                "yield an empty batch for a file without rows",
            )

    def _users(self, source: _Forward, name: str, call: Callable[[], Any]) -> Any:
        """Return the function's result; report only its own errors as the user's."""
        try:
            return call()
        except MemoryError:
            raise  # the step names the option that gives it more
        except (Exception, SystemExit) as error:
            if source.error:
                raise source.error from None
            fix = "correct it; the log shows more"
            raise self._failed(name, self.said(error), _EXPECTED, fix) from error

    def _failed(self, name: str, received: str, expected: str, fix: str) -> DataError:
        summary = f"{PATH} {self.module}:{self.function} failed on {name}"
        return DataError(Problem(summary, received[:2000], expected, fix, PATH))


class _Forward(io.RawIOBase):
    """A file that is only read forward, and stays open if user code closes this.

    Attributes:
        error: Why it could not be read.
    """

    def __init__(self, file: Any) -> None:
        self._file = file
        self.error: Exception | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            return self._file.readinto(buffer)
        except Exception as error:
            self.error = error
            raise


class OwnTable(Reader):
    """The rows of a file that an own reader reads; each look at them runs the function again."""

    def __init__(self, reader: OwnReader, open_file: Callable[[], Any], name: str) -> None:
        self._read, self._name = lambda: reader.batches(open_file, name), name
        self._begun = self._read()
        self._first = [next(self._begun)]
        self.schema = self._first[0].schema

    def chunks(self, columns: Columns, rows: int) -> Iterator[Chunk]:
        """Yield the columns, at most `rows` rows at a time."""
        begun, self._begun = self._begun or self._read(), None
        first, self._first = self._first, []
        row = 1
        with closing(begun):
            for batch in chain(first, begun):
                yield from chunks_of(batch, columns.all, rows, self._name, row)
                row += batch.num_rows

    def close(self) -> None:
        """End a function whose rows are not read."""
        if self._begun:
            self._begun.close()


def code_address(options: DataOptions) -> dict[str, str]:
    """Return the option `reader` with the address of its code; empty if the image contains it.

    Raises:
        ConfigurationError: It does not name a function.
    """
    return code_address_of(PATH, options.reader or "")


def _batch_problem(
    number: int, batch: Any, schema: pa.Schema | None
) -> tuple[str, str, str] | None:
    """Return a batch's problem as received, expected and fix; None if it is valid."""
    if not isinstance(batch, pa.RecordBatch):
        kind = type(batch)
        return (
            f"item {number} is a {kind.__module__}.{kind.__qualname__}",
            "record batches: pyarrow.RecordBatch",
            "yield pyarrow.RecordBatch.from_pydict({...}), or the batches of table.to_batches()",
        )
    if schema is None or batch.schema.equals(schema):
        return None
    return (
        f"batch {number} with the columns {_shown(batch.schema)}",
        f"the columns and types of batch 1: {_shown(schema)}",
        "give every batch the same schema: pyarrow.RecordBatch.from_pydict(..., schema=SCHEMA)",
    )


def _shown(schema: pa.Schema) -> str:
    fields = [f"{field.name!r}: {field.type}" for field in schema]
    return ", ".join(fields[:_SHOWN]) + (", ..." if len(fields) > _SHOWN else "")
