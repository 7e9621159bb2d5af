"""Small tables with one fault, and what prepare_data says of them."""

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from kfp_tfjob.common.errors import StepError, StoreUnavailableError
from kfp_tfjob.components.prepare_data.engine import run
from kfp_tfjob.components.prepare_data.faults import RULES
from kfp_tfjob.components.step import Step

ROWS = 140
BAD = 9  # the index of the row with the fault
LINE = BAD + 2
Text = Callable[[int], object]


def small(i: int) -> object:
    return i % 7


def word(i: int) -> object:
    return ("red", "green", "blue")[i % 3]


def planted(bad: object, among: Text) -> Text:
    return lambda i: bad if i == BAD else among(i)


def table(values: Text, header: str = "a,b,y") -> bytes:
    """Return a CSV with a number, the values, and a label of two classes."""
    lines = (f"{i},{values(i)},{'uv'[i % 2]}\n" for i in range(ROWS))
    return (header + "\n" + "".join(lines)).encode()


def parquet(values: Text, kind: pa.DataType | None = None, **how: object) -> bytes:
    column = pa.array([values(i) for i in range(ROWS)])
    numbers, labels = np.arange(ROWS) * 1.0, ["u", "v"] * (ROWS // 2)
    rows = pa.table({"a": numbers, "b": column.cast(kind) if kind else column, "y": labels})
    stream = io.BytesIO()
    pa.parquet.write_table(rows, stream, **how)
    return stream.getvalue()


NUMBERS = table(small)


def write(folder: Path, files: bytes | dict[str, bytes]) -> str:
    """Write a CSV, or files by name; return the data_uri."""
    files = {"f.csv": files} if isinstance(files, bytes) else files
    folder.mkdir(exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return str(folder if len(files) > 1 else folder / next(iter(files)))


def refusal(step: Step, uri: str, label: str = "y", **options: object) -> str:
    """Return why a run ends, which leaves nothing half done."""
    with pytest.raises(StepError) as error:
        run(step, uri, label, options)
    assert not isinstance(error.value, StoreUnavailableError)
    assert not list(step.store.list(step.layout.root))
    return str(error.value)


def where(column: str, value: str, rule: str, file: str = "f.csv", line: int = LINE) -> str:
    place = f"{file}, line {line}" + (f", column {column!r}" if column else "")
    return f"{place}: {RULES[rule]}. Received: {value!r}"
