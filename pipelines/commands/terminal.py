"""Decides whether a command draws live lines.

A person at a terminal sees live lines. Programs, CI systems and terminals that cannot move their
cursor get the plain lines, which are the same in every release.
"""

from __future__ import annotations

import os
import sys

import click

with_verbose = click.option(
    "-v", "--verbose", is_flag=True, help="print every line, even on a terminal"
)


def is_live(verbose: bool = False) -> bool:
    """Return whether to draw live lines on standard output; otherwise, plain lines are printed.

    Args:
        verbose: Whether the user wants every line.
    """
    setting = os.environ.get
    is_capable = sys.stdout.isatty() and setting("TERM", "dumb") not in ("", "dumb")
    return is_capable and not (verbose or setting("NO_COLOR") or setting("CI"))
