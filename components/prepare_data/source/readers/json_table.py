"""Reads JSON Lines as arrow columns: blocks at once, and line by line where that fails.

The columns are the keys of the first MiB, in the order of the first row or, if any row has other
keys, of their names. A key that a row lacks, or whose value is null, is a missing value.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO, Any

import numpy as np
import pyarrow as pa
from pyarrow import json as arrow_json

from kfp_tfjob.common.errors import DataError, Problem
from kfp_tfjob.common.escaping import is_utf8
from kfp_tfjob.features.cells import as_array, number_text
from kfp_tfjob.features.types.number import LARGEST
from kfp_tfjob.options.data import DataOptions

from ...faults import ENCODING, BlockFaults
from ..column_names import Columns, empty
from .arrow_table import Chunk, Reader
from .byte_range import BLOCK, LONGEST_RECORD, ByteRange, Span, begin, too_long
from .json_shapes import Literal, is_list, is_table, key_twice, object_of, shape_of

_LOOKED = 1 << 20  # bytes in which every key occurs; not the size of a block, which may vary
_EXACT = 2**53 - 1  # whole numbers up to it are exact as float64
_LONGEST_NUMBER = 300  # characters; int() rejects some thousand
_DEEPEST = 1000  # lists and objects that a line opens; ten thousand inside each other crash
_SHOWN = 1000  # bytes of a bad line that are kept for the message
# JSON objects, Python dicts, arrays of rows, and JSON text sequences (RFC 7464).
_BEGINS = re.compile(rb"""\s*(\{\s*["'}\r\n]|\[\s*[\[{]|\x1e)""")


@dataclass
class _Key:
    """A key's values in the first rows.

    Attributes:
        example: The first value other than null and an empty list.
        kinds: The types of the values other than lists and objects: bool, int, float, str.
    """

    example: Any = None
    kinds: set[type] = field(default_factory=set)

    def add(self, value: Any) -> None:
        if value is None or value == []:
            return
        if self.example is None:
            self.example = value
        if not isinstance(value, list | dict):
            self.kinds.add(_kind(value))

    @property
    def is_list(self) -> bool:
        """Whether it has lists of numbers."""
        return isinstance(self.example, list) and all(map(_is_number, self.example))

    @property
    def type(self) -> pa.DataType:
        """The column's type."""
        if self.is_list:
            return pa.list_(pa.float64(), len(self.example))
        return _nested_type(self.example) if isinstance(self.example, list | dict) else pa.binary()

    def parsed(self, exact: bool) -> pa.DataType:
        """Return the type of the values for Arrow's parser.

        Args:
            exact: Whether the text of a number counts, as in a label, a category or a group.
        """
        if self.is_list:
            return pa.list_(pa.float64())
        if not self.kinds:
            return pa.null()
        if str in self.kinds or (bool in self.kinds and len(self.kinds) > 1):
            return pa.string()
        if bool in self.kinds:
            return pa.bool_()
        return pa.int64() if exact and self.kinds == {int} else pa.float64()


class JsonTable(Reader):
    """A file with one JSON object on each line.

    Raises:
        DataError: None of the first lines is an object, or one is the whole table.
    """

    is_text = True

    def __init__(
        self,
        stream: IO[bytes],
        name: str,
        options: DataOptions,
        block: int = BLOCK,
        span: Span | None = None,
    ) -> None:
        self._stream, self._name, self._block = stream, name, block
        self.lines = 0
        self.reach = begin(stream, span) if span is None or not span.start else ByteRange()
        self._new_keys = options.columns is None  # are faults
        self._head = self._read_head()
        self._keys = self._find_keys()
        self._known = {*self._keys, *options.drop}
        self.schema = pa.schema([(key, key_type.type) for key, key_type in self._keys.items()])
        if span and span.start:
            self.reach, self._head = begin(stream, span), b""

    @staticmethod
    def recognise(head: bytes) -> bool:
        """Return whether text begins as JSON of several shapes does, and no header of a CSV."""
        return bool(_BEGINS.match(head))

    def chunks(self, columns: Columns, rows: int) -> Iterator[Chunk]:
        """Yield the columns block by block."""
        for data in self._blocks():
            line = self.lines + 1
            self.lines += data.count(b"\n")
            yield self._quick(data, line, columns) or self._careful(data, line, columns)

    def _read_head(self) -> bytes:
        """Read whole lines of _LOOKED bytes, and one more byte if there is one."""
        head = self._stream.read(_LOOKED)
        while b"\n" not in head and len(head) <= LONGEST_RECORD:
            piece = self._stream.read(_LOOKED)
            if not piece:
                break
            head += piece
        next_byte = self._stream.read(1)
        self._is_whole = not next_byte
        return head + next_byte

    def _find_keys(self) -> dict[str, _Key]:
        keys: dict[str, _Key] = {}
        orders: set[tuple[str, ...]] = set()
        text = self._head[: self._head.rfind(b"\n", 0, _LOOKED) + 1] or self._head
        if len(self._head) < _LOOKED:
            text = self._head
        rows = [row for line in text.split(b"\n") if (row := object_of(line)) is not None]
        is_only = len(rows) == 1 and self._is_whole
        if not rows or (is_only and (is_table(rows[0]) or is_list(text))):
            raise self._other_shape(text)
        for row in rows:
            orders.add(tuple(row))
            for key, value in row.items():
                keys.setdefault(key, _Key()).add(value)
        if names := [key for key in keys if not is_utf8(key)]:
            raise DataError(
                Problem(
                    f"{self._name}: a key is not UTF-8",
                    received=ascii(names[0]),
                    expected="keys in UTF-8",
                    fix=f"{ENCODING}, or write the file as UTF-8",
                    path="data_options.encoding",
                )
            )
        # Otherwise, the keys that the first rows happen to lack would decide about the order.
        return keys if len(orders) == 1 else dict(sorted(keys.items()))

    def _other_shape(self, text: bytes) -> DataError:
        """Return the error for a text in which no line is a row."""
        if not text.strip():
            return empty(self._name)
        shape = shape_of(text, self._is_whole)
        first = next(line for line in text.split(b"\n") if line.strip())
        return DataError(
            Problem(
                f"{self._name} is not JSON Lines",
                received=f"{shape.words}: {first[:200].decode(errors='replace')!r}",
                expected='one object on each line, for example {"a": 1, "b": "x"}',
                fix=shape.fix,
                path=shape.path,
                suggestion=shape.suggestion,
            )
        )

    def _blocks(self) -> Iterator[bytes]:
        """Yield whole lines."""
        buffered = self._head
        while self.reach.left:
            end = buffered.rfind(b"\n", 0, self._block) + 1 or buffered.find(b"\n", self._block) + 1
            if end:
                end = min(end, self.reach.cut(buffered))
                self.reach.position += end
                yield buffered[:end]
                buffered = buffered[end:]
                continue
            if len(buffered) > LONGEST_RECORD:
                raise too_long(self._name, self.reach.position)
            piece = self._stream.read(self.reach.wanted(len(buffered), self._block))
            if not piece and not buffered:
                return
            buffered += piece or b"\n"

    def _quick(self, data: bytes, line: int, columns: Columns) -> Chunk | None:
        """Parse a block at once; None if a row has a fault or another type than the first rows."""
        if b"\\u0000" in data or b"\0" in data or _is_deep(data):
            return None
        exact = columns.texts.union(columns.extra, [columns.label])
        explicit = [(name, self._keys[name].parsed(name in exact)) for name in columns.all]
        try:
            table = arrow_json.read_json(
                pa.BufferReader(data),
                arrow_json.ReadOptions(use_threads=False, block_size=len(data) + 1),
                arrow_json.ParseOptions(
                    explicit_schema=pa.schema(explicit),
                    unexpected_field_behavior="infer" if self._new_keys else "ignore",
                ),
            )
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, UnicodeDecodeError):
            return None
        lines = _filled_lines(data) + line
        if table.num_rows != len(lines):
            return None
        if self._new_keys and not self._known.issuperset(table.column_names):
            return None
        values = {}
        for name in columns.all:
            column = as_array(table[name])
            if pa.types.is_floating(column.type):
                numbers = column.drop_null().to_numpy(zero_copy_only=False)
                most = _EXACT if name in exact else LARGEST
                if not (np.abs(numbers) <= most).all():
                    return None
            values[name] = column.cast(pa.binary()) if _as_bytes(column.type) else column
        return Chunk(values, BlockFaults(self._name, lines), len(data))

    def _careful(self, data: bytes, line: int, columns: Columns) -> Chunk:
        """Parse a block line by line and mark every fault."""
        lines, rows = [], []
        lost = BlockFaults(self._name, np.empty(0, np.int64))
        for number, text in enumerate(data.split(b"\n"), line):
            if not text.strip():
                continue
            row = object_of(text)
            new = [key for key in row or () if self._new_keys and key not in self._known]
            if row is None:
                key, beginning = key_twice(text), text[:_SHOWN].decode(errors="replace")
                twice = "" if key is None else f"the key {key!r} twice: "
                lost.lost(number, "json", twice + beginning)
            elif new:
                lost.lost(number, "keys", new[0])
            else:
                lines.append(number)
                rows.append(row)
        faults = BlockFaults(self._name, np.array(lines, np.int64))
        faults.merge(lost)
        values: dict[str, pa.Array] = {}
        for name in columns.all:
            if self._keys[name].is_list:
                values[name] = self._lists(name, rows, faults)
                continue
            cells = self._singles(name, rows, faults)
            is_text = name in columns.texts or name in columns.extra
            numbers = None if is_text else _numbers(cells, name == columns.label)
            values[name] = pa.array(map(_bytes, cells), pa.binary()) if numbers is None else numbers
            nul = np.array([isinstance(cell, str) and "\0" in cell for cell in cells], bool)
            faults.mark(nul, "nul", name, lambda i, cells=cells: cells[i])
        return Chunk(values, faults, len(data))

    def _singles(self, key: str, rows: list[dict[str, Any]], faults: BlockFaults) -> list[Any]:
        cells = [row.get(key) for row in rows]
        nested = np.array([isinstance(cell, list | dict) for cell in cells], bool)
        faults.mark(nested, "nested", key, lambda i: _shown(cells[i]))
        return [None if bad else cell for cell, bad in zip(cells, nested.tolist(), strict=True)]

    def _lists(self, key: str, rows: list[dict[str, Any]], faults: BlockFaults) -> pa.Array:
        cells, wrong = [], np.zeros(len(rows), bool)
        for i, cell in enumerate(row.get(key) for row in rows):
            if isinstance(cell, list) and all(map(_is_number, cell)):
                cells.append([item if item is None else float(item) for item in cell])
            else:
                cells.append(None)
                wrong[i] = cell is not None
        faults.mark(wrong, "list", key, lambda i: _shown(rows[i][key]))
        return pa.array(cells, pa.list_(pa.float64()))


def _is_number(value: Any) -> bool:
    """Return whether a list's element is a number; null is missing, and booleans are 1 and 0."""
    return value is None or isinstance(value, bool | Literal)


def _kind(value: Any) -> type:
    if isinstance(value, Literal):
        return int if value.lstrip("-").isdigit() else float
    return type(value)


def _bytes(value: Any) -> bytes | None:
    """Return a value as the text that Arrow's parser and `number_text` lead to."""
    if value is None or (value == "NaN" and isinstance(value, Literal)):
        return None
    if isinstance(value, bool):
        return b"true" if value else b"false"
    if isinstance(value, Literal) and len(value) <= _LONGEST_NUMBER:
        number = int(value) if _kind(value) is int else float(value)
        if math.isfinite(number):
            return number_text(number).encode()
    try:
        return value.encode(errors="surrogateescape")
    except UnicodeEncodeError:  # half of a character, written as \ud800
        return value.encode(errors="surrogatepass")


def _numbers(cells: list[Any], exact: bool) -> pa.Array | None:
    """Return values as `_quick` has them, to which no format applies; None if one is no number.

    Args:
        cells: The values.
        exact: As for `_Key.parsed`.
    """
    present = [cell for cell in cells if cell is not None]
    if not all(isinstance(cell, Literal) and len(cell) <= _LONGEST_NUMBER for cell in present):
        return None
    are_whole = exact and all(_kind(cell) is int for cell in present)
    most = 2**63 - 1 if are_whole else _EXACT if exact else LARGEST
    read = int if are_whole else float
    values = [None if cell is None else read(cell) for cell in cells]
    if not present or not all(abs(value) <= most for value in values if value is not None):
        return None
    return pa.array(values, pa.int64() if are_whole else pa.float64())


def _shown(value: Any) -> str:
    return json.dumps(value)[:_SHOWN]


def _nested_type(value: Any) -> pa.DataType:
    try:
        return pa.infer_type([value])
    except (pa.ArrowException, ValueError):
        return pa.struct([])


def _as_bytes(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_null(kind)


def _is_deep(data: bytes) -> bool:
    """Return whether a line may be nested so deeply that Arrow's parser overflows the stack.

    It counts opening brackets, even in strings or after others are closed, because that is fast; a
    false alarm only makes the reader parse line by line.
    """
    # Most lines open little more than their own object, so most blocks end here. Other lines, such
    # as empty ones, open nothing, and would hide what the rest opens.
    objects = data.count(b"\n{") + data.startswith(b"{")
    if data.count(b"[") + data.count(b"{") - objects <= _DEEPEST:
        return False
    text = np.frombuffer(data, np.uint8)
    opened = np.cumsum((text == ord("[")) | (text == ord("{")))
    return bool((np.diff(opened[text == ord("\n")], prepend=0) > _DEEPEST).any())


def _filled_lines(data: bytes) -> np.ndarray:
    """Return which lines of a block are not empty, from 0."""
    text = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(text == ord("\n"))
    starts = np.concatenate(([0], ends[:-1] + 1))
    length = ends - starts
    return np.flatnonzero((length > 1) | ((length == 1) & (text[starts] != ord("\r"))))
