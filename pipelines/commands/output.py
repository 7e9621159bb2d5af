"""Prints what a command found: for people, or as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import click

from kfp_tfjob.storage.errors import ConfigurationError, Problem
from kfp_tfjob.storage.escaping import line, lines

as_json = click.option(
    "--json", "json_", is_flag=True, help="print JSON with the fields of the Python client"
)
dry_run = click.option("--dry-run", is_flag=True, help="only check everything and show the plan")
without_asking = click.option("--yes", is_flag=True, help="do not ask for confirmation")


def proceed(
    plan: Any, tell: Callable[[], None], yes: bool, dry_run: bool, json_: bool = False
) -> bool:
    """Show a plan and return whether to proceed; ask for it, unless `yes` or `dry_run` answers.

    Raises:
        ConfigurationError: There is no terminal to ask on.
    """
    if not json_:
        tell()
    elif dry_run or not yes:
        show_json(plan)
    if dry_run or yes:
        return not dry_run
    if json_ or not sys.stdin.isatty():
        raise ConfigurationError(
            Problem(
                "nothing was done, because there is no terminal to ask for confirmation"
                if not json_
                else "nothing was done, because --json does not ask for confirmation",
                expected="--yes, or confirmation in a terminal",
                fix="add --yes to proceed, or --dry-run to see only the plan",
            )
        )
    if not click.confirm("Proceed?"):
        sys.exit(1)
    return True


def show(text: str) -> None:
    """Print text that may come from outside."""
    click.echo(lines(text))


def show_json(found: Any) -> None:
    """Print a dataclass, or a list of them, as JSON."""
    plain = [asdict(item) for item in found] if isinstance(found, list) else asdict(found)
    click.echo(json.dumps(plain, indent=1, ensure_ascii=False, default=str))


def show_json_line(found: Any) -> None:
    """Print a dataclass as one line of JSON."""
    click.echo(json.dumps(asdict(found), ensure_ascii=False, default=str))
    sys.stdout.flush()


def show_table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows below a head, in columns."""
    cells = [[line(cell) for cell in row] for row in (head, *rows)]
    widths = [max(len(row[at]) for row in cells) for at in range(len(head))]
    for row in cells:
        padded = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        click.echo("  ".join(padded).rstrip())


def age(created: str) -> str:
    """Return how long ago a time in RFC 3339 was: `3 min`, `5 h`, `2 d`; empty if it is none."""
    try:
        seconds = (datetime.now(UTC) - datetime.fromisoformat(created)).total_seconds()
    except (ValueError, TypeError):  # a record of the store may have any text
        return ""
    for unit, letters in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= unit:
            return f"{seconds / unit:.0f} {letters}"
    return f"{max(seconds, 0):.0f} s"
