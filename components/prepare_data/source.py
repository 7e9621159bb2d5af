"""Resolves data_uri: lists its files, computes their digest, and checks the header."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

from kfp_tfjob.components.prepare_data.faults import Faults, first_columns
from kfp_tfjob.components.prepare_data.files import Source, SourceFile
from kfp_tfjob.components.prepare_data.header import choose, no_rows
from kfp_tfjob.components.prepare_data.tables import open_table
from kfp_tfjob.options.data import FORMATS, DataOptions
from kfp_tfjob.options.parse import no_path
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.checksum import file_sha256
from kfp_tfjob.storage.errors import ConfigurationError, DataError, ObjectNotFoundError, Problem
from kfp_tfjob.storage.store import Store

_SUFFIXES = tuple(suffix for known in FORMATS for suffix in known.suffixes)
_FIRST_BLOCK = 1 << 20  # bytes
_MOST_LOOKED = 64 << 20  # bytes, while blocks have no rows


def list_source(store: Store, data_uri: str) -> Source:
    """Find the files of `data_uri`.

    Args:
        store: The store of s3:// addresses.
        data_uri: One file or a folder, in S3 or, in a local run, on this machine.

    Raises:
        ConfigurationError: The address is not supported.
        DataError: There is no file.
    """
    scheme, separator, _ = data_uri.strip().partition("://")
    if separator and scheme != "s3":
        raise ConfigurationError(
            Problem(
                "data_uri is not an address that prepare_data can read",
                received=repr(data_uri),
                expected="s3://BUCKET/KEY or, in a local run, a path",
                fix="copy the data to S3 and give its address",
                path="data_uri",
            )
        )
    files = _objects(store, data_uri) if separator else _paths(data_uri)
    if not files:
        expected = f"a file, or a folder with files that end in {', '.join(_SUFFIXES)}"
        if not separator and not (path := Path(data_uri).expanduser()).exists():
            raise DataError(no_path("data_uri", path, expected))
        raise DataError(
            Problem(
                "data_uri holds no data",
                received=repr(data_uri),
                expected=expected,
                fix="correct data_uri"
                + ("" if separator else "; a path works only in a run on this machine"),
                path="data_uri",
            )
        )
    return Source(data_uri, tuple(sorted(files, key=lambda file: file.name)), store)


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


def _wanted(name: str) -> bool:
    """Tell whether a name in a folder is data: not hidden, not a marker like _SUCCESS."""
    hidden = any(part.startswith((".", "_")) for part in name.split("/"))
    return not hidden and name.lower().endswith(_SUFFIXES)


def _objects(store: Store, data_uri: str) -> list[SourceFile]:
    address = S3Address.parse(data_uri, "data_uri")
    if address.key and not data_uri.rstrip().endswith("/"):
        try:
            head = store.head(address)
        except ObjectNotFoundError:
            pass  # a prefix, then
        else:
            tag = head["ETag"].strip('"')
            return [SourceFile(address.name, head["ContentLength"], address, tag)]
    start = len(address.key) + 1 if address.key else 0
    return [
        SourceFile(name, item.size, item.address, item.etag)
        for item in store.list(address)
        if _wanted(name := item.address.key[start:])
    ]


def _paths(data_uri: str) -> list[SourceFile]:
    top = Path(data_uri).expanduser()
    if top.is_dir():
        names = [path.relative_to(top).as_posix() for path in top.rglob("*") if path.is_file()]
        return [SourceFile.local(top / name, name) for name in names if _wanted(name)]
    return [SourceFile.local(top, top.name)] if top.is_file() else []
