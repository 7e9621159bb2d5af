"""A source's digest, which distinguishes changed data from data that a run has read before."""

from __future__ import annotations

from hashlib import sha256

from kfp_tfjob.components.prepare_data.source.files import Source
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.checksum import file_sha256


def source_digest(source: Source) -> str:
    """Return the SHA-256 over the sorted names, sizes and entity tags of the files.

    The user's reader code is part of it, as it decides what is in the files.
    For a local file, the digest of its content replaces the tag, so the whole file is read.
    """
    digest = sha256()
    if source.reader:
        digest.update(f"reader {source.reader.digest}\n".encode())
    if source.splits_by_folder:  # before version 0.3, they were folders like any other
        digest.update(b"folders are splits\n")
    for file in source.files:
        where = file.location
        content = file.tag if isinstance(where, S3Address) else file_sha256(where)
        digest.update(f"{file.name}\0{file.size}\0{content}\n".encode())
    return digest.hexdigest()
