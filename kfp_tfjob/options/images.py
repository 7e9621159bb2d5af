"""Defines the images of the compiled pipeline, and the user its steps run as.

`kfp-tfjob compile` compiles other values in. Not every Kubeflow Pipelines back end accepts them as
run parameters, and a run must not depend on a moving tag.
"""

import os
import re

VERSION = "0.2.0"
IMAGE_NAME = "REGISTRY/NAME:TAG without spaces, with NAME in lowercase letters"
# RFC 2606 reserves `.invalid`, so no node can ever pull such an image.
PLACEHOLDER = "set-your-registry.invalid"
TOOLS_VARIABLE, TRAINER_VARIABLE = "KFP_TFJOB_TOOLS_IMAGE", "KFP_TFJOB_TRAINER_IMAGE"
TRAIN_VARIABLE = "KFP_TFJOB_TRAIN_IMAGE"
_HOST, _FOLDERS = r"([\w.-]+(:\d+)?/)?", r"([a-z0-9._-]+/)*"
_NAME = re.compile(_HOST + _FOLDERS + r"[a-z0-9._-]+(:[\w.-]+)?(@\w+:\w+)?", re.ASCII)


def tools_in(registry: str) -> str:
    """Return the name of the tools image of this version in a registry."""
    return f"{registry}/kfp-tfjob-tools:{VERSION}"


def trainer_in(registry: str, gpu: bool = False) -> str:
    """Return the name of the trainer image of this version in a registry."""
    return f"{registry}/kfp-tfjob-trainer:{VERSION}{'-gpu' if gpu else ''}"


def serving_in(registry: str) -> str:
    """Return the name of the serving image of this version in a registry."""
    return f"{registry}/kfp-tfjob-serving:{VERSION}"


def is_name(image: str) -> bool:
    """Return whether a text is the name of an image, as a node can pull it."""
    return bool(_NAME.fullmatch(image))


def is_placeholder(image: str) -> bool:
    """Return whether an image is one of the committed YAML, which exists in no registry."""
    return image.strip().partition("/")[0].partition(":")[0].lower().endswith(".invalid")


# Every step but evaluate and publish, the init container `setup` and the sidecar `uploader`.
TOOLS = os.environ.get(TOOLS_VARIABLE) or tools_in(PLACEHOLDER)
# evaluate and publish, and the `tensorflow` container of a replica.
TRAINER = os.environ.get(TRAINER_VARIABLE) or trainer_in(PLACEHOLDER)
# The default of train_image, where it is not TRAINER: the image with the libraries for GPUs.
TRAIN = os.environ.get(TRAIN_VARIABLE) or TRAINER

# The user id of every step's pod; `none` where the cluster assigns one itself.
RUN_AS_USER_VARIABLE = "KFP_TFJOB_RUN_AS_USER"
RUN_AS_USER = os.environ.get(RUN_AS_USER_VARIABLE) or "1000"
