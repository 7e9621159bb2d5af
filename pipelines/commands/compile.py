"""`kfp-tfjob compile`: the YAML for Kubeflow Pipelines."""

from __future__ import annotations

import re
from pathlib import Path

import click

from kfp_tfjob.common.errors import ConfigurationError, Problem


@click.command("compile")
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help="folder for the YAML [default: compiled; in a checkout pipelines/compiled]",
)
@click.option(
    "--registry",
    metavar="REGISTRY",
    help="registry and path of the images, for example ghcr.io/me; with their digests, if"
    " `make images PUSH=1` has pushed them from this checkout",
)
@click.option("--gpu", is_flag=True, help="make the trainer image for GPUs the default train_image")
@click.option("--tools-image", metavar="IMAGE", help="image for the other steps")
@click.option(
    "--trainer-image", metavar="IMAGE", help="image for evaluate, publish and the replicas"
)
@click.option(
    "--train-image", metavar="IMAGE", help="default of train_image, if it is not the trainer image"
)
@click.option(
    "--step-resources",
    multiple=True,
    metavar="STEP.KEY=VALUE",
    help="cpu, cpu_limit or memory of a step's pod, such as prepare_data.memory=8Gi; the step"
    " `all` stands for every step",
)
@click.option(
    "--plain-steps",
    is_flag=True,
    help="compile for Kubeflow Pipelines before 2.5 (not tried); runs then cannot set pod.prepare"
    " or pod.evaluate",
)
@click.option(
    "--run-as-user",
    default="1000",
    show_default=True,
    metavar="UID|none",
    help="user id of the steps' pods, not 0; none leaves the choice to the cluster",
)
@click.option(
    "--docs-url",
    default="",
    metavar="URL",
    help="the site that `make docs` built, to which failed runs refer [default: the path"
    " docs/failures.md]",
)
def compile_(
    output: Path | None,
    registry: str | None,
    gpu: bool,
    tools_image: str | None,
    trainer_image: str | None,
    train_image: str | None,
    step_resources: tuple[str, ...],
    plain_steps: bool,
    run_as_user: str,
    docs_url: str,
) -> None:
    """Compile the pipeline for Kubeflow Pipelines.

    Writes one YAML file for the pipeline and one for each step. Without --registry or the options
    for single images, the YAML contains placeholders that no cluster can pull.

    With a user id, the steps' pods meet the Pod Security level "restricted" on Kubeflow Pipelines
    2.16 or later; earlier versions ignore it. An id that an administrator sets for all pipelines
    takes precedence. Use none if the cluster assigns user ids itself, as OpenShift does. The steps
    work as any user in group 0.
    """
    from kfp_tfjob.options.container_images import (
        reference_problems,
        registry_problems,
        tools_in,
        trainer_in,
    )

    from ..compilation import FOLDER, compile_all, pinned

    if run_as_user != "none" and not re.fullmatch(r"[1-9][0-9]{0,9}", run_as_user):
        raise ConfigurationError(
            Problem(
                "--run-as-user is not a user id",
                received=run_as_user,
                expected="a whole number above 0, or none",
                fix="omit it to use 1000",
            )
        )
    if registry:
        registry = registry.rstrip("/")
        ConfigurationError.raise_if(registry_problems(registry, "--registry"))
        tools_image = tools_image or pinned(tools_in(registry))
        trainer_image = trainer_image or pinned(trainer_in(registry))
        if gpu:
            train_image = train_image or pinned(trainer_in(registry, gpu=True))
        images = (tools_image, trainer_image, train_image or trainer_image)
        if tags := [image for image in images if "@" not in image]:
            click.echo(
                f"note: the digests of {', '.join(dict.fromkeys(tags))} are not known, so tags are"
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
    if docs_url and not re.fullmatch(r"https?://[^\s/?#]+(/[^\s?#]*)?", docs_url):
        raise ConfigurationError(
            Problem(
                "--docs-url is not the address of a site",
                received=docs_url,
                expected="http://HOST/PATH or https://HOST/PATH, without ? and #",
                fix="correct it, or omit it",
            )
        )
    chosen_images = {
        "--tools-image": tools_image,
        "--trainer-image": trainer_image,
        "--train-image": train_image,
    }
    ConfigurationError.raise_if(
        problem
        for option, image in chosen_images.items()
        for problem in reference_problems(
            image or "",
            f"{option} is not an image reference",
            fix="name the image as REGISTRY/NAME:TAG",
            path=option,
        )
        if image
    )
    files = compile_all(
        output or FOLDER,
        tools_image or "",
        trainer_image or "",
        run_as_user,
        train_image or "",
        step_resources,
        plain_steps,
        docs_url,
    )
    for path in files:
        click.echo(path)
