"""The folder a local run keeps its things in."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

DEFAULT = Path(".kfp-tfjob")
PARAMETERS = "parameters.json"  # of a run, in its folder: what it was started with


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
        return self.folder / "runs" / run_id

    def model(self, name: str, version: int) -> Path:
        """A copy of a published version, for programs of this machine."""
        return self.folder / "models" / name / str(version)
