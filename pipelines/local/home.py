"""The folder a local run keeps its things in."""

from __future__ import annotations

import errno
import json
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kfp_tfjob.storage.errors import ConfigurationError, Problem
from kfp_tfjob.storage.layout import MODELS, RUNS, VERDICT
from kfp_tfjob.storage.words import sized

DEFAULT = Path(".kfp-tfjob")
PARAMETERS = "parameters.json"  # of a run, in its folder: what it was started with
LEAST_FREE = 32_000_000  # bytes; with less, nothing that a run writes is sure to be written whole
_OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


@dataclass(frozen=True)
class Home:
    """The folder.

    Attributes:
        folder: The folder; the S3 data lies below it too.
    """

    folder: Path

    @property
    def is_default(self) -> bool:
        """Whether it is the one that is used where none is named."""
        return self.folder == DEFAULT.absolute()

    @property
    def s3(self) -> Path:
        """The data of the embedded S3 server."""
        return self.folder / "s3"

    @property
    def secrets(self) -> Path:
        """What stands for the Secrets of a namespace: one folder each."""
        return self.folder / "secrets"

    def run(self, run_id: str) -> Path:
        """The logs and reports of one run."""
        return self.folder / RUNS / run_id

    def model(self, name: str, version: int) -> Path:
        """A copy of a published version, for programs of this machine."""
        return self.folder / MODELS / name / str(version)

    def trained_with(self, name: str) -> tuple[int, dict[str, Any]] | None:
        """Return the newest version of a model kept here, and the parameters of its run.

        None where there is no such version, or its run is not one of this folder.
        """
        versions = [path.name for path in (self.folder / MODELS / name).glob("*")]
        newest = max((int(version) for version in versions if version.isdecimal()), default=0)
        try:
            verdict = json.loads((self.model(name, newest) / VERDICT).read_bytes())
            return newest, json.loads((self.run(verdict["run_id"]) / PARAMETERS).read_bytes())
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def make(self) -> None:
        """Make the folder, for its owner alone.

        Raises:
            ConfigurationError: It cannot be written to, or its disk is full.
        """
        with self.errors_told():
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for inner in ("secrets", "runs", "models"):  # rows of the data are in the reports
                (self.folder / inner).mkdir(exist_ok=True)
                (self.folder / inner).chmod(0o700)
        if self.is_full():
            raise self._full("make room, or name another folder with --home")

    def is_full(self) -> bool:
        """Tell whether its disk has no room for what a run writes."""
        return shutil.disk_usage(self.folder).free < LEAST_FREE

    def full_while(self, run_id: str) -> ConfigurationError:
        """Return the error of a run whose disk has become full."""
        return self._full(f"make room, and continue the run: {self.to_continue(run_id)}")

    def _full(self, fix: str) -> ConfigurationError:
        problem = Problem(
            f"the disk of {self.folder} is full, or your quota on it is used up",
            received=f"{sized(shutil.disk_usage(self.folder).free)} free",
            expected=f"{sized(LEAST_FREE)} at the least",
            fix=fix,
        )
        return ConfigurationError(problem)

    def to_continue(self, run_id: str) -> str:
        """Return the command that continues a run."""
        words = [] if self.is_default else ["--home", str(self.folder)]
        return shlex.join(["kfp-tfjob", "run", *words, "--run-id", run_id])

    @contextmanager
    def errors_told(self) -> Iterator[None]:
        """Turn errors of the folder into a sentence.

        Raises:
            ConfigurationError: The folder cannot be used.
        """
        try:
            yield
        except OSError as error:
            if error.errno not in _OF_THE_DISK and not self._has(error.filename):
                raise
            where = f" ({error.filename})" if error.filename else ""
            raise ConfigurationError(
                Problem(
                    f"the folder {self.folder} cannot be used",
                    received=f"{error.strerror}{where}",
                    expected="a folder that you may write to, on a disk with room",
                    fix="correct that, or name another folder with --home",
                )
            ) from error

    def _has(self, name: object) -> bool:
        """Tell whether a file is the folder, in it, or what it was to be made in."""
        path = Path(str(name or ""))
        return bool(name) and (path.is_relative_to(self.folder) or self.folder.is_relative_to(path))
