"""Prints the result of a command, for people or as JSON, and asks for confirmation.

Names and messages may come from a store or a cluster, so everything is escaped before it reaches a
terminal.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import click

from kfp_tfjob.common.errors import ConfigurationError, Problem
from kfp_tfjob.common.escaping import line, lines

as_json = click.option(
    "--json", "json_", is_flag=True, help="print JSON with the fields of the Python client"
)
dry_run = click.option("--dry-run", is_flag=True, help="only check everything and show the plan")
without_asking = click.option("--yes", is_flag=True, help="do not ask for confirmation")


def proceed(
    plan: Any, show_plan: Callable[[], None], yes: bool, dry_run: bool, json_: bool = False
) -> bool:
    """Show a plan and return whether to proceed; ask the user unless `yes` or `dry_run` answers.

    Args:
        plan: The plan, a dataclass, for JSON.
        show_plan: Prints the plan for people.
        yes: Whether to proceed without asking.
        dry_run: Whether to stop after showing the plan.
        json_: Whether to print JSON.

    Raises:
        ConfigurationError: There is no terminal to ask on.
    """
    if not json_:
        show_plan()
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
    """Print a message that may contain untrusted strings."""
    click.echo(lines(text))


def show_json(document: Any) -> None:
    """Print a dataclass, or a list of them, as JSON."""
    if isinstance(document, list):
        plain: Any = [asdict(entry) for entry in document]
    else:
        plain = asdict(document)
    click.echo(json.dumps(plain, indent=1, ensure_ascii=False, default=str))


def show_json_line(document: Any) -> None:
    """Print a dataclass as one line of JSON, at once, because a program may wait for it."""
    click.echo(json.dumps(asdict(document), ensure_ascii=False, default=str))
    sys.stdout.flush()


def show_table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows below a head, in columns as wide as their longest cell."""
    cells = [[line(cell) for cell in row] for row in (head, *rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    for row in cells:
        padded = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        click.echo("  ".join(padded).rstrip())


def age(created: str) -> str:
    """Return the time since a date in RFC 3339: `3 min`, `5 h`, `2 d`; empty for other strings."""
    try:
        seconds = (datetime.now(UTC) - datetime.fromisoformat(created)).total_seconds()
    except (ValueError, TypeError):  # a record of the store may have any text
        return ""
    for unit, letters in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= unit:
            return f"{seconds / unit:.0f} {letters}"
    return f"{max(seconds, 0):.0f} s"
