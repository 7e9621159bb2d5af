"""A source's digest, which distinguishes changed data from data that a run has read before.

Called by preflight and by prepare_data's engine.
"""

from __future__ import annotations

from collections import defaultdict
from hashlib import sha256

from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.checksum import file_sha256

from .files import Source, SourceFile


def source_digest(source: Source) -> str:
    """Return the SHA-256 over the sorted names, sizes and entity tags of the files.

    The user's reader code is part of it, as it decides what is in the files; so are the tables that
    list images.
    For a local file, the digest of its content replaces the tag, so the whole file is read.
    """
    digest = sha256()
    if source.reader:
        digest.update(f"reader {source.reader.digest}\n".encode())
    if source.splits_by_folder:  # before version 0.3, they were folders like any other
        digest.update(b"folders are splits\n")
    if source.pictures:  # until codec 6, their shards were no Parquet files
        digest.update(b"images in Parquet files\n")
    tables = source.pictures.tables if source.pictures else ()
    for file in (*tables, *source.files):
        digest.update(f"{file.name}\0{file.size}\0{_content(file)}\n".encode())
    return digest.hexdigest()


def copies(source: Source) -> dict[str, str]:
    """Return the files with the content of an earlier one, and the name of that one."""
    by_size: defaultdict[int, list[SourceFile]] = defaultdict(list)
    for file in source.files:
        by_size[file.size].append(file)
    copied: dict[str, str] = {}
    for files in by_size.values():
        firsts: dict[str, str] = {}
        for file in files if len(files) > 1 else ():
            first = firsts.setdefault(_content(file), file.name)
            copied |= {file.name: first} if first != file.name else {}
    return copied


def _content(file: SourceFile) -> str:
    return file.tag if isinstance(file.location, S3Address) else file_sha256(file.location)
