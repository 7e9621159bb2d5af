"""The command line: the group of all commands. Each command is a file in commands/.

`--help` imports every file, so commands import heavy packages inside their function.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

import click

from kfp_tfjob.common.docs_page import address_of
from kfp_tfjob.common.errors import StepError
from kfp_tfjob.common.escaping import log_to
from kfp_tfjob.options.images import VERSION
from kfp_tfjob.pipelines.commands.cancel import cancel
from kfp_tfjob.pipelines.commands.compile import compile_
from kfp_tfjob.pipelines.commands.doctor import doctor
from kfp_tfjob.pipelines.commands.explain import explain
from kfp_tfjob.pipelines.commands.follow import follow
from kfp_tfjob.pipelines.commands.group import Group
from kfp_tfjob.pipelines.commands.import_job import import_
from kfp_tfjob.pipelines.commands.install import install
from kfp_tfjob.pipelines.commands.logs import logs
from kfp_tfjob.pipelines.commands.models import models
from kfp_tfjob.pipelines.commands.monitor import monitor
from kfp_tfjob.pipelines.commands.render import render
from kfp_tfjob.pipelines.commands.retry import retry
from kfp_tfjob.pipelines.commands.run import run
from kfp_tfjob.pipelines.commands.runs import runs
from kfp_tfjob.pipelines.commands.schedule import schedule
from kfp_tfjob.pipelines.commands.serve import serve
from kfp_tfjob.pipelines.commands.submit import submit
from kfp_tfjob.pipelines.commands.tensorboard import tensorboard
from kfp_tfjob.pipelines.commands.watch import watch
from kfp_tfjob.pipelines.commands.why import why
from kfp_tfjob.pipelines.hints import with_hints


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
