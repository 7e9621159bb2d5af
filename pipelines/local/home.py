"""The folder a local run keeps its things in."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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

    def trained_with(self, name: str) -> tuple[int, dict[str, Any]] | None:
        """Return the newest version of a model kept here, and the parameters of its run.

        None where there is no such version, or its run is not one of this folder.
        """
        versions = [path.name for path in (self.folder / "models" / name).glob("*")]
        newest = max((int(version) for version in versions if version.isdecimal()), default=0)
        try:
            verdict = json.loads((self.model(name, newest) / "verdict.json").read_bytes())
            return newest, json.loads((self.run(verdict["run_id"]) / PARAMETERS).read_bytes())
        except (OSError, ValueError, KeyError, TypeError):
            return None
