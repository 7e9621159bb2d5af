"""Looks for the images of a run on the nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kfp_tfjob.checks.finding import Finding, ok, unknown
from kfp_tfjob.jobs.objects import Object
from kfp_tfjob.options import images


def pullable(wanted: Sequence[str], account: str, nodes: Sequence[Object]) -> Iterator[Finding]:
    """Look for images on the nodes, without a question to a registry.

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
            some = f"only on {number} of {len(nodes)} nodes"
            where = some if number else "on no node that says so"
            yield unknown(
                f"{image} is {where}: whether the others can pull it was not checked",
                fix="push it; for a registry with a login, set pod.all.image_pull_secret and the"
                f" imagePullSecrets of the service account {account}",
            )


def _every(nodes: int) -> str:
    return "the only node" if nodes == 1 else f"all {nodes} nodes"


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
