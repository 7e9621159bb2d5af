"""The process that runs a reader of the user's own for one file, without the keys of the store.

The file comes on standard input. The record batches leave as one Arrow stream on standard output;
what the code prints goes to standard error instead. A failure is left as JSON in a file.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from kfp_tfjob.supervisor.kernel import child_setup
from kfp_tfjob.trainer import own_code_error

_BATCH_BYTES = 16 << 20  # of a batch as it is written
_SHOWN = 10  # columns in a message


class _RefusedError(Exception):
    """What the reader yields cannot be used: received, expected, fix."""


def main(folder: str, module: str, function: str, name: str, failure: str) -> int:
    """Run the reader.

    Args:
        folder: The folder of the code; empty if the image has it.
        module: The module.
        function: The function.
        name: The name of the file, for the function.
        failure: The file for the reason of a failure.

    Returns:
        The exit code.
    """
    out = os.dup(1)
    os.dup2(2, 1)
    if folder:
        sys.path.insert(0, folder)
    try:
        read = getattr(importlib.import_module(module), function)
        with os.fdopen(out, "wb") as sink:
            _write(read(sys.stdin.buffer, name), sink)
    except BrokenPipeError:
        return 0  # the step needs no more rows
    except _RefusedError as error:
        received, expected, fix = error.args
        _leave(failure, received, expected, fix)
        return 1
    except BaseException as error:  # also SystemExit, which would look like the end of the file
        traceback.print_exc()
        expected = "an iterator of pyarrow.RecordBatch"
        _leave(
            failure,
            own_code_error.said(error, folder),
            expected,
            "correct the reader; the log has more",
        )
        return 1
    return 0


def _write(batches: Iterable[Any], sink: Any) -> None:
    """Write the batches as one stream.

    Raises:
        _RefusedError: An item is no record batch, or their columns differ.
    """
    writer: pa.RecordBatchStreamWriter | None = None
    schema = pa.schema([])
    for number, batch in enumerate(batches, 1):
        if not isinstance(batch, pa.RecordBatch):
            kind = type(batch)
            raise _RefusedError(
                f"item {number} is a {kind.__module__}.{kind.__qualname__}",
                "record batches: pyarrow.RecordBatch",
                "yield pyarrow.RecordBatch.from_pydict({...}), or the batches of"
                " table.to_batches()",
            )
        if writer is None:
            writer, schema = pa.ipc.new_stream(sink, batch.schema), batch.schema
        elif not batch.schema.equals(schema):
            raise _RefusedError(
                f"batch {number} with {_unlike(batch.schema, schema)}",
                f"the columns and types of batch 1: {_shown(schema)}",
                "give every batch the same schema: pyarrow.RecordBatch.from_pydict(...,"
                " schema=SCHEMA)",
            )
        rows = max(1, batch.num_rows * _BATCH_BYTES // max(batch.nbytes, _BATCH_BYTES))
        for start in range(0, batch.num_rows, rows):
            writer.write_batch(batch.slice(start, rows))
    if writer is None:
        raise _RefusedError(
            "no record batch",
            "at least one, which names the columns; it may have no rows",
            "yield an empty batch for a file without rows",
        )
    writer.close()


def _unlike(found: pa.Schema, first: pa.Schema) -> str:
    """Return what differs as text."""
    types = {field.name: str(field.type) for field in first}
    others = [
        f"{field.name!r}: {field.type}" for field in found if types.get(field.name) != field.type
    ]
    lost = [repr(name) for name in types if name not in found.names]
    parts = [", ".join(others[:_SHOWN]), f"without {', '.join(lost[:_SHOWN])}" if lost else ""]
    return "; ".join(part for part in parts if part) or f"the columns in another order: {found}"


def _shown(schema: pa.Schema) -> str:
    found = [f"{field.name!r}: {field.type}" for field in schema]
    return ", ".join(found[:_SHOWN]) + (", ..." if len(found) > _SHOWN else "")


def _leave(path: str, received: str, expected: str, fix: str) -> None:
    with open(path, "w", encoding="utf-8", errors="backslashreplace") as file:
        json.dump({"received": received[:2000], "expected": expected, "fix": fix}, file)


if __name__ == "__main__":
    child_setup(first_to_die=True)()  # it ends with the step, also after SIGKILL
    sys.exit(main(*sys.argv[1:]))
