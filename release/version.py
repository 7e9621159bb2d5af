"""Sets the version of the next release: `make version NEW=0.3.0`.

The code's VERSION is the source. The package's metadata, manifests and documents cannot read it, so
this module writes it there, and a test compares them. (Metadata that hatchling would compute costs
every `uv export` a build.) The changelog's section [Unreleased] gets the version as its title.
"""

from __future__ import annotations

import argparse
import datetime
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kfp_tfjob.common.errors import ConfigurationError, Problem
from kfp_tfjob.options.container_images import PLACEHOLDER, VERSION

from . import changelog
from .command import run

ROOT = Path(__file__).parents[1]
SOURCE = "kfp_tfjob/options/container_images.py"
_IMAGE = rf"{re.escape(PLACEHOLDER)}/kfp-tfjob-\w+"
# Each pattern has one group, the version.
_PLACES = (
    (SOURCE, r'^VERSION = "(\S+)"$'),
    ("pyproject.toml", r'^version = "(\S+)"$'),
    ("uv.lock", r'^name = "kfp-tfjob"\nversion = "(\S+)"$'),
    ("deploy/**/kustomization.yaml", rf"newName: {_IMAGE}\n +newTag: (\S+)$"),
    ("deploy/**/dask-cluster.yaml", rf"{_IMAGE}:(\S+)$"),
    ("docs/install.md", r"kfp_tfjob-(\S+?)-py3-none-any\.whl"),
    ("tests/data/task_config.json", rf'"{_IMAGE}:(\S+)"'),
)
_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)")


@dataclass(frozen=True)
class Place:
    """A version in a file.

    Attributes:
        path: The file.
        start: Offset of the version, in characters.
        version: The version.
    """

    path: Path
    start: int
    version: str


def places(root: Path = ROOT) -> Iterator[Place]:
    """Yield each place of the version in the files of a checkout."""
    for pattern, expression in _PLACES:
        for path in sorted(root.glob(pattern)):
            for match in re.finditer(expression, path.read_text(), re.MULTILINE):
                yield Place(path, match.start(1), match[1])


def set_version(new: str, date: datetime.date, root: Path = ROOT) -> list[Path]:
    """Write a version to all of its places, and to the changelog.

    Args:
        new: For example, `0.3.0`.
        date: The day of the release.
        root: The checkout.

    Returns:
        The files that changed.

    Raises:
        ConfigurationError: The version is not higher than the current one, or the changelog has no
            unreleased changes.
    """
    if not _VERSION.fullmatch(new) or _numbers(new) <= _numbers(VERSION):
        raise ConfigurationError(
            Problem(
                "this is not the version of a next release",
                received=repr(new),
                expected=f"three numbers, higher than {VERSION}",
                fix="name one, for example make version NEW=" + _next(VERSION),
            )
        )
    log = root / "CHANGELOG.md"
    released = changelog.release(log.read_text(), new, date)
    current = list(places(root))
    for place in reversed(current):  # an offset counts from the start of its file
        text = place.path.read_text()
        end = place.start + len(place.version)
        place.path.write_text(text[: place.start] + new + text[end:])
    log.write_text(released)
    return [*dict.fromkeys(place.path for place in current), log]


def _numbers(version: str) -> list[int]:
    return [int(number) for number in version.split(".")]


def _next(version: str) -> str:
    major, minor, _ = _numbers(version)
    return f"{major}.{minor + 1}.0"


def main(arguments: Sequence[str] | None = None) -> int:
    """Set the version; return an exit code."""
    parser = argparse.ArgumentParser(prog="make version", description=str(__doc__))
    parser.add_argument("new", help="for example 0.3.0")
    new, today = parser.parse_args(arguments).new, datetime.date.today()
    return run("make version", lambda: [path.relative_to(ROOT) for path in set_version(new, today)])


if __name__ == "__main__":
    sys.exit(main())
