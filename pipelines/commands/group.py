"""A group of commands that shows a full sentence for each in its help."""

from __future__ import annotations

import click

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
