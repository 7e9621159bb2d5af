"""The folder of local runs: its paths, and the errors of its disk.

A full disk shows as an error of whichever program writes next, often without its cause. So it is
checked here, before a run and during it. Called by local runs, and by the commands that accept a
run of this machine.
"""

from __future__ import annotations

import errno
import hashlib
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kfp_tfjob.common.errors import ConfigurationError, Problem
from kfp_tfjob.common.formatting import sized
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import MODELS, RUNS

DEFAULT = Path(".kfp-tfjob")
BUCKET = "kfp-tfjob"  # in the embedded store, for runs without output_uri
# In a run's folder: its parameters, and the time for {date} and {hour}.
PARAMETERS, TICK = "parameters.json", "tick.txt"
LOG = "pipeline.log"  # everything that the steps printed
RUN_LOG = "run.log"  # the lines that live lines replace on a terminal
REPORTS = "progress-reports.jsonl"  # during a run with live lines
LEAST_FREE = 32_000_000  # bytes; with less, a run may write incomplete files
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


@dataclass(frozen=True)
class Home:
    """The folder, which also stores the S3 data."""

    folder: Path

    @property
    def is_default(self) -> bool:
        """Whether it is the default."""
        return self.folder == DEFAULT.absolute()

    @property
    def s3(self) -> Path:
        """The data of the embedded S3 server."""
        return self.folder / "s3"

    @property
    def secrets(self) -> Path:
        """The local replacement for a namespace's Secrets: one folder for each."""
        return self.folder / "secrets"

    def run(self, run_id: str) -> Path:
        """The logs and reports of one run."""
        return self.folder / RUNS / run_id

    def runs(self) -> list[Path]:
        """The folders of all runs, the newest first."""
        folders = (path.parent for path in (self.folder / RUNS).glob(f"*/{PARAMETERS}"))
        return sorted(folders, key=lambda path: path.stat().st_mtime, reverse=True)

    def models(self, name: str, endpoint: str, output: S3Address) -> Path:
        """The copies of a model's published versions, for programs on this machine.

        Models with the same name in two stores, or in two folders of one store, are different
        models.

        Args:
            name: The model.
            endpoint: URL of the store; empty for the embedded store.
            output: The folder of the models in the store.
        """
        if endpoint or output != S3Address(BUCKET):
            location = f"{endpoint}\n{output}".encode()
            name += f"@{hashlib.sha256(location).hexdigest()[:8]}"
        return self.folder / MODELS / name

    def make(self) -> None:
        """Create the folder, accessible only to its owner.

        Raises:
            ConfigurationError: It cannot be written to, or its disk is full.
        """
        with self.translate_errors():
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for inner in ("secrets", "runs", "models"):  # private: reports contain rows of the data
                (self.folder / inner).mkdir(exist_ok=True)
                (self.folder / inner).chmod(0o700)
        if self.is_full():
            raise self.full("free some space, or choose another folder with --home")

    def check_exists(self) -> None:
        """Check that the folder is a home, so that a typing error does not look like "no runs".

        Raises:
            ConfigurationError: It does not exist, or `kfp-tfjob run` did not create it.
        """
        if not (self.folder / RUNS).is_dir():
            exists = self.folder.is_dir()
            raise ConfigurationError(
                Problem(
                    f"{self.folder} is not a folder of local runs",
                    received=f"a folder without {RUNS}/" if exists else "no such folder",
                    expected=f"the folder that `kfp-tfjob run` created, {DEFAULT} by default",
                    fix="correct --home, or omit it",
                    name="home-not-found",
                )
            )

    def is_full(self) -> bool:
        """Return whether its disk is too full for a run."""
        return shutil.disk_usage(self.folder).free < LEAST_FREE

    def full_while(self, run_id: str) -> ConfigurationError:
        """Return the error for a disk that became full during a run."""
        return self.full(f"free some space, then continue the run: {self.to_continue(run_id)}")

    def full(self, fix: str) -> ConfigurationError:
        """Return the error for a disk that is full."""
        problem = Problem(
            f"the disk of {self.folder} is full, or your quota on it is exhausted",
            received=f"{sized(shutil.disk_usage(self.folder).free)} free",
            expected=f"at least {sized(LEAST_FREE)}",
            fix=fix,
            name="disk-full",
        )
        return ConfigurationError(problem)

    def to_continue(self, run_id: str) -> str:
        """Return the command line that continues a run."""
        return f"kfp-tfjob run{self.option} {shlex.join(['--run-id', run_id])}"

    @property
    def option(self) -> str:
        """The option that names this home in a command, after a space; empty for the default."""
        return "" if self.is_default else f" {shlex.join(['--home', str(self.folder)])}"

    @contextmanager
    def translate_errors(self) -> Iterator[None]:
        """Turn errors of the folder into a ConfigurationError.

        Raises:
            ConfigurationError: The folder cannot be used.
        """
        try:
            yield
        except OSError as error:
            # Other files are not the user's to correct, so their errors are bugs.
            if error.errno not in _DISK_ERRORS and not self._contains(error.filename):
                raise
            location = f" ({error.filename})" if error.filename else ""
            raise ConfigurationError(
                Problem(
                    f"the folder {self.folder} cannot be used",
                    received=f"{error.strerror}{location}",
                    expected="a writable folder on a disk with free space",
                    fix="correct this, or choose another folder with --home",
                )
            ) from error

    def _contains(self, name: object) -> bool:
        """Return whether a path is the folder, inside it, or one of its parents."""
        path = Path(str(name or ""))
        return bool(name) and (path.is_relative_to(self.folder) or self.folder.is_relative_to(path))
