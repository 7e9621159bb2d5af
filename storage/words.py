"""Words for logs and messages."""

from __future__ import annotations


def sized(size: int) -> str:
    """Return a number of bytes for people, for instance `900.0 kB` or `1.2 GB`."""
    for unit, letters in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= unit:
            return f"{size / unit:.1f} {letters}"
    return f"{size} B"


def counted(number: int, what: str) -> str:
    """Return a number and what it counts, for instance `1 file` or `1,797 rows`."""
    return f"{number:,} {what}{'s' * (number != 1)}"
