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
@click.option(
    "--registry",
    metavar="REGISTRY",
    help="registry and path of the images, for instance ghcr.io/me; with their digests if"
    " images/references.json lists them",
)
@click.option(
    "--references",
    type=click.Path(path_type=Path, dir_okay=False),
    help="the file that `make images PUSH=1` wrote, instead of images/references.json",
)
@click.option("--gpu", is_flag=True, help="make the trainer image for GPUs the default train_image")
@click.option("--tools-image", metavar="IMAGE", help="the steps' image")
@click.option("--trainer-image", metavar="IMAGE", help="image of evaluate and replicas")
@click.option(
    "--train-image", metavar="IMAGE", help="default of train_image, if not the trainer image"
)
@click.option(
    "--step-resources",
    multiple=True,
    metavar="STEP.KEY=VALUE",
    help="cpu, cpu_limit or memory of a step's pod, or of all, for instance"
    " prepare_data.memory=8Gi",
)
@click.option(
    "--plain-steps",
    is_flag=True,
    help="for Kubeflow Pipelines before 2.5: a run cannot set the resources and nodes of its steps"
    " with pod.prepare and pod.evaluate",
)
@click.option(
    "--run-as-user",
    default="1000",
    show_default=True,
    metavar="UID|none",
    help="user id of the steps' pods, not 0; none leaves the choice to the cluster",
)
def compile_(
    output: Path | None,
    registry: str | None,
    references: Path | None,
    gpu: bool,
    tools_image: str | None,
    trainer_image: str | None,
    train_image: str | None,
    step_resources: tuple[str, ...],
    plain_steps: bool,
    run_as_user: str,
) -> None:
    """Compile the pipeline for Kubeflow Pipelines.

    Writes one YAML file for the pipeline and one for each step. Without --registry or the options
    for single images, the YAML names placeholders that no cluster can pull.

    With a user id, the steps' pods meet the Pod Security level "restricted" on Kubeflow Pipelines
    2.16 or later. Versions 2.5 to 2.15 ignore the user id: the pods run as the image's user, or as
    PIPELINE_RUN_AS_USER of the API server. An id that an administrator sets for all pipelines
    takes precedence.

    Use none if the cluster assigns user ids itself, as OpenShift does. The steps work as any user
    in group 0.
    """
    from kfp_tfjob.pipelines.compilation import FOLDER, compile_all
    from kfp_tfjob.pipelines.references import References

    if run_as_user != "none" and not re.fullmatch(r"[1-9][0-9]{0,9}", run_as_user):
        raise ConfigurationError(
            Problem(
                "--run-as-user is not a user id",
                received=run_as_user,
                expected="a whole number above 0, or none",
                fix="omit it to use 1000",
            )
        )
    images: dict[str, str | None] = {
        "tools": tools_image,
        "trainer": trainer_image,
        "train": train_image,
    }
    if registry is not None or references:
        found = References.in_registry(registry or "", references)
        named: dict[str, str | None] = {}
        named |= {"tools": found.image("tools"), "trainer": found.image("trainer")}
        named["train"] = found.image("trainer-gpu") if gpu else trainer_image
        images = {name: image or named[name] for name, image in images.items()}
        if not found.pinned:
            click.echo(
                f"note: the digests of the images in {found.registry} are not known, so tags are"
                " compiled in. To use digests: make images PUSH=1",
                err=True,
            )
    elif gpu:
        raise ConfigurationError(
            Problem(
                "--gpu needs a registry",
                expected="the registry of the trainer image for GPUs",
                fix="add --registry REGISTRY, or name the image with --train-image",
            )
        )
    files = compile_all(
        output or FOLDER,
        images["tools"] or "",
        images["trainer"] or "",
        run_as_user,
        images["train"] or "",
        step_resources,
        plain_steps,
    )
    for path in files:
        click.echo(path)
