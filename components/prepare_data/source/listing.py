"""Finds the files of `data_uri`: files, folders, patterns, and several of them.

Several addresses are on lines of their own, or separated by commas. In a pattern, `*` and `?` stand
for characters of one name, `[ab]` for one of these, and `**` for folders at any depth. A folder
has the files with a known ending; a pattern that matches a file takes any. Links to files and to
folders are followed.
"""

from __future__ import annotations

import os
import re
import stat
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from kfp_tfjob.components.prepare_data.source.files import SPLITS, SourceFile
from kfp_tfjob.options.data import suffixes
from kfp_tfjob.options.parse import no_path
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.errors import ConfigurationError, DataError, ObjectNotFoundError, Problem
from kfp_tfjob.storage.formatting import listed
from kfp_tfjob.storage.store import Store

ANY_ENDING = ("",)
_WILD = re.compile(r"[*?\[]")
_HIDDEN = (".", "_")  # a name that begins so is no data


def addresses_of(data_uri: str) -> list[str]:
    """Return the addresses in `data_uri`; a comma in the path of an existing file is its own."""
    found = []
    for line in data_uri.splitlines():
        if "://" in line:
            found += re.split(r",\s*(?=[A-Za-z][A-Za-z0-9+.-]*://)", line)
        elif Path(line.strip()).expanduser().exists():
            found.append(line)
        else:
            found += line.split(",")
    return [address.strip() for address in found if address.strip()]


def is_pattern(address: str) -> bool:
    """Tell whether an address has a wildcard."""
    return bool(_WILD.search(address))


def files_at(
    store: Store, data_uri: str, endings: tuple[str, ...] | None = None
) -> list[SourceFile]:
    """Return the files of `data_uri`, sorted by name.

    Args:
        store: The store.
        data_uri: As in the form.
        endings: Of the files in a folder that count, an empty one takes any; None for those of
            the known formats.

    Raises:
        ConfigurationError: An address is not supported.
        DataError: An address has no file, or a file is there twice.
    """
    endings = endings or suffixes()
    addresses = addresses_of(data_uri) or [data_uri]
    found: list[SourceFile] = []
    for address in addresses:
        files = _of_one(store, address, endings)
        if len(addresses) > 1:
            # The names below two addresses may be equal, so the whole address is the name.
            folder = SPLITS.get(_folder(address, files), "")
            files = [
                replace(file, name=str(file.location), split=file.split or folder) for file in files
            ]
        found += files
    twice = [name for name, count in Counter(file.name for file in found).items() if count > 1]
    if twice:
        raise DataError(
            Problem(
                "data_uri names files more than once",
                received=listed(twice, 5),
                expected="addresses without a file in common",
                fix="correct data_uri",
                path="data_uri",
            )
        )
    return sorted(found, key=lambda file: file.name)


def _of_one(store: Store, address: str, endings: tuple[str, ...]) -> list[SourceFile]:
    scheme, separator, _ = address.partition("://")
    if separator and scheme != "s3":
        raise ConfigurationError(
            Problem(
                "data_uri is not an address that prepare_data can read",
                received=repr(address),
                expected="s3://BUCKET/KEY or, in a local run, a path",
                fix="copy the data to S3 and give its address",
                path="data_uri",
            )
        )
    files = list(_objects(store, address, endings) if separator else _paths(address, endings))
    if files:
        return files
    wild = _WILD.search(address)
    expected = f"a file, or a folder with files that end in {', '.join(suffixes())}"
    if not separator and not wild and not (path := Path(address).expanduser()).exists():
        raise DataError(no_path("data_uri", path, expected))
    raise DataError(
        Problem(
            "no file matches the pattern in data_uri" if wild else "data_uri holds no data",
            received=repr(address),
            expected=expected,
            fix="correct data_uri"
            + ("" if separator else "; a path works only in a run on this machine"),
            path="data_uri",
        )
    )


def _objects(store: Store, text: str, endings: tuple[str, ...]) -> Iterator[SourceFile]:
    address = S3Address.parse(text, "data_uri")
    if address.key and not text.endswith("/"):
        try:
            head = store.head(address)
        except ObjectNotFoundError:
            pass  # a prefix, then
        else:
            tag = head["ETag"].strip('"')
            yield SourceFile(address.name, head["ContentLength"], address, tag)
            return
    base, pattern = _pattern(address.key)
    folder = S3Address(address.bucket, base)
    start = len(base) + 1 if base else 0
    for item in store.list(folder):
        name = item.address.key[start:]
        if _wanted(name, pattern, endings):
            yield SourceFile(name, item.size, item.address, item.etag, _split_of(name))


def _paths(text: str, endings: tuple[str, ...]) -> Iterator[SourceFile]:
    top = Path(text).expanduser()
    if top.is_file():
        yield SourceFile.local(top, top.name)
        return
    base, pattern = _pattern(top.as_posix())
    top = Path(base or ("/" if top.is_absolute() else "."))
    broken = []
    for name, status, _ in walk(top, _is_data) if top.is_dir() else ():
        is_file = status is None or stat.S_ISREG(status.st_mode)
        if is_file and _wanted(name, pattern, endings):
            try:
                yield replace(SourceFile.local(top / name, name), split=_split_of(name))
            except OSError as error:
                broken.append(f"{name} ({error.strerror})")
    if broken:
        raise DataError(
            Problem(
                "data_uri has links to files that do not exist",
                received=listed(sorted(broken), 5),
                expected="links to files that can be read",
                fix="correct or remove the links",
                path="data_uri",
            )
        )


def walk(
    top: Path, is_data: Callable[[str], bool]
) -> Iterator[tuple[str, os.stat_result | None, bool]]:
    """Yield what is below a folder on this machine, following links.

    Args:
        top: The folder.
        is_data: Tells whether a name in a folder counts.

    Yields:
        The name below `top`; its status, None for a link to nothing or to itself; and whether it
        is a link back to a folder above itself, which is not followed.

    Raises:
        DataError: A folder cannot be read.
    """
    status = top.stat()
    waiting = [(os.fspath(top), "", frozenset({(status.st_dev, status.st_ino)}))]
    while waiting:
        folder, prefix, above = waiting.pop()
        try:
            entries = os.scandir(folder)
        except OSError as error:
            raise DataError(
                Problem(
                    f"the folder {folder} cannot be read",
                    received=error.strerror,
                    fix="correct its permissions, or data_uri",
                    path="data_uri",
                )
            ) from error
        with entries:
            for entry in entries:
                if not is_data(entry.name):
                    continue
                name = prefix + entry.name
                try:
                    status = entry.stat()
                except OSError:
                    yield name, None, False
                    continue
                place = (status.st_dev, status.st_ino)
                is_loop = stat.S_ISDIR(status.st_mode) and place in above
                yield name, status, is_loop
                if stat.S_ISDIR(status.st_mode) and not is_loop:
                    waiting.append((entry.path, f"{name}/", above | {place}))


def _pattern(path: str) -> tuple[str, re.Pattern[str] | None]:
    """Return the folder above the first wildcard, and the pattern below it; None without one."""
    parts = path.split("/")
    wild = next((i for i, part in enumerate(parts) if _WILD.search(part)), None)
    if wild is None:
        return path, None
    regex = "/".join(map(_translated, parts[wild:])).replace(r"(?:.*)/", r"(?:.*/)?")
    try:
        return "/".join(parts[:wild]), re.compile(rf"{regex}(?P<below>/.*)?", re.DOTALL)
    except re.error as error:
        raise ConfigurationError(
            Problem(
                "data_uri has a pattern that cannot be read",
                received=repr(path),
                expected="for instance s3://bucket/2026-*/part-[0-9]*.csv",
                fix=f"correct data_uri ({error})",
                path="data_uri",
            )
        ) from error


def _translated(part: str) -> str:
    if part == "**":
        return r"(?:.*)"
    found = ""
    for piece in re.findall(r"\*+|\?|\[[^\]]+\]|.", part, re.DOTALL):
        if piece[0] == "*":
            found += "[^/]*"
        elif piece == "?":
            found += "[^/]"
        elif len(piece) > 1:
            inner = piece[1:-1].replace("\\", r"\\")
            found += f"[^{inner[1:]}]" if inner[0] == "!" else f"[{inner}]"
        else:
            found += re.escape(piece)
    return found


def _wanted(name: str, pattern: re.Pattern[str] | None, endings: tuple[str, ...]) -> bool:
    """Tell whether a name in a folder is data: not hidden, not a marker like _SUCCESS."""
    if not all(map(_is_data, name.split("/"))):
        return False
    in_folder = True
    if pattern:
        match = pattern.fullmatch(name)
        if not match:
            return False
        in_folder = bool(match["below"])
    return not in_folder or name.lower().endswith(endings)


def _is_data(name: str) -> bool:
    return not name.startswith(_HIDDEN)


def _split_of(name: str) -> str:
    folder, separator, _ = name.partition("/")
    return SPLITS.get(folder.lower(), "") if separator else ""


def _folder(address: str, files: list[SourceFile]) -> str:
    """Return the last folder that the address of some files names, in lower case."""
    parts = [part for part in address.lower().split("/") if part and not is_pattern(part)]
    if parts and parts[-1] in {str(file.location).lower().rpartition("/")[2] for file in files}:
        parts.pop()
    return parts[-1] if parts else ""
