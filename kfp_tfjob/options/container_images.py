"""Defines the container images of the compiled pipeline, and the user its steps run as.

`kfp-tfjob compile` compiles other values in. Not every Kubeflow Pipelines back end accepts them as
run parameters, and a run must not depend on a moving tag. Called by the components, preflight and
the commands that compile or check a pipeline.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

from kfp_tfjob.common.errors import Problem

VERSION = "0.2.0"
# RFC 2606 reserves `.invalid`, so no node can ever pull such an image.
PLACEHOLDER = "set-your-registry.invalid"
TOOLS_VARIABLE, TRAINER_VARIABLE = "KFP_TFJOB_TOOLS_IMAGE", "KFP_TFJOB_TRAINER_IMAGE"
TRAIN_VARIABLE = "KFP_TFJOB_TRAIN_IMAGE"

_DOMAIN_PART = "[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?"
_DOMAIN = re.compile(rf"(?:{_DOMAIN_PART}(?:\.{_DOMAIN_PART})*|\[[a-fA-F0-9:]+\])(?::[0-9]+)?")
_PATH_PART = "[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_PATH = re.compile(rf"{_PATH_PART}(?:/{_PATH_PART})*")
_TAG = re.compile(r"\w[\w.-]{0,127}", re.ASCII)
_DIGEST = re.compile(r"(?P<algorithm>sha256|sha384|sha512):(?P<digits>[a-f0-9]*)")
_DIGITS = {"sha256": 64, "sha384": 96, "sha512": 128}  # four bits each
_LONGEST_PATH = 255  # characters; the limit of the reference grammar
_DEFAULT_DOMAIN, _LEGACY_DOMAIN, _OFFICIAL = "docker.io", "index.docker.io", "library/"


def tools_in(registry: str) -> str:
    """Return the name of the tools image of this version in a registry."""
    return f"{registry}/kfp-tfjob-tools:{VERSION}"


def trainer_in(registry: str, gpu: bool = False) -> str:
    """Return the name of the trainer image of this version in a registry."""
    return f"{registry}/kfp-tfjob-trainer:{VERSION}{'-gpu' if gpu else ''}"


def serving_in(registry: str) -> str:
    """Return the name of the serving image of this version in a registry."""
    return f"{registry}/kfp-tfjob-serving:{VERSION}"


class InvalidReferenceError(ValueError):
    """A string is not an image reference; the message is the expected form of the invalid part."""


@dataclass(frozen=True)
class Reference:
    """An image reference, as a node's container runtime parses it.

    Kubernetes, containerd and Docker share one grammar (github.com/distribution/reference). A pod
    whose image it rejects stays in InvalidImageName, so this class accepts neither more nor less.

    Attributes:
        domain: The registry's host, perhaps with a port; `docker.io` if the reference lacks one.
        path: The repository's path, without the domain.
        tag: For example, `1.0`; empty if there is none.
        digest: For example, `sha256:` and 64 digits; empty if there is none.
    """

    domain: str
    path: str
    tag: str = ""
    digest: str = ""

    @classmethod
    def parse(cls, text: str) -> Reference:
        """Parse an image reference.

        Args:
            text: For example, `ghcr.io/team/trainer:1.0`.

        Raises:
            InvalidReferenceError: No node can parse it.
        """
        name, at, digest = text.partition("@")
        domain, path = _split_domain(name)
        path, colon, tag = path.partition(":")
        if not _DOMAIN.fullmatch(domain):
            # The grammar reads `my_host.io`, which is not a valid domain, as a part of the path.
            if not _PATH.fullmatch(f"{domain}/{path}"):
                raise InvalidReferenceError(
                    f"the host of a registry, without a scheme, instead of {domain!r}"
                )
            domain, path = "", f"{domain}/{path}"
        if not _PATH.fullmatch(path) or re.fullmatch("[a-f0-9]{64}", text):
            raise InvalidReferenceError(
                "a repository of lowercase letters and digits, joined by /, -, __, or one . or _"
            )
        if len(path) > _LONGEST_PATH:
            raise InvalidReferenceError(
                f"a repository of at most {_LONGEST_PATH} characters, not {len(path)}"
            )
        if colon and not _TAG.fullmatch(tag):
            raise InvalidReferenceError(
                "a tag of 1 to 128 letters, digits, _, . and -, the first neither . nor -"
            )
        match = _DIGEST.fullmatch(digest)
        if at and not match:
            raise InvalidReferenceError(
                "a digest: sha256, sha384 or sha512, a colon, lowercase hex digits"
            )
        if match and len(match["digits"]) != _DIGITS[match["algorithm"]]:
            raise InvalidReferenceError(
                f"{_DIGITS[match['algorithm']]} hex digits after {match['algorithm']}:, not"
                f" {len(match['digits'])}"
            )
        return cls(domain, path, tag, digest)


def reference_problems(
    text: str, sentence: str, fix: str, path: str = "", suffix: str = ""
) -> Iterator[Problem]:
    """Yield a problem if no node can parse an image reference.

    Args:
        text: The reference, or its first part, such as a registry.
        sentence: The problem's first part, for example `train_image is not an image reference`.
        fix: The remedy if no correction is likely.
        path: The parameter that contains the reference.
        suffix: The remaining part of the reference.
    """
    try:
        Reference.parse(text + suffix)
    except InvalidReferenceError as error:
        correction = _corrected(text + suffix).removesuffix(suffix)
        yield Problem(
            sentence,
            received=repr(text),
            expected=str(error),
            fix=f"use {correction}" if correction else fix,
            path=path,
            suggestion=correction,
        )


def registry_problems(registry: str, path: str) -> Iterator[Problem]:
    """Yield a problem if the registry's name makes every image reference invalid.

    Args:
        registry: A host and perhaps a path, for example `ghcr.io/me`.
        path: The option or parameter with the registry, for example `--registry`.
    """
    fix = "name the registry's host and path, for example ghcr.io/me"
    image_name = tools_in("")  # a registry is valid if a reference to one of our images is
    yield from reference_problems(registry, f"{path} is not a registry", fix, path, image_name)


def is_placeholder(image: str) -> bool:
    """Return whether an image is a placeholder of the committed YAML, which no registry has."""
    domain = _split_domain(image.strip())[0]
    return domain.partition(":")[0].lower().endswith(".invalid")


def _split_domain(name: str) -> tuple[str, str]:
    """Return a reference's domain and path; without a domain, it is an image of Docker Hub."""
    first, slash, remaining = name.partition("/")
    is_domain = first == "localhost" or bool(set(".:") & set(first)) or first != first.lower()
    domain, path = (first, remaining) if slash and is_domain else (_DEFAULT_DOMAIN, name)
    domain = _DEFAULT_DOMAIN if domain == _LEGACY_DOMAIN else domain
    return domain, path if "/" in path or domain != _DEFAULT_DOMAIN else _OFFICIAL + path


def _corrected(text: str) -> str:
    """Return a reference without its scheme and in lowercase; empty if that is not valid either."""
    match = re.fullmatch(r"(?:\w+://)?([^@]*?)((?::[^/@]*)?(?:@.*)?)", text)
    candidate = match[1].lower() + match[2] if match else ""
    try:
        Reference.parse(candidate)
    except InvalidReferenceError:
        return ""  # a suggestion must be valid, so there is none
    return candidate


# Every step but evaluate and publish, the init container `setup` and the sidecar `uploader`.
TOOLS = os.environ.get(TOOLS_VARIABLE) or tools_in(PLACEHOLDER)
# evaluate and publish, and the `tensorflow` container of a replica.
TRAINER = os.environ.get(TRAINER_VARIABLE) or trainer_in(PLACEHOLDER)
# The default of train_image, if it is not TRAINER: the image with the libraries for GPUs.
TRAIN = os.environ.get(TRAIN_VARIABLE) or TRAINER

# The user id of every step's pod; `none` for a cluster that assigns user ids itself.
RUN_AS_USER_VARIABLE = "KFP_TFJOB_RUN_AS_USER"
RUN_AS_USER = os.environ.get(RUN_AS_USER_VARIABLE) or "1000"
