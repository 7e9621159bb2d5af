"""Where everything lies below `output_uri`: the only place that knows names (ARCHITECTURE.md)."""

from __future__ import annotations

from dataclasses import dataclass

from kfp_tfjob.storage import manifest
from kfp_tfjob.storage.address import S3Address


@dataclass(frozen=True)
class RunLayout:
    """The objects of one run, below `runs/<run_id>`."""

    base: S3Address

    @property
    def manifest(self) -> S3Address:
        """The manifest of the whole output, written once, after completion."""
        return self.base / manifest.NAME

    @property
    def attempts(self) -> S3Address:
        """The prefix of the claimed attempts, `NNNN.json`."""
        return self.base / "attempts"

    @property
    def code(self) -> S3Address:
        """The user's model code as it was at the start, with its manifest."""
        return self.base / "code"

    @property
    def output(self) -> S3Address:
        """What the chief wrote."""
        return self.base / "output"

    @property
    def model(self) -> S3Address:
        """The SavedModel."""
        return self.output / "model"

    @property
    def logs(self) -> S3Address:
        """What TensorBoard reads."""
        return self.output / "logs"

    @property
    def checkpoints(self) -> S3Address:
        """The step directories, each with a manifest of its own."""
        return self.output / "checkpoints"

    @property
    def completion(self) -> S3Address:
        """The record that the trainer of an attempt ended with success."""
        return self.output / "completion.json"

    @property
    def evaluation(self) -> S3Address:
        """The verdict and the report."""
        return self.base / "evaluation"

    def failure(self, suffix: str) -> S3Address:
        """The record of what ended the run: `json` for programs, `md` for people."""
        return self.base / f"failure.{suffix}"


@dataclass(frozen=True)
class ModelLayout:
    """The versions and champions of one model, below `models/<model_name>`."""

    base: S3Address

    def version(self, number: int) -> S3Address:
        """The directory of one published version."""
        return self.base / "versions" / str(number)

    @property
    def versions(self) -> S3Address:
        """The prefix of all published versions."""
        return self.base / "versions"

    def champion(self, number: int) -> S3Address:
        """One champion record; the highest number is the champion."""
        return self.champions / f"{number}.json"

    @property
    def champions(self) -> S3Address:
        """The prefix of the champion records."""
        return self.base / "champions"

    @property
    def champion_copy(self) -> S3Address:
        """A copy of the newest champion record for people; no program reads it."""
        return self.base / "champion.json"


@dataclass(frozen=True)
class Layout:
    """Everything below `output_uri`."""

    root: S3Address

    @classmethod
    def parse(cls, output_uri: str) -> Layout:
        """Parse `output_uri`.

        Raises:
            ConfigurationError: It is not an address in S3.
        """
        return cls(S3Address.parse(output_uri, "output_uri"))

    def dataset(self, digest: str) -> S3Address:
        """The directory of a prepared dataset."""
        return self.root / "datasets" / digest

    def run(self, run_id: str) -> RunLayout:
        """The directory of a run."""
        return RunLayout(self.root / "runs" / run_id)

    def model(self, name: str) -> ModelLayout:
        """The directory of a model."""
        return ModelLayout(self.root / "models" / name)
