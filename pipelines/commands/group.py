"""A group of commands that shows a full sentence for each in its help."""

from __future__ import annotations

import click

_LONGEST = 1000  # characters of a sentence; click truncates longer ones, but wraps the others


class Group(click.Group):
    """Lists its commands with their whole first sentence, on several lines where it is long."""

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands."""
        rows = [
            (name, command.get_short_help_str(_LONGEST))
            for name in self.list_commands(context)
            if (command := self.get_command(context, name)) and not command.hidden
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)
