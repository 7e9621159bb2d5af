"""Resolves data_uri: lists its files, computes their digest, and checks the header."""

from __future__ import annotations

from hashlib import sha256

from kfp_tfjob.components.prepare_data.faults import Faults, first_columns
from kfp_tfjob.components.prepare_data.files import Source
from kfp_tfjob.components.prepare_data.header import choose, no_rows
from kfp_tfjob.components.prepare_data.listing import files_at
from kfp_tfjob.components.prepare_data.tables import open_table
from kfp_tfjob.options.data import FORMATS, DataOptions
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.checksum import file_sha256
from kfp_tfjob.storage.errors import DataError, Problem
from kfp_tfjob.storage.store import Store

_SUFFIXES = tuple(suffix for known in FORMATS for suffix in known.suffixes)
_FIRST_BLOCK = 1 << 20  # bytes
_MOST_LOOKED = 64 << 20  # bytes, while blocks have no rows


def list_source(store: Store, data_uri: str) -> Source:
    """Find the files of `data_uri`.

    Args:
        store: The store of s3:// addresses.
        data_uri: A file, a folder, a pattern or several of them, in S3 or, in a local run, on this
            machine.

    Raises:
        ConfigurationError: The address is not supported.
        DataError: An address has no file.
    """
    return Source(data_uri, tuple(files_at(store, data_uri)), store)


def source_digest(source: Source) -> str:
    """Return the SHA-256 over the sorted names, sizes and entity tags of the files.

    For a local file, the digest of its content replaces the tag, so the whole file is read.
    """
    digest = sha256()
    for file in source.files:
        content = file.tag if isinstance(file.location, S3Address) else file_sha256(file.location)
        digest.update(f"{file.name}\0{file.size}\0{content}\n".encode())
    return digest.hexdigest()


def feature_names(source: Source, data_label: str, options: DataOptions) -> tuple[str, ...]:
    """Return the feature columns; empty if the header is unusable."""
    with open_table(source, source.files[0], options, _FIRST_BLOCK) as table:
        columns, _ = choose(table.names, data_label, options, source.files[0].name)
    return columns.features if columns else ()


def check_header(source: Source, data_label: str, options: DataOptions) -> list[Problem]:
    """Return every problem that the first block of the first file shows.

    It is for preflight, so it takes seconds for any amount of data. If a bad row fails the run, a
    column that is text in every row of the block is among the problems.

    Args:
        source: The files.
        data_label: The label column.
        options: The typed `data_options`.
    """
    try:
        with open_table(source, source.files[0], options, _FIRST_BLOCK) as table:
            columns, problems = choose(table.names, data_label, options, source.files[0].name)
            problems += table.problems(columns) if columns and not problems else []
            if problems or columns is None:
                return problems
            faults, looked = Faults(), 0
            for rows in table.rows(columns):
                faults.add(rows.faults)
                looked += rows.size
                if faults.seen or looked > _MOST_LOOKED:
                    break
            if not faults.seen:
                return [no_rows()] if len(source.files) == 1 and looked <= _MOST_LOOKED else []
            if faults.shape_problem():
                return faults.problems()
            if options.on_bad_row != "fail":
                return []
            quote = faults.quote_problem()
            return [*([quote] if quote else []), *first_columns(faults.column_problems())]
    except DataError as error:
        return [item if isinstance(item, Problem) else Problem(item) for item in error.problems]
