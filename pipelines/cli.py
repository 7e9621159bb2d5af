"""The command line: the group of all commands. Each command is a file in commands/.

`--help` imports every file, so commands import heavy packages inside their function. Called by
`__main__.py`.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

import click

from kfp_tfjob.common.docs_page import address_of
from kfp_tfjob.common.errors import StepError
from kfp_tfjob.common.log_format import log_to
from kfp_tfjob.options.container_images import VERSION

from .commands.cancel import cancel
from .commands.compile import compile_
from .commands.doctor import doctor
from .commands.explain import explain
from .commands.follow import follow
from .commands.group import Group
from .commands.import_job import import_
from .commands.install import install
from .commands.logs import logs
from .commands.models import models
from .commands.monitor import monitor
from .commands.render import render
from .commands.retry import retry
from .commands.run import run
from .commands.runs import runs
from .commands.schedule import schedule
from .commands.serve import serve
from .commands.submit import submit
from .commands.tensorboard import tensorboard
from .commands.watch import watch
from .commands.why import why
from .hints import with_hints


class _Group(Group):
    """Exits with the code of the error and prints its message on standard error.

    `--help` lists the commands by what they are for, because a list of nineteen in the order of
    the alphabet has `run`, the one to start with, in its last third.
    """

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one list of commands for each section."""
        for title, commands in _SECTIONS.items():
            self.format_section(context, formatter, title, [str(it.name) for it in commands])

    def invoke(self, context: click.Context) -> Any:
        """Run a command; an error of this project becomes a message and the exit code."""
        try:
            return super().invoke(context)
        except StepError as error:
            click.echo(f"kfp-tfjob: {with_hints(error)}", err=True)
            if error.problem_name:
                click.echo(f"docs: {address_of(error.problem_name)}", err=True)
            sys.exit(error.code)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, prog_name="kfp-tfjob")
def main() -> None:
    """Train Keras models with Kubeflow Pipelines and TFJob, and verify the result in S3."""
    logging.basicConfig(level=logging.WARNING, handlers=[log_to(sys.stderr, "%(message)s")])


_SECTIONS = {
    "Train on this machine": (run, explain),
    "Set up a cluster": (doctor, install, compile_),
    "Train on Kubeflow Pipelines": (submit, schedule, import_, render),
    "Follow and end runs": (runs, watch, why, logs, tensorboard, cancel, retry),
    "Use published models": (models, serve, monitor, follow),
}
for commands in _SECTIONS.values():
    for command in commands:
        main.add_command(command)
