"""Your own reader: text with columns of fixed width, as old systems write it.

    python own_reader.py stations.txt
    kfp-tfjob run --data stations.txt --label frost --set data_options.reader=own_reader.py:read

prepare_data calls `read` for each file of data_uri. What it yields is treated like any other table:
column types, missing values, dates, bad rows.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Iterator
from typing import BinaryIO

import pyarrow as pa

# The first character and the one after the last, as the documents of such files list them.
COLUMNS = {
    "station": (0, 6),
    "day": (6, 16),
    "temperature": (16, 23),
    "humidity": (23, 27),
    "frost": (27, 30),
}
ROWS = 50_000  # of a batch
_NO_VALUE = "-9999"


def read(stream: BinaryIO, name: str) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file.

    Args:
        stream: Its bytes; it can only be read forward.
        name: Its path below data_uri, for messages.
    """
    rows: list[list[str | None]] = []
    for number, line in enumerate(stream, 1):
        text = line.decode("ascii").rstrip("\r\n")
        if len(text) != 30:
            raise ValueError(f"{name}, line {number} has {len(text)} characters instead of 30")
        values = [text[start:end].strip() for start, end in COLUMNS.values()]
        rows.append([None if value in ("", _NO_VALUE) else value for value in values])
        if len(rows) == ROWS:
            yield _batch(rows)
            rows = []
    yield _batch(rows)


def _batch(rows: list[list[str | None]]) -> pa.RecordBatch:
    """Return rows as texts; prepare_data finds out which of them are numbers and dates."""
    columns = zip(*rows, strict=True) if rows else ([] for _ in COLUMNS)
    return pa.RecordBatch.from_arrays(
        [pa.array(column, pa.string()) for column in columns], list(COLUMNS)
    )


def write(path: str, rows: int = 3000) -> None:
    """Write made-up days of weather stations, with missing values."""
    choose = random.Random(0)
    with open(path, "w", encoding="ascii", newline="\n") as file:
        for number in range(rows):
            day = number % 365
            degrees = 9 - 14 * math.cos(day / 58) + choose.gauss(0, 3)
            frost = "yes" if degrees + choose.gauss(0, 1) < 0 else "no"
            shown = _NO_VALUE if choose.random() < 0.05 else f"{degrees:.1f}"
            date = f"2024-{day // 31 + 1:02}-{day % 28 + 1:02}"
            station = choose.choice(["OSL01", "BGO02", "TRD03"])
            humid = choose.randrange(30, 100)
            file.write(f"{station:<6}{date}{shown:>7}{humid:>4}{frost:>3}\n")


if __name__ == "__main__":
    write(sys.argv[1])
