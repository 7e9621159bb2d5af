"""Checks this machine: Python and the packages that the commands need."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version

from kfp_tfjob.checks.finding import Finding, ok
from kfp_tfjob.options.images import VERSION

_DISTRIBUTION, _EXTRA = "kfp-tfjob", "tools"
_OLDEST, _NEWEST = (3, 11), (3, 13)
_SHOWN = ("kfp", "kubernetes")


def check() -> Iterator[Finding]:
    """Compare Python and the installed packages with what this version requires."""
    python = ".".join(map(str, sys.version_info[:3]))
    if not _OLDEST <= sys.version_info[:2] <= _NEWEST:
        yield Finding(
            "this Python version is not supported",
            python,
            "3.11, 3.12 or 3.13",
            "use one of these versions",
        )
    wrong = list(_wrong())
    if wrong:
        yield Finding("; ".join(wrong), fix=f"pip install '{_DISTRIBUTION}[{_EXTRA}]=={VERSION}'")
        return
    packages = ", ".join(f"{name} {version(name)}" for name in _SHOWN)
    yield ok(f"Python {python}, {_DISTRIBUTION} {VERSION}, {packages}")


def _wrong() -> Iterator[str]:
    from packaging.requirements import Requirement

    for text in requires(_DISTRIBUTION) or ():
        wanted = Requirement(text)
        if wanted.marker and not wanted.marker.evaluate({"extra": _EXTRA}):
            continue
        try:
            found = version(wanted.name)
        except PackageNotFoundError:
            yield f"{wanted.name} is not installed"
            continue
        if not wanted.specifier.contains(found, prereleases=True):
            yield f"{wanted.name} {found} does not fit {wanted.specifier}"
