"""The range of botocore, of which this project uses private names; tests/install has the extras."""

import tomllib
from importlib.metadata import version
from pathlib import Path


def test_the_minor_version_of_botocore_is_pinned(repository: Path) -> None:
    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    for package in ("boto3", "botocore"):
        major, minor = version(package).split(".")[:2]
        assert f"{package}>={major}.{minor},<{major}.{int(minor) + 1}" in project["dependencies"]
