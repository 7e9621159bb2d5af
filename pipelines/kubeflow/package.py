"""A compiled pipeline to submit: compiled now from this version's code, or read from a file.

Images that no node can pull are found here, before a run exists. Called by `client.py` and
`submission.py`, and by `doctor.py`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kfp_tfjob.common.errors import ConfigurationError, Problem
from kfp_tfjob.options.container_images import is_placeholder, reference_problems

from .. import compilation
from .runs import defaults_of

_NAME = "tfjob-training"


@dataclass(frozen=True)
class Package:
    """A compiled pipeline.

    Attributes:
        source: Its origin, for messages.
        spec: `pipeline_spec` and perhaps `platform_spec`, in the API's form.
    """

    source: str
    spec: Mapping[str, Any]

    @property
    def defaults(self) -> dict[str, Any]:
        """The defaults of its inputs, by name; inputs without a default are omitted."""
        return defaults_of(self.spec)

    @property
    def images(self) -> list[str]:
        """The images of its steps, sorted."""
        return sorted(compilation.images_of_steps(self.spec["pipeline_spec"]))

    def problems(self, train_image: str) -> Iterator[Problem]:
        """Yield a problem for images that no node can pull, in the pipeline or in train_image."""
        for image in self.images:
            yield from reference_problems(
                image,
                "the pipeline contains an image that is not an image reference",
                fix="compile the pipeline with another image",
            )
        compiled = [image for image in self.images if is_placeholder(image)]
        if compiled:
            yield Problem(
                "the pipeline contains placeholders for images, which exist in no registry",
                received=", ".join(compiled),
                expected="images that your nodes can pull",
                fix="compile the pipeline with your own, `kfp-tfjob compile --registry REGISTRY`,"
                " then submit with"
                " --pipeline compiled/tfjob_training.yaml; or set KFP_TFJOB_TOOLS_IMAGE and"
                " KFP_TFJOB_TRAINER_IMAGE",
                name="placeholder-image",
            )
        elif is_placeholder(train_image):
            yield Problem(
                "train_image exists in no registry",
                received=train_image,
                expected="an image that your nodes can pull",
                fix="set your own",
                path="train_image",
                name="placeholder-image",
            )


def this_version() -> Package:
    """Return the pipeline of this version, compiled in this process."""
    from kfp import compiler

    from ..tfjob_training import tfjob_training

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pipeline.yaml"
        compiler.Compiler().compile(tfjob_training, str(path))
        return Package("this version of kfp-tfjob", _read_yaml(path))


def from_file(path: Path) -> Package:
    """Return the pipeline of a YAML file that `kfp-tfjob compile` wrote."""
    spec = _read_yaml(path)
    pipeline = spec["pipeline_spec"]
    name = pipeline.get("pipelineInfo", {}).get("name") if isinstance(pipeline, Mapping) else None
    if name != _NAME:
        raise ConfigurationError(
            Problem(
                f"{path} is not this project's pipeline",
                received=repr(name) if name else "something without pipelineInfo.name",
                expected=f"the pipeline {_NAME}",
                fix="pass --pipeline PATH/tfjob_training.yaml, as written by `kfp-tfjob compile`",
            )
        )
    return Package(str(path), spec)


def _read_yaml(path: Path) -> dict[str, Any]:
    """Return the specs in a compiled pipeline's file, by their name in the API."""
    import yaml

    try:
        documents = compilation.parse(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            Problem(
                f"{path} is not a compiled pipeline",
                received=" ".join(str(error).split()),
                expected="the YAML that `kfp-tfjob compile` writes",
                fix="write it with `kfp-tfjob compile`, and name it with --pipeline",
            )
        ) from None
    names = ("pipeline_spec", "platform_spec")
    return dict(zip(names, documents, strict=False)) or {"pipeline_spec": None}
