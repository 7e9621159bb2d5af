"""Keys and commands do not grow without a user: each has a line that says who needs it, and why."""

from collections.abc import Iterator

import click

from kfp_tfjob.options import audience
from kfp_tfjob.options.parameters import PARAMETERS
from kfp_tfjob.pipelines.cli import main
from kfp_tfjob.pipelines.parameter_help import explain


def commands(group: click.Group, prefix: str = "") -> Iterator[str]:
    for name, command in group.commands.items():
        is_group = isinstance(command, click.Group)
        if not is_group or command.invoke_without_command:
            yield prefix + name
        if is_group:
            yield from commands(command, f"{prefix}{name} ")


def test_every_key_has_a_user() -> None:
    groups = {name: item.group for name, item in PARAMETERS.items() if item.group}
    assert list(audience.KEYS) == [key for name in groups for key in explain(name, groups[name])]


def test_every_command_has_a_user() -> None:
    assert list(audience.COMMANDS) == list(commands(main))


def test_a_reason_is_one_line() -> None:
    reasons = [*audience.KEYS.values(), *audience.COMMANDS.values()]
    assert [reason for reason in reasons if not 20 <= len(reason) <= 80 or reason[-1] != "."] == []
