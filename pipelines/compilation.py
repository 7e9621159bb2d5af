"""Compiles the YAML that users upload to Kubeflow Pipelines."""

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

from kfp_tfjob.options.images import (
    RUN_AS_USER_VARIABLE,
    TOOLS_VARIABLE,
    TRAIN_VARIABLE,
    TRAINER_VARIABLE,
    is_placeholder,
)
from kfp_tfjob.pipelines import step_resources as resources_of_steps

_DEFAULT = re.compile(r"\[Default: (\{.*\})\]")
# The committed YAML of a checkout; an installed package may be read-only.
_HERE = Path(__file__).resolve()  # in a checkout, kfp_tfjob/pipelines is a link
_IN_CHECKOUT = (_HERE.parents[1] / "pyproject.toml").exists()
FOLDER = _HERE.with_name("compiled") if _IN_CHECKOUT else Path("compiled")
# The digests of what `make images PUSH=1` has pushed from this checkout, by the image's name.
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
) -> list[Path]:
    """Compile the pipeline and each of its steps into `folder`.

    The same code and arguments give the same bytes: KFP reads them when the modules are imported,
    so each compilation runs in its own process. Empty strings stand for the defaults.

    Raises:
        ConfigurationError: Settings of step_resources that are wrong.
    """
    said = {TOOLS_VARIABLE: tools_image, TRAINER_VARIABLE: trainer_image}
    said[TRAIN_VARIABLE] = train_image
    said[RUN_AS_USER_VARIABLE] = run_as_user
    said[resources_of_steps.PLAIN_VARIABLE] = "1" if plain_steps else ""
    said[resources_of_steps.VARIABLE] = json.dumps(resources_of_steps.parse(step_resources))
    environment = os.environ | {name: value for name, value in said.items() if value}
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-Pm", "kfp_tfjob.pipelines.compilation", scratch]
        subprocess.run(command, check=True, env=environment)
        folder.mkdir(parents=True, exist_ok=True)
        files = []
        for path in sorted(Path(scratch).iterdir(), key=lambda p: p.name != "tfjob_training.yaml"):
            target = folder / path.name
            text = _DEFAULT.sub(_sorted, path.read_text())
            target.write_text(_head(text) + text)
            files.append(target)
    return files


def parse(text: str) -> list[Any]:
    """Return the documents of a compiled pipeline.

    The parser of libyaml takes a tenth of the time.

    Raises:
        yaml.YAMLError: The text is not YAML.
    """
    return list(yaml.load_all(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)))


def images_of(text: str) -> list[str]:
    """Return the images that a compiled pipeline or step names, sorted."""
    specification = parse(text)[0]
    inputs = specification["root"].get("inputDefinitions", {}).get("parameters", {})
    default = inputs.get("train_image", {}).get("defaultValue")
    return sorted(images_of_steps(specification) | ({default} if default else set()))


def images_of_steps(specification: Mapping[str, Any]) -> set[str]:
    """Return the images of the steps of a compiled pipeline, the first document of its YAML."""
    executors = specification.get("deploymentSpec", {}).get("executors", {}).values()
    found = set()
    for it in (executor["container"] for executor in executors if "container" in executor):
        variables = {of["name"]: of["value"] for of in it.get("env", ())}
        chosen = it["image"].startswith("{{")  # by preflight
        names = (TRAINER_VARIABLE, TRAIN_VARIABLE)
        found |= {variables[name] for name in names} if chosen else {it["image"]}
    return found


def _head(text: str) -> str:
    """Return the first lines of a file: the images that it names, and whether they exist."""
    images = images_of(text)
    lines = ["Images:", *(f"   {image}" for image in images)]
    if any(map(is_placeholder, images)):
        lines.append("   These names are placeholders that no cluster can pull. Put in your own:")
        lines.append("   kfp-tfjob compile --registry REGISTRY")
    return "".join(f"# {line}\n" for line in lines)


def _sorted(match: re.Match[str]) -> str:
    """Return a default of the head comment with its keys sorted.

    KFP prints it in the order of a protobuf map, which differs between processes.
    """
    return f"[Default: {json.dumps(ast.literal_eval(match[1]), sort_keys=True)}]"


def _compile_here(folder: Path) -> None:
    from kfp import compiler

    from kfp_tfjob.pipelines.one_step import one_step
    from kfp_tfjob.pipelines.tfjob_training import OF_THE_RUN, STEPS, tfjob_training

    compiler.Compiler().compile(tfjob_training, str(folder / "tfjob_training.yaml"))
    for step in STEPS:
        file = folder / f"{step.name.replace('-', '_')}.yaml"
        compiler.Compiler().compile(one_step(step, OF_THE_RUN), str(file))


if __name__ == "__main__":
    _compile_here(Path(sys.argv[1]))
