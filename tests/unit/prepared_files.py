"""Writes tables, and reads files as preflight and prepare_data do."""

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from kfp_tfjob.common.errors import DataError
from kfp_tfjob.components.prepare_data import scan
from kfp_tfjob.components.prepare_data.buckets import SortedRows, Vocabulary
from kfp_tfjob.components.prepare_data.columns_to_rows import Converter, Rows
from kfp_tfjob.components.prepare_data.executors.executor import Context, Executor
from kfp_tfjob.components.prepare_data.faults import Faults
from kfp_tfjob.components.prepare_data.kinds import Feature, Kinds, columns_of
from kfp_tfjob.components.prepare_data.source.column_names import Columns, choose
from kfp_tfjob.components.prepare_data.source.readers.arrow_table import ArrowTable
from kfp_tfjob.components.prepare_data.source.readers.open_table import open_table
from kfp_tfjob.components.prepare_data.source.resolve import check_header, list_source
from kfp_tfjob.features.types.base import CODES
from kfp_tfjob.options.data import DataOptions
from kfp_tfjob.options.parse import parse
from kfp_tfjob.storage.store import Store

_STORE = Store("http://127.0.0.1:1")


def options(**given: object) -> DataOptions:
    return parse(DataOptions, "data_options", given)


def check(path: Path, label: str = "y", **given: object) -> list[str]:
    """Return what preflight says of a file or folder."""
    source = list_source(_STORE, str(path), options(**given))
    return list(map(str, check_header(source, label, options(**given))))


def write_table(
    path: Path, columns: Mapping[str, Sequence], delimiter: str = ",", **more: int
) -> Path:
    """Write columns in the format of the ending; `more` is for Parquet."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table(dict(columns))
    if path.suffix == ".parquet":
        pa.parquet.write_table(table, path, **more)
        return path
    if path.suffix == ".jsonl":
        lines = [json.dumps(row) for row in table.to_pylist()]
    else:
        rows = zip(*(column.to_pylist() for column in table.columns), strict=True)
        lines = [delimiter.join("" if it is None else str(it) for it in row) for row in rows]
        lines = [delimiter.join(columns), *lines]
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


@contextmanager
def opened(path: Path, block: int = 1 << 20, **given: object) -> Iterator[ArrowTable]:
    """Open the first file of a source."""
    source = list_source(_STORE, str(path))
    with open_table(source, source.files[0], options(**given), block) as table:
        yield table


def header_of(path: Path) -> list[str]:
    """Return the names of the columns."""
    with opened(path) as table:
        return table.names


def data_of(path: Path, block: int = 1 << 20, **given: object) -> tuple:
    """Return features, labels and faults of a table of numbers with the label `y`."""
    features, labels, faults = [], [], Faults()
    with opened(path, block, **given) as table:
        columns, problems = choose(table.header, "y", options(**given), path.name)
        DataError.raise_if(problems or table.problems(columns))
        for rows in number_rows(table, columns):
            faults.merge(rows.faults)
            features.append(rows.features)
            labels += [rows.labels[code] for code in rows.codes]
    return np.concatenate(features), labels, faults


def number_rows(table: ArrowTable, columns: Columns) -> Iterator[Rows]:
    """Yield the rows of an open table whose features are all numbers."""
    kinds = Kinds(tuple(Feature(name, "number", None, 0) for name in columns.features), ())
    converter = Converter(kinds, columns.label)
    for chunk in table.chunks(columns_of(kinds, columns.label)):
        yield converter.rows(chunk)


def faults_of(faults: Faults) -> list[tuple]:
    return [(fault.line, fault.column, fault.value, fault.rule) for fault in faults.examples]


def read(
    path: Path,
    block: int = 1 << 20,
    runs: Path | None = None,
    part: int = scan.PART_BYTES,
    **given: object,
) -> scan.Scan:
    """Read a file or folder as prepare_data does; `runs` is where the runs are to stay."""
    source = list_source(_STORE, str(path))
    with tempfile.TemporaryDirectory() as folder:
        (runs or Path(folder)).mkdir(exist_ok=True)
        executor = Executor(Context(str(runs or folder), opened=_STORE))
        return scan.read(source, "y", options(**given), executor, block, part=part)


def names_of(found: scan.Scan) -> list[str]:
    """Return the names of the features."""
    return [item.name for item in found.kinds.features]


def rows_of(found: scan.Scan) -> np.ndarray:
    """Return the rows of all bucket files, sorted by their hashes."""
    job, dictionaries = found.job, found.dictionaries
    names = [feature.name for feature in found.kinds.in_field(CODES)]
    codes = (dictionaries[name].codes if name in dictionaries else 2 for name in names)
    vocabulary = Vocabulary(found.labels.codes, tuple(codes))
    rows = SortedRows(found.executor.context.buckets, job.row_kind, job.bins, vocabulary)
    files = found.summary.files
    bins = rows.range(files, rows.counts(files), 0, len(job.bins.edges))
    groups = [group.rows for group in rows.read(bins)]
    return np.concatenate([np.empty(0, job.row_kind), *groups])
