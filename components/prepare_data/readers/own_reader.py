"""Reads files with a function of the user's own, in a process without the keys of the store.

`data_options.reader` names the function, as `model_code` names that of the model. It gets one file,
as a stream of bytes that can only be read forward, and the name of the file, and yields record
batches of pyarrow. Each file has a process of its own, so no state passes from one file to the
next, and the result does not depend on which worker reads which file.

The process is no boundary against code that means harm: it runs as the same user in the same pod.
It keeps the keys out of the environment of code that prints it, and its failures out of the step.
"""

from __future__ import annotations

import ast
import json
import logging
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any, Protocol

from kfp_tfjob.storage.errors import DataError, Problem
from kfp_tfjob.storage.layout import CODE
from kfp_tfjob.trainer.own_code import OwnCode, environment, place_of

log = logging.getLogger(__name__)

PATH = "data_options.reader"
_EXPECTED = "def read(stream, name), which yields pyarrow.RecordBatch"
_PROCESS = "kfp_tfjob.components.prepare_data.readers.own_reader_process"
_SILENCE_SECONDS = 600  # without a byte that it reads or writes
_END_SECONDS = 10  # between the end of its stream and its own
_PIECE = 1 << 20  # bytes
_KEPT_BYTES = 1 << 20  # of the start of its stream, so that going back there costs nothing
_LAST_LINES, _LONGEST_LINE = 20, 500  # of what it prints


class _Opens(Protocol):
    """What opens the files: a `Source`."""

    def raw(self, file: Any) -> Any:
        """Open a file as stored."""


@dataclass(frozen=True)
class OwnReader(OwnCode):
    """The function and its code."""

    path = PATH

    @classmethod
    def _wrong_arguments(cls, path: str, node: ast.FunctionDef) -> list[Problem]:
        arguments = node.args
        names = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]
        needed = len(names) - len(arguments.defaults)
        more = [
            argument.arg
            for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
            if default is None
        ]
        if not (needed > 2 or more or (len(names) < 2 and not arguments.vararg)):
            return []
        problem = Problem(
            f"{path}, line {node.lineno}: {node.name} does not take a stream and a name",
            received=f"def {node.name}({ast.unparse(arguments)})",
            expected=_EXPECTED,
            fix="correct its arguments",
        )
        return [problem]

    @contextmanager
    def opened(self, source: _Opens, file: Any) -> Iterator[RowsStream]:
        """Yield the rows of a file as an Arrow stream.

        Raises:
            DataError: The reader fails, or the file changed since it was listed.
        """
        with TemporaryDirectory(prefix="own-reader-") as name:
            folder = Path(name)
            self.unpack(folder / CODE)
            rows = RowsStream(lambda: _Process(self, source, file, folder))
            try:
                yield rows
            except BaseException:
                rows.end()
                raise
            if error := rows.end():
                raise error


class RowsStream:
    """What the reader yields, as a stream; going back to its start may run the reader again.

    Args:
        start: Starts the reader.
    """

    def __init__(self, start: Any) -> None:
        self._start, self._process = start, start()
        self._head, self._read, self._at = b"", 0, 0

    def seek(self, at: int) -> None:
        """Go to the start, which is all that a reader of Arrow streams asks for."""
        if at:
            raise ValueError("the rows of an own reader can only be read from their start")
        if self._read > len(self._head):
            self._process.end()
            self._process, self._head, self._read = self._start(), b"", 0
        self._at = 0

    def read(self, size: int) -> bytes:
        """Return the next bytes; fewer at the end.

        Raises:
            DataError: The reader has failed.
        """
        pieces = [self._head[self._at : self._at + size]]
        found = len(pieces[0])
        while found < size and (piece := self._process.read(min(size - found, _PIECE))):
            if self._read == len(self._head) and self._read + len(piece) <= _KEPT_BYTES:
                self._head += piece
            self._read += len(piece)
            pieces.append(piece)
            found += len(piece)
        self._at += found
        return b"".join(pieces)

    def end(self) -> Exception | None:
        """End the reader, and return what went wrong with the file meanwhile."""
        return self._process.end()


class _Process:
    """A running reader of one file."""

    def __init__(self, reader: OwnReader, source: _Opens, file: Any, folder: Path) -> None:
        self._reader, self._file = reader, file
        self._failure = folder / "fault.json"
        self._error: Exception | None = None
        self._lines: deque[str] = deque(maxlen=_LAST_LINES)
        home = folder / "home"
        home.mkdir(exist_ok=True)
        code = "" if reader.in_image else str(folder / CODE)
        names = (code, reader.module, reader.function, file.name, str(self._failure))
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", _PROCESS, *names],
            cwd=home,
            env=environment(home),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            process_group=0,
        )
        self._moved = time.monotonic()
        self._threads = [
            threading.Thread(target=self._send, args=(source,), daemon=True),
            threading.Thread(target=self._listen, daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def read(self, size: int) -> bytes:
        """Return the next bytes, at most `size`; none at the end.

        Raises:
            DataError: The reader has failed.
        """
        out = self._process.stdout
        while not select.select([out], [], [], 1.0)[0]:
            if time.monotonic() - self._moved > _SILENCE_SECONDS:
                self.end()
                raise self._failed(
                    f"nothing read and nothing yielded for {_SILENCE_SECONDS} seconds",
                    "a record batch",
                    "yield batches while the file is read, and look for what the reader waits for",
                )
        self._moved = time.monotonic()
        data = os.read(out.fileno(), size)
        if not data:
            self._check_end()
        return data

    def end(self) -> Exception | None:
        """End the process and its children; return an error of the file that it read."""
        if not self._process.stdout.closed:
            try:
                os.killpg(self._process.pid, signal.SIGKILL)  # its number is taken until the wait
            except ProcessLookupError:
                pass
            self._process.wait()
            for thread in self._threads:
                thread.join()
            self._process.stdout.close()
        return self._error

    def _check_end(self) -> None:
        """Raise the reason if the stream ended too early; a whole one is not read to its end."""
        deadline = time.monotonic() + _END_SECONDS
        while time.monotonic() < deadline and not _has_ended(self._process.pid):
            time.sleep(0.01)
        if error := self.end():
            raise error
        code = self._process.returncode
        for line in self._lines:
            log.warning("%s: %s", PATH, line)
        if self._failure.exists():
            found = json.loads(self._failure.read_bytes())
            raise self._failed(found["received"], found["expected"], found["fix"])
        if code == -signal.SIGKILL:
            raise self._failed(
                "its process was killed, probably because memory ran out",
                "a reader that yields batches of some MiB",
                "yield smaller batches, or raise pod.prepare.memory",
            )
        said = f"the exit code {code}" if code >= 0 else f"the signal {signal.Signals(-code).name}"
        raise self._failed(
            f"its process ended with {said}",
            "an iterator of pyarrow.RecordBatch to its end",
            "correct the reader: it must not end the process",
        )

    def _failed(self, received: str, expected: str, fix: str) -> DataError:
        what = f"{PATH} {self._reader.module}:{self._reader.function} failed on {self._file.name}"
        return DataError(Problem(what, received, expected, fix, PATH))

    def _send(self, source: _Opens) -> None:
        """Send the file to the process; it may stop reading before the end."""
        try:
            with source.raw(self._file) as stream:
                try:
                    with self._process.stdin as sink:
                        while piece := stream.read(_PIECE):
                            sink.write(piece)
                            self._moved = time.monotonic()
                except BrokenPipeError:
                    pass
        except Exception as error:  # it is raised where the rows are read
            self._error = error
            self._process.kill()

    def _listen(self) -> None:
        stream: IO[bytes] = self._process.stderr
        with stream:
            while line := stream.readline(_LONGEST_LINE):
                self._lines.append(line.decode(errors="replace").rstrip())


def place(data_options: Mapping[str, Any]) -> dict[str, str]:
    """Return the option with the place of the code; nothing if the image has it.

    Raises:
        ConfigurationError: It does not name a function.
    """
    return place_of(PATH, str(data_options.get("reader") or ""))


def _has_ended(pid: int) -> bool:
    """Tell whether a process has ended, without taking its exit code."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
