"""Compiles the YAML that users upload to Kubeflow Pipelines.

The files are committed, so equal code must give equal bytes: a difference in a review is then a
difference of the pipeline. Called by `kfp-tfjob compile`, and by `package.py` for a submission.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from kfp_tfjob.common.docs_page import SITE_VARIABLE
from kfp_tfjob.common.errors import ConfigurationError, Problem
from kfp_tfjob.options.container_images import (
    RUN_AS_USER_VARIABLE,
    TOOLS_VARIABLE,
    TRAIN_VARIABLE,
    TRAINER_VARIABLE,
    is_placeholder,
)

from . import step_resources as step_settings

_DEFAULT = re.compile(r"\[Default: (\{.*\})\]")
# The committed YAML of a checkout; an installed package may be read-only.
_HERE = Path(__file__).resolve()  # in a checkout, kfp_tfjob/pipelines is a link
_IN_CHECKOUT = (_HERE.parents[1] / "pyproject.toml").exists()
FOLDER = _HERE.with_name("compiled") if _IN_CHECKOUT else Path("compiled")
# The digests of the images that `make images PUSH=1` pushed from this checkout, by name.
DIGESTS = _HERE.parents[1] / "images" / "digests.json"


def pinned(image: str) -> str:
    """Return an image with its digest, if it was pushed from this checkout."""
    digests = json.loads(DIGESTS.read_text()) if DIGESTS.is_file() else {}
    return f"{image}@{digests[image]}" if image in digests else image


def compile_all(
    folder: Path,
    tools_image: str = "",
    trainer_image: str = "",
    run_as_user: str = "",
    train_image: str = "",
    step_resources: Iterable[str] = (),
    plain_steps: bool = False,
    docs_url: str = "",
) -> list[Path]:
    """Compile the pipeline and each of its steps into `folder`, and return the files' paths.

    The same code and arguments give the same bytes. Modules read the arguments when they are
    imported, so each compilation runs in its own process.

    Args:
        folder: The folder, which is created if necessary.
        tools_image: The steps' image; an empty string means the default here and below.
        trainer_image: The image of evaluate, publish and the replicas.
        run_as_user: The user id of the steps' pods, or `none`.
        train_image: The default of the run parameter.
        step_resources: Settings `STEP.KEY=VALUE`.
        plain_steps: Whether to compile for back ends without setters of pods' resources.
        docs_url: The address of a site with these pages, which a failed run names.

    Raises:
        ConfigurationError: A setting in step_resources is invalid, or the folder cannot be written.
    """
    variables = {TOOLS_VARIABLE: tools_image, TRAINER_VARIABLE: trainer_image}
    variables[TRAIN_VARIABLE] = train_image
    variables[RUN_AS_USER_VARIABLE] = run_as_user
    variables[SITE_VARIABLE] = docs_url
    variables[step_settings.PLAIN_VARIABLE] = "1" if plain_steps else ""
    variables[step_settings.VARIABLE] = json.dumps(step_settings.parse(step_resources))
    environment = os.environ | {name: setting for name, setting in variables.items() if setting}
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-Pm", "kfp_tfjob.pipelines.compilation", scratch]
        subprocess.run(command, check=True, env=environment)
        compiled = sorted(Path(scratch).iterdir(), key=lambda p: p.name != "tfjob_training.yaml")
        texts = {path.name: _DEFAULT.sub(_sort_keys, path.read_text()) for path in compiled}
    return [_write(folder / name, _header(text) + text) for name, text in texts.items()]


def _write(path: Path, text: str) -> Path:
    """Write a file in a folder that is created if necessary, and return its path."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    except OSError as error:
        raise ConfigurationError(
            Problem(
                f"{path} cannot be written",
                received=str(error),
                expected="a path in a folder that exists or can be created",
                fix="name another folder with --output",
                path="--output",
            )
        ) from None
    return path


def parse(text: str) -> list[Any]:
    """Return the YAML documents of a compiled pipeline.

    Raises:
        yaml.YAMLError: The text is not YAML.
    """
    # libyaml's parser takes a tenth of the time.
    return list(yaml.load_all(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)))


def images_of(text: str) -> list[str]:
    """Return the sorted images of a compiled pipeline or step, with the default of train_image."""
    specification = parse(text)[0]
    inputs = specification["root"].get("inputDefinitions", {}).get("parameters", {})
    default = inputs.get("train_image", {}).get("defaultValue")
    return sorted(images_of_steps(specification) | ({default} if default else set()))


def images_of_steps(specification: Mapping[str, Any]) -> set[str]:
    """Return the images of a compiled pipeline's steps.

    Args:
        specification: The first document of its YAML.
    """
    executors = specification.get("deploymentSpec", {}).get("executors", {}).values()
    images = set()
    for container in (executor["container"] for executor in executors if "container" in executor):
        environment = {variable["name"]: variable["value"] for variable in container.get("env", ())}
        # A placeholder: preflight chooses one of two images, by whether the step has GPUs.
        is_chosen = container["image"].startswith("{{")
        names = (TRAINER_VARIABLE, TRAIN_VARIABLE)
        images |= {environment[name] for name in names} if is_chosen else {container["image"]}
    return images


def _header(text: str) -> str:
    """Return a file's first lines, comments that list its images and whether they exist."""
    images = images_of(text)
    lines = ["Images:", *(f"   {image}" for image in images)]
    if any(map(is_placeholder, images)):
        lines.append("   These names are placeholders that no cluster can pull. Put in your own:")
        lines.append("   kfp-tfjob compile --registry REGISTRY")
    return "".join(f"# {line}\n" for line in lines)


def _sort_keys(match: re.Match[str]) -> str:
    """Return a default in KFP's leading comment with its keys sorted.

    KFP prints them in the order of a protobuf map, which differs between processes.
    """
    return f"[Default: {json.dumps(ast.literal_eval(match[1]), sort_keys=True)}]"


def _compile_here(folder: Path) -> None:
    from kfp import compiler

    from .one_step import one_step
    from .tfjob_training import OF_THE_RUN, STEPS, tfjob_training

    compiler.Compiler().compile(tfjob_training, str(folder / "tfjob_training.yaml"))
    for step in STEPS:
        file = folder / f"{step.name.replace('-', '_')}.yaml"
        compiler.Compiler().compile(one_step(step, OF_THE_RUN), str(file))


if __name__ == "__main__":
    _compile_here(Path(sys.argv[1]))
