"""Resolves data_uri: lists its files, computes their digest, and checks the header."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

from kfp_tfjob.components.prepare_data import weights
from kfp_tfjob.components.prepare_data.column_profile import ColumnProfile, profile
from kfp_tfjob.components.prepare_data.columns_to_rows import Converter
from kfp_tfjob.components.prepare_data.faults import Faults, first_columns
from kfp_tfjob.components.prepare_data.images import folders
from kfp_tfjob.components.prepare_data.images.folders import problems_of
from kfp_tfjob.components.prepare_data.kinds import NO_KINDS, Feature, Kinds, decide
from kfp_tfjob.components.prepare_data.source import finished_dataset
from kfp_tfjob.components.prepare_data.source.files import Source, SourceFile
from kfp_tfjob.components.prepare_data.source.header import Columns, choose, no_rows
from kfp_tfjob.components.prepare_data.source.listing import (
    addresses_of,
    list_address,
    table_files,
)
from kfp_tfjob.components.prepare_data.source.readers.own_reader import OwnReader
from kfp_tfjob.components.prepare_data.source.readers.registry import open_table
from kfp_tfjob.components.prepare_data.split_rules import folder_problems
from kfp_tfjob.options.data import DataOptions, suffixes
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.checksum import file_sha256
from kfp_tfjob.storage.errors import DataError, Problem
from kfp_tfjob.storage.store import Store

_FIRST_BLOCK = 1 << 20  # bytes
_SMALL = 1 << 20  # bytes
_MOST_LOOKED = 64 << 20  # bytes, while blocks have no rows


def list_source(store: Store, data_uri: str, options: DataOptions | None = None) -> Source:
    """Find the files of `data_uri`.

    Args:
        store: The store of s3:// addresses.
        data_uri: A file, a folder, a pattern or several of them, in S3 or, in a local run, on this
            machine.
        options: The typed `data_options`; None for its defaults.

    Raises:
        ConfigurationError: The address is not supported, or the user's own reader is wrong.
        DataError: An address has no file, or a finished dataset that is not complete.
    """
    options = options or DataOptions()
    listings = [list_address(store, address) for address in addresses_of(data_uri)]
    own = options.reader
    if not own and (pictures := folders.find(listings, options.format)):
        files, classes = pictures
        return Source(data_uri, files, store, pictures=classes)
    files = tuple(table_files(listings, ("",) if own else suffixes()))
    dataset = None
    if len(listings) == 1 and listings[0].pattern is None:
        names = (file.name for file in files)
        dataset = finished_dataset.find(store, listings[0].address, names)
    reader = OwnReader.read(own, store) if own and not dataset else None
    return Source(data_uri, files, store, dataset, reader)


def source_digest(source: Source) -> str:
    """Return the SHA-256 over the sorted names, sizes and entity tags of the files.

    The code of the user's own reader is part of it, as it decides what is in the files.
    For a local file, the digest of its content replaces the tag, so the whole file is read. The
    digest of a finished dataset is that of its manifest.
    """
    if source.dataset:
        return source.dataset.manifest.digest
    digest = sha256()
    if source.reader:
        digest.update(f"reader {source.reader.digest}\n".encode())
    if source.splits_by_folder:  # before version 0.3, they were folders like any other
        digest.update(b"folders are splits\n")
    for file in source.files:
        digest.update(f"{file.name}\0{file.size}\0{_content_of(source, file)}\n".encode())
    return digest.hexdigest()


def _content_of(source: Source, file: SourceFile) -> str:
    """Return what stands for the content of a file in the digest."""
    if isinstance(file.location, S3Address):
        return file.tag
    if source.pictures and file.size <= _SMALL:  # twice as fast as a file that may be large
        return sha256(source.content(file)).hexdigest()
    return file_sha256(Path(file.location))


def first_kinds(source: Source, data_label: str, options: DataOptions) -> Kinds:
    """Return the kinds that the first block of the first file suggests; none without a block."""
    if source.dataset:
        known = source.dataset.kinds.items()
        return Kinds(tuple(Feature(name, kind, None, 0) for name, kind in known), ())
    found, _ = _first_block(source, data_label, options)
    return found


def columns_of(source: Source, data_label: str, options: DataOptions) -> Columns | None:
    """Return the columns that the header of the first file offers.

    None for pictures, and if the header has a problem, which `check_header` says.
    """
    if source.dataset:
        return Columns(tuple(source.dataset.kinds), source.dataset.label)
    if source.pictures:
        return None
    first = source.files[0]
    with open_table(source, first, options, _FIRST_BLOCK) as table:
        return choose(table.names, data_label, options, first.name)[0]


def check_header(source: Source, data_label: str, options: DataOptions) -> list[Problem]:
    """Return every problem that the first block of the first file shows.

    It is for preflight, so it takes seconds for any amount of data. If a bad row fails the run, a
    column that is bad in most rows of the block is among the problems.

    Args:
        source: The files.
        data_label: The label column.
        options: The typed `data_options`.
    """
    if source.dataset:
        return source.dataset.problems(data_label, options)
    try:
        if source.pictures:
            return problems_of(source, options)
        _, problems = _first_block(source, data_label, options)
        return [*folder_problems(source, options), *problems]
    except DataError as error:
        return [item if isinstance(item, Problem) else Problem(item) for item in error.problems]


def _first_block(
    source: Source, data_label: str, options: DataOptions
) -> tuple[Kinds, list[Problem]]:
    """Return the kinds of the first block that has rows, and its problems."""
    first = source.files[0]
    with open_table(source, first, options, _FIRST_BLOCK) as table:
        columns, problems = choose(table.names, data_label, options, first.name)
        problems += table.problems(columns) if columns and not problems else []
        if problems or columns is None:
            return NO_KINDS, problems
        looked = 0
        seen = {name: ColumnProfile(name) for name in columns.features}
        weight = () if options.weight is None else (options.weight,)
        for chunk in table.chunks(Columns(columns.features, data_label, extra=weight)):
            looked += chunk.size
            if chunk.faults.seen or looked > _MOST_LOOKED:
                break
        else:
            return NO_KINDS, [no_rows()] if len(source.files) == 1 else []
        if not chunk.faults.seen:
            return NO_KINDS, []
        profile(seen, chunk)
        kinds, problems = decide(seen.values(), options)
        for name in weight:
            weights.read(chunk, name)
        Converter(kinds, data_label, options.format_of(data_label)).rows(chunk)
        faults = Faults()
        faults.add(chunk.faults)
        if faults.shape_problem():
            return kinds, faults.problems()
        if problems or options.on_bad_row != "fail":
            return kinds, problems
        quote = faults.quote_problem()
        return kinds, [*([quote] if quote else []), *first_columns(faults.column_problems())]
