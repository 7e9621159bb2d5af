"""Words for logs and messages."""

from __future__ import annotations


def counted(number: int, what: str) -> str:
    """Return a number and what it counts, for instance `1 file` or `1,797 rows`."""
    return f"{number:,} {what}{'s' * (number != 1)}"
