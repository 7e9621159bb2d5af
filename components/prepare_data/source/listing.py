"""Finds the files of `data_uri`: files, folders, patterns, and several of them.

Several addresses are on lines of their own, or separated by commas. In a pattern, `*` and `?` stand
for characters of one name, `[ab]` for one of these, and `**` for folders at any depth. A folder
has the files with a known ending; a pattern that matches a file takes any. Links to files are
followed. Called when data_uri is resolved.
"""

from __future__ import annotations

import os
import posixpath
import re
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path

from kfp_tfjob.common.errors import ConfigurationError, DataError, ObjectNotFoundError, Problem
from kfp_tfjob.common.escaping import is_utf8
from kfp_tfjob.common.formatting import listed
from kfp_tfjob.options.parse import no_path
from kfp_tfjob.options.table_formats import FORMAT_WORDS, suffixes
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.store import Store

from .files import SPLITS, SourceFile, mark

_WILD = re.compile(r"[*?\[]")
_OF_SYSTEMS = frozenset({"thumbs.db", "desktop.ini", "__macosx", "$recycle.bin"})
_OPEN_IN_OFFICE = "~$"  # Excel writes such a file next to an open one
_LAKE_FOLDERS = ("_delta_log", "metadata")  # of Delta and Iceberg tables
_LAKE_LOG = re.compile(r"(?:^|/)(?:_delta_log/|metadata/[^/]+\.metadata\.json$)")
_NO_TABLE = "_"  # a file or folder that begins so is no table: _SUCCESS, _temporary


@dataclass(frozen=True)
class Listing:
    """The files at one address, without hidden files and operating systems' own files.

    Attributes:
        address: As given.
        files: Sorted by name; with a pattern, also files beside those that it matches.
        pattern: The parts of the file name pattern; empty for a folder, None for a file.
    """

    address: str
    files: list[SourceFile]
    pattern: tuple[str, ...] | None = None

    @property
    def is_folder(self) -> bool:
        """Whether the address is a folder."""
        return self.pattern == ()

    @cached_property
    def matched(self) -> list[SourceFile]:
        """The files that the address means, without those that programs write next to tables."""
        return [
            file
            for file in self.files
            if not is_aside(file.name)
            and _below(file.name.split("/"), self.pattern or ()) is not None
        ]

    def lake_log(self) -> str:
        """Return a log file of a Delta or Iceberg table that has files of the listing, or ""."""
        logs: dict[str, str] = {}
        for name in (file.name for file in self.files):
            if log := _LAKE_LOG.search(name):
                logs.setdefault(name[: log.start()], name)
        for table, log_name in logs.items():
            below = f"{table}/" if table else ""
            if any(file.name.startswith(below) for file in self.matched):
                return log_name
        return ""


_EXPECTED = f"a file, or a folder with files that end in {', '.join(suffixes())}"
_OTHERS = (
    f"save its tables as {FORMAT_WORDS}, write a function that reads them and name the"
    " function in data_options.reader, or "
)
_ONLY_HERE = "; a path works only in a run on this machine"


def addresses_of(data_uri: str) -> list[str]:
    """Return the addresses in `data_uri`; a comma in the path of an existing file is its own."""
    addresses = []
    for line in data_uri.splitlines():
        if "://" in line:
            addresses += re.split(r",\s*(?=[A-Za-z][A-Za-z0-9+.-]*://)", line)
        elif Path(line.strip()).expanduser().exists():
            addresses.append(line)
        else:
            addresses += line.split(",")
    return [address.strip() for address in addresses if address.strip()] or [data_uri]


def list_address(store: Store, address: str) -> Listing:
    """Return the files at one address.

    Raises:
        ConfigurationError: The address is not supported.
        DataError: There is no such path, a folder cannot be read, or a name is not UTF-8.
    """
    scheme, separator, _ = address.partition("://")
    if separator and scheme != "s3":
        raise ConfigurationError(
            Problem(
                "data_uri is not an address that prepare_data can read",
                received=repr(address),
                expected="s3://BUCKET/KEY or, in a local run, a path",
                fix="copy the data to S3 and pass its address",
                path="data_uri",
            )
        )
    listing = _objects(store, address) if separator else _paths(address)
    if wrong := [ascii(file.name) for file in listing.matched if not is_utf8(file.name)]:
        summary, received = "data_uri contains names that are not UTF-8", listed(wrong, 5)
        raise DataError(
            Problem(summary, received=received, fix="rename the files", path="data_uri")
        )
    return listing


def table_files(listings: list[Listing], endings: tuple[str, ...]) -> list[SourceFile]:
    """Return the tables at all addresses, sorted by name.

    Args:
        listings: The files at each address.
        endings: The endings of files to read in a folder; an empty one matches every file.

    Raises:
        DataError: An address contains no file, or a file is listed twice.
    """
    tables: list[SourceFile] = []
    for listing in listings:
        files, pattern = listing.files, listing.pattern
        if pattern is not None:
            files = [file for file in files if _is_table(file.name, pattern, endings)]
        if not files:
            other_names = "" if pattern else listed([file.name for file in listing.files], 5)
            raise DataError(
                Problem(
                    "no file matches the pattern in data_uri"
                    if pattern
                    else "data_uri contains no data",
                    received=repr(listing.address)
                    + (f", which has {other_names}" if other_names else ""),
                    expected=_EXPECTED,
                    fix=(_OTHERS if other_names else "")
                    + "correct data_uri"
                    + ("" if "://" in listing.address else _ONLY_HERE),
                    path="data_uri",
                )
            )
        if len(listings) > 1:
            # The names below two addresses may be equal, so the whole address is the name.
            folder = SPLITS.get(_folder(listing.address, files), "")
            files = [
                replace(file, name=str(file.location), split=file.split or folder) for file in files
            ]
        tables += files
    # A link has the tag of its file.
    counts = Counter(_identity(file) for file in tables)
    if twice := [file.name for file in tables if counts[_identity(file)] > 1]:
        raise DataError(
            Problem(
                "data_uri names files more than once",
                received=listed(twice, 5),
                expected="each file once, and no links to other files in data_uri",
                fix="correct data_uri, or remove the link",
                path="data_uri",
            )
        )
    return sorted(tables, key=lambda file: file.name)


def files_named(
    store: Store, folder: S3Address | str, names: Iterable[str]
) -> Iterator[SourceFile]:
    """Yield the files of some names that exist below a folder.

    Args:
        store: The store of a folder in S3.
        folder: The folder.
        names: Paths relative to it, with `/` and without `.` and `..`; at least one.
    """
    if isinstance(folder, str):
        for name in names:
            path = os.path.join(folder, name)
            try:
                status = os.stat(path)
            except (OSError, ValueError):  # a NUL is no character of a path
                continue
            if stat.S_ISREG(status.st_mode):
                yield SourceFile(name, status.st_size, path, mark(status))
        return
    # A list has a thousand objects, so it takes less than a request for each name.
    names = {*names}
    common = posixpath.commonpath(map(posixpath.dirname, names))
    start = len(folder.key) + 1 if folder.key else 0
    for item in store.list(folder / common if common else folder):
        if (name := item.address.key[start:]) in names:
            yield SourceFile(name, item.size, item.address, item.etag)


def split_of(name: str) -> str:
    """Return the split that the top folder of a file's name means; empty for none."""
    folder, separator, _ = name.partition("/")
    return SPLITS.get(folder.lower(), "") if separator else ""


def _identity(file: SourceFile) -> str | S3Address:
    return file.tag if isinstance(file.location, str) else file.location


def _objects(store: Store, text: str) -> Listing:
    address = S3Address.parse(text, "data_uri")
    if address.key and not text.endswith("/"):
        try:
            head = store.head(address)
        except ObjectNotFoundError:
            pass  # a prefix, then
        else:
            tag = head["ETag"].strip('"')
            return Listing(text, [SourceFile(address.name, head["ContentLength"], address, tag)])
    base, pattern = _pattern(address.key)
    start = len(base) + 1 if base else 0
    files = [
        SourceFile(name, item.size, item.address, item.etag, split_of(name))
        for item in store.list(S3Address(address.bucket, base))
        if (name := item.address.key[start:]) and not any(map(_is_hidden, name.split("/")))
    ]
    files = [file for file in files if not file.name.endswith("/")]  # the mark of a folder
    return Listing(text, sorted(files, key=lambda file: file.name), pattern)


def _paths(text: str) -> Listing:
    top = Path(text).expanduser()
    if top.is_file():
        status = top.stat()
        file = SourceFile(top.name, status.st_size, str(top.absolute()), mark(status))
        return Listing(text, [file])
    base, pattern = _pattern(top.as_posix(), os.path.exists)
    if not pattern and not top.exists():
        raise DataError(no_path("data_uri", top, _EXPECTED))
    top = Path(base or ("/" if top.is_absolute() else ".")).absolute()
    files = _walk(top, pattern) if top.is_dir() else ()
    return Listing(text, sorted(files, key=lambda file: file.name), pattern)


def _walk(top: Path, pattern: tuple[str, ...]) -> list[SourceFile]:
    """Return the files below a folder on this machine, following links to files.

    Args:
        top: The folder.
        pattern: The parts of the file name pattern below it. Folders that can contain no match are
            skipped, but for those by which lake formats are recognized.

    Raises:
        DataError: A folder cannot be read, or a link leads to a folder or to nothing.
    """

    def refuse(error: OSError) -> None:
        raise DataError(
            Problem(
                f"the folder {error.filename} cannot be read",
                received=error.strerror,
                fix="correct its permissions, or data_uri",
                path="data_uri",
            )
        ) from error

    source_files: list[SourceFile] = []
    links: list[str] = []
    for folder, folders, files in os.walk(top, onerror=refuse):
        above = Path(folder).relative_to(top).parts
        folders[:] = [
            name
            for name in folders
            if not _is_hidden(name)
            and (name in _LAKE_FOLDERS or _can_match((*above, name), pattern))
        ]
        links += [
            path
            for name in folders
            if _can_match((*above, name), pattern)
            and os.path.islink(path := os.path.join(folder, name))
        ]
        for file_name in files:
            if _is_hidden(file_name):
                continue
            path = os.path.join(folder, file_name)
            try:
                status = os.stat(path)
            except OSError:
                if _below([*above, file_name], pattern) is not None:
                    links.append(path)
                continue
            if stat.S_ISREG(status.st_mode):
                name = "/".join((*above, file_name))
                source_files.append(
                    SourceFile(name, status.st_size, path, mark(status), split_of(name))
                )
    if links:
        summary = "data_uri contains links to folders, or to files that do not exist"
        fix = "remove the links; to read a linked folder, list its real path in data_uri"
        received = listed(sorted(links), 5)
        raise DataError(Problem(summary, received=received, fix=fix, path="data_uri"))
    return source_files


def _pattern(
    path: str, exists: Callable[[str], bool] = lambda _: False
) -> tuple[str, tuple[str, ...]]:
    """Return the folder above the first wildcard, and the parts of the pattern below it.

    Args:
        path: A path, or a key in S3.
        exists: Tells whether a path exists: an existing folder `data [1]` is not a wildcard.
    """
    parts = path.split("/")
    for i, part in enumerate(parts):
        if _WILD.search(part) and not exists("/".join(parts[: i + 1])):
            return "/".join(parts[:i]), tuple(parts[i:])
    return path, ()


def _is_table(name: str, pattern: tuple[str, ...], endings: tuple[str, ...]) -> bool:
    """Return whether a file in a folder, or that a pattern matches, is a table."""
    below = _below(name.split("/"), pattern)
    if below is None or is_aside(name):
        return False
    return not below or name.lower().endswith(endings)


def is_aside(name: str) -> bool:
    """Return whether a file is one that programs write next to tables, such as _SUCCESS."""
    return any(part.startswith(_NO_TABLE) for part in name.split("/"))


def _below(parts: list[str], pattern: tuple[str, ...]) -> list[str] | None:
    """Return the parts of a name below what a pattern matches; None if it does not match."""
    if not pattern:
        return parts
    first, deeper = pattern[0], pattern[1:]
    if first != "**":
        return _below(parts[1:], deeper) if parts and fnmatchcase(parts[0], first) else None
    if not deeper:
        return []
    matches = (_below(parts[i:], deeper) for i in reversed(range(len(parts))))
    return next((below for below in matches if below is not None), None)


def _can_match(folders: tuple[str, ...], pattern: tuple[str, ...]) -> bool:
    """Return whether a pattern can match files below a folder; `folders` are its path's parts."""
    for folder, part in zip(folders, pattern, strict=False):
        if part == "**":
            return True
        if not fnmatchcase(folder, part):
            return False
    return True


def _is_hidden(name: str) -> bool:
    return name.startswith((".", _OPEN_IN_OFFICE)) or name.lower() in _OF_SYSTEMS


def _folder(address: str, files: list[SourceFile]) -> str:
    """Return the last folder that the address of some files names, in lower case."""
    parts = [part for part in address.lower().split("/") if part and not _WILD.search(part)]
    if parts and parts[-1] in {str(file.location).lower().rpartition("/")[2] for file in files}:
        parts.pop()
    return parts[-1] if parts else ""
