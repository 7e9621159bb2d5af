"""Each extra is enough for what runs with it alone, told from the imports and from uv.lock."""

import shutil
import subprocess
import tomllib
from functools import cache
from importlib.metadata import packages_distributions, version

import pytest
from packaging.requirements import Requirement

from tests.install.entry_points import BESIDE, ROOT, entry_points, reachable

EXTRAS = ("tools", "trainer", "serve", "local")
CASES = [(extra, name) for extra in EXTRAS for name in entry_points(extra)]


@cache
def locked(extra: str) -> set[str]:
    """The distributions that are installed with an extra, from uv.lock."""
    uv = shutil.which("uv") or str(ROOT / ".tools/bin/uv")
    form = [
        "--no-hashes",
        "--no-header",
        "--no-annotate",
        "--no-emit-project",
        "--no-default-groups",
    ]
    command = [uv, "export", "--quiet", "--locked", "--offline", *form, "--extra", extra]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    wanted = [Requirement(line) for line in done.stdout.splitlines()]
    return {one.name for one in wanted if not one.marker or one.marker.evaluate()}


distributions = cache(packages_distributions)  # it reads every installed package


@pytest.mark.parametrize(("extra", "module"), CASES)
def test_an_extra_alone_has_what_its_entry_points_import(extra: str, module: str) -> None:
    given, providers = locked(extra), distributions()
    _, others = reachable(module)
    assert "boto3" in given and others
    lacking = {
        f"{name}, imported by {by}"
        for name, by in others.items()
        if name not in BESIDE.get(extra, ())
        and not given & {found.lower().replace("_", "-") for found in providers.get(name, [name])}
    }
    assert not lacking


def test_the_extras_differ() -> None:
    assert "tensorflow" not in locked("tools") and "kfp-kubernetes" not in locked("trainer")
    assert locked("local") > locked("tools") | locked("trainer")


def test_the_minor_version_of_botocore_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for package in ("boto3", "botocore"):
        major, minor = version(package).split(".")[:2]
        assert f"{package}>={major}.{minor},<{major}.{int(minor) + 1}" in project["dependencies"]
