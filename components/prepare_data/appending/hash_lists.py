"""The hashes of the rows of a shard, to find rows of other shards that are equal.

They are kept because equal rows of two groups are in two shards. A list has 5 to 7 bytes for each
row: the first 52 bits of its hash, as the distance from the one before, and 16 bits of its label.
It is divided into 64 bins, so that any number of rows is compared a few bins at a time.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from kfp_tfjob.components.prepare_data.distinct import among
from kfp_tfjob.components.prepare_data.statistics import SPLITS
from kfp_tfjob.storage.errors import DataError, Problem

_BITS, _BIN_BITS = 52, 6
_BINS = 1 << _BIN_BITS
_MOST_ROWS = 2 << 20  # in memory at a time
_LENGTH = 4  # bytes that have the length of the index
ROW = np.dtype([("hash", "<u8"), ("split", "u1"), ("label", "<u2")])


def rows_of(
    hashes: np.ndarray, split: int | np.ndarray, labels: np.ndarray | None = None
) -> np.ndarray:
    """Return the rows of a list.

    Args:
        hashes: uint64 of shape [rows].
        split: Of all rows, or of shape [rows].
        labels: Class indices or numbers, of shape [rows]; None if they do not matter.
    """
    found = np.zeros(len(hashes), ROW)
    found["hash"], found["split"] = hashes >> np.uint64(64 - _BITS), split
    if labels is not None:
        bits = labels.astype(np.float32).view(np.uint32) if labels.dtype.kind == "f" else labels
        bits = bits.astype(np.uint32)
        found["label"] = (bits ^ (bits >> np.uint32(16))) & np.uint32(0xFFFF)
    return found


def packed(rows: np.ndarray) -> bytes:
    """Return a list as bytes: the length of its index, the index, and its blocks."""
    rows = rows[np.lexsort((rows["label"], rows["hash"], rows["split"]))]
    bins = rows["split"] * np.int64(_BINS) + _bins(rows)
    ends = np.searchsorted(bins, np.arange(_BINS * len(SPLITS) + 1)).tolist()
    index, blocks = [], []
    for i in range(_BINS * len(SPLITS)):
        number, split = divmod(i, len(SPLITS))
        part = rows[ends[split * _BINS + number] : ends[split * _BINS + number + 1]]
        steps = np.diff(part["hash"], prepend=_first(number))
        columns = [_shortest(steps), _shortest(part["label"])]
        body = b"".join(column.tobytes() for column in columns)
        index.append([len(part), *(column.shape[1] for column in columns), zlib.crc32(body)])
        blocks.append(body)
    head = json.dumps(index).encode()
    return b"".join([len(head).to_bytes(_LENGTH, "little"), head, *blocks])


def _bins(rows: np.ndarray) -> np.ndarray:
    return (rows["hash"] >> np.uint64(_BITS - _BIN_BITS)).astype(np.int64)


def _first(number: int) -> np.uint64:
    """Return the first hash of a bin."""
    return np.uint64(number << (_BITS - _BIN_BITS))


def _shortest(values: np.ndarray) -> np.ndarray:
    """Return the bytes of each value, without those that are 0 in all: of shape [values, width]."""
    width = -(-int(values.max(initial=0)).bit_length() // 8)
    whole = np.ascontiguousarray(values.astype("<u8")).view(np.uint8)
    return np.ascontiguousarray(whole.reshape(-1, 8)[:, :width])


def _long(data: bytes, width: int) -> np.ndarray:
    """Return the values of `_shortest`."""
    rows = len(data) // width if width else 0
    found = np.zeros((rows, 8), np.uint8)
    found[:, :width] = np.frombuffer(data, np.uint8).reshape(rows, width)
    return found.reshape(-1).view("<u8")


@dataclass(frozen=True)
class HashList:
    """A list, wherever its bytes are.

    Attributes:
        name: In messages.
        read: Returns its bytes from a place up to another one.
    """

    name: str
    read: Callable[[int, int], bytes]

    @cached_property
    def _index(self) -> tuple[list[list[int]], list[int]]:
        """The blocks, and where each begins; the last place is the end."""
        try:
            start = _LENGTH + int.from_bytes(self.read(0, _LENGTH), "little")
            found = json.loads(self.read(_LENGTH, start))
            sizes = [count * (width + more) for count, width, more, _ in found]
            if len(found) != _BINS * len(SPLITS):
                raise ValueError(f"{len(found)} blocks")
        except (ValueError, TypeError) as error:
            raise _damaged(self.name) from error
        return found, (start + np.cumsum([0, *sizes])).tolist()

    def counts(self) -> np.ndarray:
        """Return the rows of each bin.

        Raises:
            DataError: The list is damaged.
        """
        blocks, _ = self._index
        return np.array([item[0] for item in blocks]).reshape(_BINS, len(SPLITS)).sum(1)

    def rows(self, first: int, last: int) -> np.ndarray:
        """Return the rows of the bins from `first` up to `last`.

        Raises:
            DataError: They are damaged.
        """
        blocks, places = self._index
        low, high = first * len(SPLITS), last * len(SPLITS)
        body = self.read(places[low], places[high]) if places[high] > places[low] else b""
        found = [np.empty(0, ROW)]
        for i in range(low, high):
            count, width, more, checksum = blocks[i]
            data = body[places[i] - places[low] : places[i + 1] - places[low]]
            if zlib.crc32(data) != checksum:
                raise _damaged(self.name)
            number, split = divmod(i, len(SPLITS))
            part = np.zeros(count, ROW)
            part["split"] = split
            steps = _long(data[: count * width], width) if width else np.zeros(count, np.uint64)
            part["hash"] = _first(number) + np.cumsum(steps, dtype=np.uint64)
            if more:
                part["label"] = _long(data[count * width :], more)
            found.append(part)
        return np.concatenate(found)


def _damaged(name: str) -> DataError:
    return DataError(Problem(f"{name} is damaged", fix="prepare the dataset again"))


@dataclass
class Equal:
    """Rows that are equal to others.

    Attributes:
        duplicates: Rows of a split with the features of an earlier one of the same split.
        conflicts: Those of them with another label.
        in_train: Rows of validation and test with the features of a row of train, by split.
    """

    duplicates: int = 0
    conflicts: int = 0
    in_train: tuple[int, ...] = (0, 0)


def count(lists: Sequence[HashList]) -> Equal:
    """Return the rows that are equal to others, over all lists.

    Raises:
        DataError: A list is damaged.
    """
    sizes = sum((item.counts() for item in lists), np.zeros(_BINS, np.int64))
    found, first = Equal(), 0
    in_train = np.zeros(len(SPLITS), np.int64)
    while first < _BINS:
        last = first + 1
        while last < _BINS and sizes[first : last + 1].sum() <= _MOST_ROWS:
            last += 1
        rows = np.concatenate([item.rows(first, last) for item in lists])
        rows = rows[np.lexsort((rows["label"], rows["hash"], rows["split"]))]
        same = (rows["hash"][1:] == rows["hash"][:-1]) & (rows["split"][1:] == rows["split"][:-1])
        found.duplicates += int(same.sum())
        found.conflicts += int((same & (rows["label"][1:] != rows["label"][:-1])).sum())
        train = rows["split"] == 0
        others = rows[~train]
        shared = others["split"][among(others["hash"], rows["hash"][train])]
        in_train += np.bincount(shared, minlength=len(SPLITS))
        first = last
    found.in_train = tuple(in_train[1:].tolist())
    return found
