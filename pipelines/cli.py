"""The command line: the group of all commands. Each command is a file in commands/.

`--help` imports every file, so commands import heavy packages inside their function.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

import click

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
from kfp_tfjob.storage.errors import StepError
from kfp_tfjob.storage.escaping import log_to


class _Group(Group):
    """Exits with the code of the error and prints its message on standard error."""

    def invoke(self, context: click.Context) -> Any:
        """Run a command; an error of this project becomes a message and the exit code."""
        try:
            return super().invoke(context)
        except StepError as error:
            click.echo(f"kfp-tfjob: {with_hints(error)}", err=True)
            sys.exit(error.code)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, prog_name="kfp-tfjob")
def main() -> None:
    """Train Keras models with Kubeflow Pipelines and TFJob, and verify the result in S3."""
    logging.basicConfig(level=logging.WARNING, handlers=[log_to(sys.stderr, "%(message)s")])


_HERE = (run, explain, compile_, tensorboard, render, import_)
_MODELS = (models, serve, monitor, follow)
_ON_KUBEFLOW = (
    install,
    doctor,
    submit,
    schedule,
    runs,
    watch,
    logs,
    why,
    cancel,
    retry,
)
for command in (*_HERE, *_MODELS, *_ON_KUBEFLOW):
    main.add_command(command)
