"""`kfp-tfjob compile`: the YAML for Kubeflow Pipelines."""

from __future__ import annotations

import re
from pathlib import Path

import click

from kfp_tfjob.storage.errors import ConfigurationError, Problem


@click.command("compile")
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help="folder for the YAML [default: compiled; in a checkout pipelines/compiled]",
)
@click.option("--tools-image", default="", metavar="IMAGE", help="image of the steps")
@click.option("--trainer-image", default="", metavar="IMAGE", help="image of evaluate and replicas")
@click.option(
    "--run-as-user",
    default="1000",
    show_default=True,
    metavar="UID|none",
    help="user id of the steps' pods, not 0; none leaves the choice to the cluster",
)
def compile_(output: Path | None, tools_image: str, trainer_image: str, run_as_user: str) -> None:
    """Compile the pipeline for Kubeflow Pipelines.

    Writes one YAML file for the pipeline and one for each step.

    With a user id, the pods of the steps meet the Pod Security level "restricted" on Kubeflow
    Pipelines 2.16 and later. Versions 2.5 to 2.15 ignore the user id: the pods run as the user of
    the image, or as PIPELINE_RUN_AS_USER of the API server. An id that an administrator sets for
    all pipelines takes precedence.

    Use none if the cluster assigns user ids itself, as OpenShift does. The steps work as any user
    in group 0.
    """
    from kfp_tfjob.pipelines.compilation import FOLDER, compile_all

    if run_as_user != "none" and not re.fullmatch(r"[1-9][0-9]{0,9}", run_as_user):
        raise ConfigurationError(
            Problem(
                "--run-as-user is not a user id",
                received=run_as_user,
                expected="a whole number above 0, or none",
                fix="omit it to use 1000",
            )
        )
    for path in compile_all(output or FOLDER, tools_image, trainer_image, run_as_user):
        click.echo(path)
