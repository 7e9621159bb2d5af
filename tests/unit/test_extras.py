"""Each extra is enough for what runs with it alone, told from the imports and from uv.lock."""

import tomllib
from importlib.metadata import packages_distributions

import pytest
from packaging.markers import Marker

from tests.install.entry_points import ROOT, entry_points, reachable

CASES = [(extra, name) for extra in ("tools", "trainer", "local") for name in entry_points(extra)]


def locked(extra: str) -> set[str]:
    """The distributions that are installed with an extra, from uv.lock."""
    lock = tomllib.loads((ROOT / "uv.lock").read_text())
    packages = {package["name"]: package for package in lock["package"]}
    done: set[tuple[str, str]] = set()
    waiting = [("kfp-tfjob", ""), ("kfp-tfjob", extra)]
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) in done:
            continue
        done.add((name, extra))
        package = packages[name]
        needed = package.get("dependencies", [])
        if extra:
            needed = package.get("optional-dependencies", {}).get(extra, [])
        for item in needed:
            if "marker" not in item or Marker(item["marker"]).evaluate():
                waiting += [(item["name"], more) for more in ("", *item.get("extra", ()))]
    return {name for name, _ in done}


@pytest.mark.parametrize(("extra", "module"), CASES)
def test_an_extra_alone_has_what_its_entry_points_import(extra: str, module: str) -> None:
    given, providers = locked(extra), packages_distributions()
    _, others = reachable(module)
    assert "boto3" in given and others
    lacking = {
        f"{name}, imported by {by}"
        for name, by in others.items()
        if not given & {found.lower().replace("_", "-") for found in providers.get(name, [name])}
    }
    assert not lacking


def test_the_extras_differ() -> None:
    assert "tensorflow" not in locked("tools") and "kfp-kubernetes" not in locked("trainer")
    assert locked("local") > locked("tools") | locked("trainer")
