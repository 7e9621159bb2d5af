"""A group of commands that shows a full sentence for each in its help.

A group that does something itself has its own options. Click accepts them before a subcommand's
name too, where the subcommand would ignore them: `runs --home other prune --apply` would delete in
the default folder. So they are refused there. Called by `cli.py` and by the groups.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import wraps
from typing import Any

import click
from click.core import ParameterSource

_LONGEST = 1000  # characters of a sentence; click truncates longer ones, but wraps the others


class Group(click.Group):
    """Lists its commands with their whole first sentence, on several lines where it is long."""

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands."""
        self.format_section(context, formatter, "Commands", self.list_commands(context))

    def format_section(
        self, context: click.Context, formatter: click.HelpFormatter, title: str, names: list[str]
    ) -> None:
        """Write the commands with these names below a title, without hidden ones."""
        rows = [
            (name, command.get_short_help_str(_LONGEST))
            for name in names
            if (command := self.get_command(context, name)) and not command.hidden
        ]
        with formatter.section(title):
            formatter.write_dl(rows)


def refuse_misplaced_options(accepted: Collection[str] = ()) -> Callable[..., Any]:
    """Return a decorator for a group, which refuses its options before a subcommand's name.

    Args:
        accepted: The names of the parameters that the subcommands take over from the group.
    """

    def decorated(group: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(group)
        def checked(*arguments: Any, **options: Any) -> Any:
            _refuse_ignored_options(click.get_current_context(), accepted)
            return group(*arguments, **options)

        return checked

    return decorated


def _refuse_ignored_options(context: click.Context, accepted: Collection[str]) -> None:
    """Raise a UsageError for options of the group that the invoked subcommand would ignore."""
    name = context.invoked_subcommand
    if not name or not isinstance(context.command, click.Group):
        return
    subcommand = context.command.get_command(context, name)
    ignored = [
        parameter.opts[0]
        for parameter in context.command.params
        if parameter.name
        and parameter.name not in accepted
        and context.get_parameter_source(parameter.name) is ParameterSource.COMMANDLINE
    ]
    if not ignored or not subcommand:
        return
    existing = {option for parameter in subcommand.params for option in parameter.opts}
    moved = [option for option in ignored if option in existing]
    fix = f"write {' and '.join(moved)} after {name}" if moved else f"omit {' and '.join(ignored)}"
    raise click.UsageError(
        f"{' and '.join(ignored)} before {name} would have no effect; {fix}", context
    )
