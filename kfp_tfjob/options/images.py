"""Defines the images of the compiled pipeline, and the user its steps run as.

`kfp-tfjob compile` compiles other values in. Not every Kubeflow Pipelines back end accepts them as
run parameters, and a run must not depend on a moving tag.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

from kfp_tfjob.storage.errors import Problem

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
_DIGITS = {"sha256": 64, "sha384": 96, "sha512": 128}
_LONGEST_PATH = 255  # characters
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
    """A text is not an image reference; the message says what the wrong part should be."""


@dataclass(frozen=True)
class Reference:
    """An image reference, as a node's container runtime parses it.

    Kubernetes, containerd and Docker share one grammar (github.com/distribution/reference). A pod
    whose image it rejects stays in InvalidImageName, so this class accepts neither more nor less.

    Attributes:
        domain: The registry's host, perhaps with a port; `docker.io` if the reference names none.
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
            # The grammar takes `my_host.io`, which no domain may be called, for a part of the path.
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
    text: str, what: str, fix: str, path: str = "", suffix: str = ""
) -> Iterator[Problem]:
    """Yield the problem with an image reference that no node can parse, if there is one.

    Args:
        text: The reference, or its first part, such as a registry.
        what: What is wrong, for example `train_image is not an image reference`.
        fix: What to do if no correction is likely.
        path: The parameter that contains it.
        suffix: The rest of the reference.
    """
    try:
        Reference.parse(text + suffix)
    except InvalidReferenceError as error:
        correction = _corrected(text + suffix).removesuffix(suffix)
        yield Problem(
            what,
            received=repr(text),
            expected=str(error),
            fix=f"use {correction}" if correction else fix,
            path=path,
            suggestion=correction,
        )


def registry_problems(registry: str, path: str) -> Iterator[Problem]:
    """Yield the problem with a registry in which no image can have a valid reference.

    Args:
        registry: A host and perhaps a path, for example `ghcr.io/me`.
        path: The option that names it.
    """
    suffix = tools_in("")
    fix = "name the registry's host and path, for example ghcr.io/me"
    yield from reference_problems(registry, f"{path} is not a registry", fix, path, suffix)


def is_placeholder(image: str) -> bool:
    """Return whether an image is one of the committed YAML, which exists in no registry."""
    domain = _split_domain(image.strip())[0]
    return domain.partition(":")[0].lower().endswith(".invalid")


def _split_domain(name: str) -> tuple[str, str]:
    """Return a reference's domain and the rest; without a domain, it is an image of Docker Hub."""
    first, slash, rest = name.partition("/")
    is_domain = first == "localhost" or bool(set(".:") & set(first)) or first != first.lower()
    domain, path = (first, rest) if slash and is_domain else (_DEFAULT_DOMAIN, name)
    domain = _DEFAULT_DOMAIN if domain == _LEGACY_DOMAIN else domain
    return domain, path if "/" in path or domain != _DEFAULT_DOMAIN else _OFFICIAL + path


def _corrected(text: str) -> str:
    """Return a reference without a scheme and with a name in lowercase, if that makes it valid."""
    match = re.fullmatch(r"(?:\w+://)?([^@]*?)((?::[^/@]*)?(?:@.*)?)", text)
    candidate = match[1].lower() + match[2] if match else ""
    try:
        Reference.parse(candidate)
    except InvalidReferenceError:
        return ""
    return candidate


# Every step but evaluate and publish, the init container `setup` and the sidecar `uploader`.
TOOLS = os.environ.get(TOOLS_VARIABLE) or tools_in(PLACEHOLDER)
# evaluate and publish, and the `tensorflow` container of a replica.
TRAINER = os.environ.get(TRAINER_VARIABLE) or trainer_in(PLACEHOLDER)
# The default of train_image, where it is not TRAINER: the image with the libraries for GPUs.
TRAIN = os.environ.get(TRAIN_VARIABLE) or TRAINER

# The user id of every step's pod; `none` where the cluster assigns one itself.
RUN_AS_USER_VARIABLE = "KFP_TFJOB_RUN_AS_USER"
RUN_AS_USER = os.environ.get(RUN_AS_USER_VARIABLE) or "1000"
