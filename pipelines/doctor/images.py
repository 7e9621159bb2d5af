"""Looks for the images of a run on the nodes and in their registries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kfp_tfjob.checks.finding import Finding, ok, unknown, warning
from kfp_tfjob.options import images
from kfp_tfjob.pipelines.doctor import registry


def pullable(
    wanted: Sequence[str], account: str, nodes: Sequence[Mapping[str, Any]]
) -> Iterator[Finding]:
    """Look for images on the nodes and in their registries.

    Args:
        wanted: The images.
        account: The service account of the runs.
        nodes: The nodes; empty if they cannot be listed.
    """
    wanted = list(dict.fromkeys(wanted))
    there: dict[str, int] = {}
    for node in nodes:
        names = {name for item in node["status"].get("images") or () for name in item["names"]}
        for image in wanted:
            there[image] = there.get(image, 0) + bool(names & _spellings(image))
    for image in wanted:
        if images.is_placeholder(image):
            yield Finding(
                f"image {image} is a placeholder, which no node can pull",
                fix="build and push the images with `make images REGISTRY=... PUSH=1`, and compile"
                " with them: kfp-tfjob compile --help",
            )
        elif (number := there.get(image, 0)) and number == len(nodes):
            yield ok(f"{image} is on {_every(number)}")
        else:
            yield _in_registry(image, account, number, len(nodes))


def _every(nodes: int) -> str:
    return "the only node" if nodes == 1 else f"all {nodes} nodes"


def _in_registry(image: str, account: str, there: int = 0, nodes: int = 0) -> Finding:
    """Ask the registry for an image that some nodes do not show, and must pull.

    Args:
        image: The image.
        account: The service account of the runs.
        there: On how many nodes it is.
        nodes: How many there are.
    """
    answer = registry.ask(image)
    where = f"only on {there} of {nodes} nodes" if there else "on no node that says so"
    text = f"{image} is {where}, and its registry {answer}"
    if answer is registry.Answer.HAS:
        return ok(f"{image} is in its registry, without a login")
    if there and answer is registry.Answer.LACKS:
        return warning(text, "push it: the other nodes cannot start its pods")
    if answer is registry.Answer.LACKS:
        return Finding(text, fix="push it, or correct its name")
    if answer is registry.Answer.LOGIN:
        return warning(
            text,
            "give the nodes access, or set pod.all.image_pull_secret and the imagePullSecrets of"
            f" the service account {account}",
        )
    fix = "check its name; nodes may reach a registry that this machine does not"
    return unknown(text, fix=fix)


def _spellings(image: str) -> set[str]:
    """Return the names under which a node may list an image.

    A node lists an image by its tag, and by its digest without the tag.
    """
    name, _, digest = image.partition("@")
    repository, colon, tag = name.rpartition(":")
    if not colon or "/" in tag:  # the port of a registry
        repository, tag = name, "latest"
    listed = f"{repository}@{digest}" if digest else f"{repository}:{tag}"
    first = listed.partition("/")[0]
    if "/" in listed and (set(first) & set(".:") or first == "localhost"):
        return {listed}
    return {listed, f"docker.io/{listed}", f"docker.io/library/{listed}"}
