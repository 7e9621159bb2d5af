"""Reads and releases the sections of CHANGELOG.md, and prints the notes of a release.

python -m release.changelog [--tag v0.3.0] [--files URL]
"""

from __future__ import annotations

import argparse
import datetime
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from kfp_tfjob.common.errors import ConfigurationError, Problem, StepError
from kfp_tfjob.options.container_images import VERSION

PATH = Path(__file__).parents[1] / "CHANGELOG.md"
UNRELEASED = "Unreleased"
_HEADING = re.compile(r"^## \[([^]\n]+)\].*\n", re.MULTILINE)
_RELATIVE_LINK = re.compile(r"\]\((?!https?:|#)([^)\s]+)\)")


def sections(text: str) -> dict[str, str]:
    """Return the text of each section by its version; `Unreleased` is one of them."""
    headings = list(_HEADING.finditer(text))
    ends = [heading.start() for heading in headings[1:]] + [len(text)]
    return {
        heading[1]: text[heading.end() : end].strip()
        for heading, end in zip(headings, ends, strict=True)
    }


def release(text: str, version: str, date: datetime.date) -> str:
    """Return the changelog with the unreleased changes under a version, below an empty section.

    Raises:
        ConfigurationError: There are no unreleased changes, or the version has a section already.
    """
    existing = sections(text)
    if version in existing or not existing.get(UNRELEASED):
        raise ConfigurationError(
            Problem(
                "the changelog has nothing to release",
                received=f"sections with text: {', '.join(filter(existing.get, existing))}",
                expected=f"a section [{UNRELEASED}] with text, and none of {version}",
                fix="describe in CHANGELOG.md what the release changes",
            )
        )
    heading = f"## [{UNRELEASED}]\n"
    return text.replace(heading, f"{heading}\n## [{version}] - {date.isoformat()}\n", 1)


def notes(text: str, version: str, files: str = "") -> str:
    """Return the notes of a release.

    Args:
        text: The changelog.
        version: A version, or `Unreleased`.
        files: The address of the repository's files at that version. Where the notes are shown,
            a link relative to CHANGELOG.md would lead nowhere.

    Raises:
        ConfigurationError: The changelog does not have this version.
    """
    existing = sections(text)
    if not existing.get(version):
        raise ConfigurationError(
            Problem(
                f"CHANGELOG.md has no section [{version}]",
                received=f"sections {', '.join(existing)}",
                expected="one section for each released version",
                fix=f"make version NEW={version}, and commit",
            )
        )
    base = f"{files.rstrip('/')}/" if files else ""
    return _RELATIVE_LINK.sub(rf"]({base}\1)", existing[version]) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the notes of this checkout's version; return an exit code."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--tag", default="", help="the tag that is released, such as v0.3.0")
    parser.add_argument("--files", default="", help="the address of the repository's files")
    parsed = parser.parse_args(arguments)
    try:
        if parsed.tag and parsed.tag != f"v{VERSION}":
            raise ConfigurationError(
                Problem(
                    "the tag does not name the version of this checkout",
                    received=parsed.tag,
                    expected=f"v{VERSION}",
                    fix=f"run make version NEW={parsed.tag.removeprefix('v')}, commit, and move"
                    " the tag to that commit",
                )
            )
        text = PATH.read_text()
        version = UNRELEASED if sections(text).get(UNRELEASED) and not parsed.tag else VERSION
        print(notes(text, version, parsed.files), end="")
    except StepError as error:
        print(f"release notes: {error}", file=sys.stderr)
        return error.code
    return 0


if __name__ == "__main__":
    sys.exit(main())
