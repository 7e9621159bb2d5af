"""What this pod has stored, kept beside the output: a restarted sidecar sends nothing twice.

One JSON object a line, only ever appended to. A line that was cut off ends the journal; what it
would have said is sent again, which costs time and nothing else. So does a journal that cannot be
written at all, and what was not flushed. Only what is taken back is flushed at once, before the
store is told: a journal must never name what is not there.
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
    """A file that is in the store: what it was when it was sent, and the object it became."""

    file: LocalFile
    object: ManifestObject


class Journal:
    """The journal of one sidecar.

    Args:
        folder: Where it is stored; None keeps it in memory only.
        owner: Whose it is: store, run and attempt. A journal of another one is not believed.

    Attributes:
        stored: What is stored, by path.
        published: The steps whose manifests are written.
        uploads: Uploads in parts that were begun and not ended, by path: the file and their id.
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
        """Tell whether a file is stored as it is."""
        stored = self.stored.get(file.path)
        return stored is not None and (stored.file, stored.object.size) == (file, file.size)

    def add(self, stored: Stored) -> None:
        """Remember a file that was stored; `flush` brings it to the disk."""
        self.stored[stored.file.path] = stored
        self._write(_stored_line(stored))

    def flush(self) -> None:
        """Write what is only remembered; a write for every small file would cost as much CPU."""
        if file := self._file:  # another thread may give it up meanwhile
            try:
                file.flush()
            except OSError as error:
                self._give_up(error)

    def upload(self, file: LocalFile, upload_id: str) -> None:
        """Remember an upload in parts that began, or with an empty id that it ended."""
        if upload_id:
            self.uploads[file.path] = (file, upload_id)
        else:
            self.uploads.pop(file.path, None)
        self._write({"upload": upload_id, "file": vars(file)})
        self.flush()

    def publish(self, step: int, published: bool = True) -> None:
        """Remember that the manifest of a step is written, or is not there any more."""
        if published:
            self.published.add(step)
        elif step in self.published:
            self.published.discard(step)
        else:
            return
        self._write({"step": step, "published": published})
        self.flush()

    def forget(self, paths: Iterable[str]) -> None:
        """Remember that files are not stored any more."""
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
            log.warning("the journal is read up to a line that is damaged: %s", error)
        if self.stored or self.uploads:
            log.info("the journal names %d stored files", len(self.stored))

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
        """Begin a journal with what is known, without the lines that no longer matter."""
        lines = [self._head(), *map(_stored_line, self.stored.values())]
        lines += [{"upload": id_, "file": vars(file)} for file, id_ in self.uploads.values()]
        lines += [{"step": step, "published": True} for step in sorted(self.published)]
        try:
            path.parent.mkdir(exist_ok=True)
            files.write(path, b"".join(map(_encode, lines)))
            self._file = open(path, "ab")  # noqa: SIM115 - open as long as we run
        except OSError as error:
            self._give_up(error)

    def _write(self, line: dict[str, Any]) -> None:
        if file := self._file:
            try:
                file.write(_encode(line))
            except OSError as error:
                self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        """Continue without a journal: one that is no longer kept would soon be wrong."""
        log.warning("no journal is kept; a restart would send everything again: %s", error)
        self._file = None
        with suppress(OSError):
            self._path.unlink()


def _encode(line: dict[str, Any]) -> bytes:
    return (json.dumps(line) + "\n").encode()


def _stored_line(stored: Stored) -> dict[str, Any]:
    return {"file": vars(stored.file), "object": vars(stored.object)}
