"""Records beside the output what this pod has stored, so a restarted sidecar sends nothing twice.

The journal has one JSON object per line and is append-only. A truncated line ends it. A file
without a line is sent again, which only costs time: its line was truncated, not flushed or not
writable. Only removals are flushed at once, before the store deletes the objects, because the
journal must never name an object that does not exist.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kfp_tfjob.storage import files
from kfp_tfjob.storage.layout import UPLOADER_JOURNAL
from kfp_tfjob.storage.manifest import ManifestObject
from kfp_tfjob.uploader.inventory import LocalFile

log = logging.getLogger(__name__)

FORMAT = "kfp-tfjob/journal/1"


@dataclass(frozen=True)
class Stored:
    """A stored file: its state when it was sent, and its object."""

    file: LocalFile
    object: ManifestObject


class Journal:
    """The journal of one sidecar.

    Args:
        folder: Where it is stored; None keeps it in memory only.
        owner: Store, run and attempt. A journal of a different owner is discarded.

    Attributes:
        stored: Stored files, by path.
        published: Steps with a manifest in the store.
        uploads: Unfinished multipart uploads, by path: the file and the upload id.
    """

    def __init__(self, folder: Path | None, owner: str) -> None:
        self.stored: dict[str, Stored] = {}
        self.published: set[int] = set()
        self.uploads: dict[str, tuple[LocalFile, str]] = {}
        self._path = folder / UPLOADER_JOURNAL if folder else None
        self._owner = owner
        self._file: Any = None
        if self._path:
            self._load(self._path)
            self._rewrite(self._path)

    def has(self, file: LocalFile) -> bool:
        """Return whether a file is stored in this state."""
        stored = self.stored.get(file.path)
        return stored is not None and (stored.file, stored.object.size) == (file, file.size)

    def add(self, stored: Stored) -> None:
        """Record a stored file; `flush` writes the record to disk."""
        self.stored[stored.file.path] = stored
        self._write(_stored_line(stored))

    def flush(self) -> None:
        """Write the buffered lines; a write for every small file would cost too much CPU."""
        if file := self._file:  # another thread may set it to None meanwhile
            try:
                file.flush()
            except OSError as error:
                self._give_up(error)

    def upload(self, file: LocalFile, upload_id: str) -> None:
        """Record that a multipart upload began; an empty id records that it ended."""
        if upload_id:
            self.uploads[file.path] = (file, upload_id)
        else:
            self.uploads.pop(file.path, None)
        self._write({"upload": upload_id, "file": vars(file)})
        self.flush()

    def publish(self, step: int, published: bool = True) -> None:
        """Record that the manifest of a step is written, or no longer exists."""
        if published:
            self.published.add(step)
        elif step in self.published:
            self.published.discard(step)
        else:
            return
        self._write({"step": step, "published": published})
        self.flush()

    def forget(self, paths: Iterable[str]) -> None:
        """Record that files are no longer stored."""
        for path in paths:
            if self.stored.pop(path, None):
                self._write({"forget": path})
        self.flush()

    def _load(self, path: Path) -> None:
        try:
            lines = path.read_text(encoding="utf-8", errors="surrogateescape").split("\n")
            if json.loads(lines[0]) != self._head():
                return
            for line in lines[1:-1]:
                self._apply(json.loads(line))
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("ignoring the journal from a damaged line on: %s", error)
        if self.stored or self.uploads:
            log.info("the journal lists %d stored files", len(self.stored))

    def _apply(self, line: dict[str, Any]) -> None:
        if "object" in line:
            stored = Stored(LocalFile(**line["file"]), ManifestObject(**line["object"]))
            self.stored[stored.file.path] = stored
        elif "upload" in line:
            file = LocalFile(**line["file"])
            self.uploads.pop(file.path, None)
            if line["upload"]:
                self.uploads[file.path] = (file, line["upload"])
        elif "forget" in line:
            self.stored.pop(line["forget"], None)
        else:
            (self.published.add if line["published"] else self.published.discard)(line["step"])

    def _head(self) -> dict[str, str]:
        return {"format": FORMAT, "owner": self._owner}

    def _rewrite(self, path: Path) -> None:
        """Start a new journal with the current entries, without obsolete lines."""
        lines = [self._head(), *map(_stored_line, self.stored.values())]
        lines += [{"upload": id_, "file": vars(file)} for file, id_ in self.uploads.values()]
        lines += [{"step": step, "published": True} for step in sorted(self.published)]
        try:
            path.parent.mkdir(exist_ok=True)
            files.write(path, b"".join(map(_encode, lines)))
            self._file = open(path, "ab")  # noqa: SIM115 - open until the process ends
        except OSError as error:
            self._give_up(error)

    def _write(self, line: dict[str, Any]) -> None:
        if file := self._file:
            try:
                file.write(_encode(line))
            except OSError as error:
                self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        """Continue without a journal: an incomplete one would soon be wrong."""
        log.warning("cannot write the journal; a restart would send everything again: %s", error)
        self._file = None
        with suppress(OSError):
            if self._path:
                self._path.unlink()


def _encode(line: dict[str, Any]) -> bytes:
    return (json.dumps(line) + "\n").encode()


def _stored_line(stored: Stored) -> dict[str, Any]:
    return {"file": vars(stored.file), "object": vars(stored.object)}
