"""Tells output from hidden and unfinished files, which the uploader skips.

The supervisor and the uploader must agree on this, or the flush barrier would wait for a file that
is never sent. It is here because the supervisor is packed into one file without the other packages.
"""

from __future__ import annotations

UNFINISHED = (".tmp", ".part")  # endings of files and directories that are not output yet


def is_output(name: str) -> bool:
    """Return whether a file or directory with this name is output."""
    return not name.startswith(".") and not name.endswith(UNFINISHED)
