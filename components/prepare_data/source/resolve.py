"""Resolves data_uri: lists its files, and checks the header.

Called by preflight and by prepare_data's engine.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from kfp_tfjob.common.errors import DataError, Problem
from kfp_tfjob.common.formatting import listed
from kfp_tfjob.features.cells import matches
from kfp_tfjob.options.data import DataOptions
from kfp_tfjob.options.table_formats import suffixes
from kfp_tfjob.storage.layout import SCHEMA, STATISTICS
from kfp_tfjob.storage.store import Store

from .. import row_weights
from ..column_profile import ColumnProfile, profile
from ..columns_to_rows import Converter
from ..faults import Faults, first_columns
from ..images import folders, image_list
from ..kinds import NO_KINDS, Kinds, decide
from ..split_rules import folder_problems
from .column_names import Columns, Header, choose, longer_rows_fix, no_rows
from .delimiter import with_delimiter
from .files import SPLITS, Source
from .first_line import first_line_problem
from .listing import Listing, addresses_of, is_aside, list_address, table_files
from .readers.arrow_table import ArrowTable, Chunk
from .readers.open_table import open_table
from .readers.own_reader import OwnReader
from .unread_files import no_label_beside_images

_SHARD = re.compile(r"(?:train|validation|test)[-/][0-9]{5,}\.(?:parquet|tfrecord)")
_PADDED, _WHOLE = "^0[0-9]+$", "^[0-9]+$"
_PARTITION = re.compile(r"([^=]+)=(.*)")  # a folder, as Hive, Spark and pyarrow name them
_FIRST_BLOCK = 1 << 20  # bytes
_MOST_LOOKED = 64 << 20  # bytes in which to look for a block with rows
_MOST_HEADERS = 200  # files in which to look for a column


def list_source(store: Store, data_uri: str, options: DataOptions | None = None) -> Source:
    """Find the files of `data_uri`: a file, a folder, a pattern or several of them.

    Raises:
        ConfigurationError: The address is not supported, or the user's own reader is wrong.
        DataError: An address contains no file, or contains a dataset's shards.
    """
    options = options or DataOptions()
    listings = [list_address(store, address) for address in addresses_of(data_uri)]
    own = options.reader
    if not own and (pictures := folders.find(listings, options.format)):
        files, classes = pictures
        return Source(data_uri, files, store, pictures=classes)
    _refuse_other_folders(listings)
    if not own:
        folders.refuse_other_images(listings, store)
    files = tuple(table_files(listings, ("",) if own else suffixes()))
    reader = OwnReader.read(own, store) if own else None
    read = {file.location for file in files}
    folder_files = (file for listing in listings for file in listing.files if listing.is_folder)
    unread = [
        file for file in folder_files if file.location not in read and not is_aside(file.name)
    ]
    return Source(data_uri, files, store, reader, unread=unread)


def _refuse_other_folders(listings: Sequence[Listing]) -> None:
    """Reject folders whose files are not the rows, or not all columns, of their table.

    Raises:
        DataError: A folder is a dataset of prepare_data, whose shards have codes where the source
            has strings, a Delta or Iceberg table, or has partitions as Hive writes them.
    """
    for listing in listings:
        names = [file.name for file in listing.files]
        dataset = {SCHEMA, STATISTICS}.issubset(names) and any(map(_SHARD.fullmatch, names))
        if dataset and listing.is_folder:
            raise _not_the_table(
                "data_uri is a dataset that prepare_data wrote",
                listing.address,
                "give the address of the rows that it was prepared from",
            )
        if name := listing.lake_log():
            raise _not_the_table(
                "data_uri is a Delta or Iceberg table, whose folder also contains deleted and"
                " replaced rows",
                name,
                "write the table as plain Parquet files",
            )
        folders = dict.fromkeys(folder for name in names for folder in name.split("/")[:-1])
        partitions = map(_PARTITION.fullmatch, folders)
        keys = dict.fromkeys(it[1] for it in partitions if it and it[2].lower() not in SPLITS)
        if keys and listing.is_folder:
            raise _not_the_table(
                "the folders in data_uri are partitions, so its files lack columns",
                f"folders for {listed(list(keys), 5)}",
                "write the table as plain Parquet files, without partitions; or omit these columns"
                " with FOLDER/**/*.parquet",
            )


def _not_the_table(summary: str, received: str, fix: str) -> DataError:
    expected = "files that together are the table"
    return DataError(Problem(summary, received, expected, fix, path="data_uri"))


def check_header(source: Source, data_label: str, options: DataOptions) -> list[Problem]:
    """Return every problem that the first block of the first file shows.

    It is for preflight, so it takes seconds for any amount of data. If a bad row fails the run, a
    column that is bad in most rows of the block is among the problems.
    """
    try:
        if source.pictures:
            images = image_list if source.pictures.tables else folders
            return images.problems_of(source, options, data_label)
        options = with_delimiter(source, options)
        _, _, problems = first_block(source, data_label, options)
        return [*folder_problems(source, options), *problems]
    except DataError as error:
        return error.as_problems


def first_block(
    source: Source, data_label: str, options: DataOptions
) -> tuple[Columns | None, Kinds, list[Problem]]:
    """Look at the first block of the first file that has rows.

    Returns:
        The columns, None if the header has a problem; the kinds that the values suggest, none
        without a block; and the problems of the header or of the values.

    Raises:
        DataError: The file cannot be read, or not as a table.
    """
    first = source.files[0]
    if problem := no_label_beside_images(source, data_label):
        return None, NO_KINDS, [problem]
    with open_table(source, first, options, _FIRST_BLOCK) as table:
        if problem := first_line_problem(table, options, data_label):
            return None, NO_KINDS, [problem]
        elsewhere = _dropped_elsewhere(source, table.header, options)
        columns, problems = choose(table.header, data_label, options, first.name, elsewhere)
        problems += table.problems(columns) if columns and not problems else []
        if problems or columns is None:
            return None, NO_KINDS, problems
        columns = replace(columns, null_values=table.null_values)
        try:
            return columns, *_check_first_rows(source, table, columns, options)
        except DataError as error:
            return columns, NO_KINDS, error.as_problems


def _dropped_elsewhere(source: Source, header: Header, options: DataOptions) -> set[str]:
    """Return the columns to drop that not the first file has, but a later one."""
    names = {name.removesuffix("[0]") for name in header.names}
    missing, elsewhere = set(options.drop) - names, set()
    for file in source.files[1:_MOST_HEADERS]:
        if elsewhere == missing:
            break
        with open_table(source, file, options, _FIRST_BLOCK) as table:
            elsewhere |= missing.intersection(table.header.names)
    return elsewhere


def _check_first_rows(
    source: Source, table: ArrowTable, columns: Columns, options: DataOptions
) -> tuple[Kinds, list[Problem]]:
    """Infer the column types from the first block with rows, and check its values.

    Returns:
        The column types, and the block's problems. If the columns' order or number is wrong, only
        that is reported, because the values are then in the wrong columns. Without such a block,
        NO_KINDS; this is a problem only if the source's only file has no rows.
    """
    bytes_read = 0
    weight_columns = () if options.weight is None else (options.weight,)
    chunks = iter(table.chunks(Columns(columns.features, columns.label, extra=weight_columns)))
    for chunk in chunks:
        bytes_read += chunk.size
        if chunk.faults.seen or bytes_read > _MOST_LOOKED:
            break
    else:
        return NO_KINDS, [no_rows()] if len(source.files) == 1 else []
    # Preflight must end soon, so it does not search the whole file for a row.
    if not chunk.faults.seen:
        return NO_KINDS, []
    profiles = {name: ColumnProfile(name) for name in columns.features}
    profile(profiles, chunk)
    is_whole = len(source.files) == 1 and next(chunks, None) is None
    kinds, problems = decide(profiles.values(), options, is_whole=is_whole)
    kinds = replace(kinds, padded=_padded(chunk, kinds, options))
    # This and the converter add the invalid values to the chunk's faults.
    for name in weight_columns:
        row_weights.read(chunk, name)
    chunk.faults.dropping = options.dropping(chunk.columns, columns.label)
    Converter(kinds, columns.label, options.format_of(columns.label)).rows(chunk)
    faults = Faults(label=columns.label, options=options)
    faults.merge(chunk.faults)
    if order_problem := faults.order_problem():
        return kinds, [order_problem]
    if faults.shape_problem():
        return kinds, faults.problems(longer_rows_fix(table.header, options))
    if problems or options.on_bad_row != "fail":
        return kinds, problems
    quote_problem = faults.quote_problem()
    quote_problems = [quote_problem] if quote_problem else []
    return kinds, [*quote_problems, *first_columns(faults.column_problems())]


def _padded(chunk: Chunk, kinds: Kinds, options: DataOptions) -> frozenset[str]:
    """Return the features with whole numbers, some with leading zeros, as in codes."""
    padded = set()
    for name in (feature.name for feature in kinds.features if feature.type.is_direct):
        cells = chunk.cells(name)
        if name in options.types or cells.is_numeric or cells.is_temporal:
            continue
        texts = cells.texts.filter(pa.array(~cells.gaps))
        if matches(texts, _PADDED).any() and matches(texts, _WHOLE).all():
            padded.add(name)
    return frozenset(padded)
