"""Checks what the whole cluster offers: its version, the operator, nodes and images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from kfp_tfjob.checks.job import shared_gpus, too_small
from kfp_tfjob.cluster import capacity, support
from kfp_tfjob.cluster.backend import Object
from kfp_tfjob.cluster.client import ClusterClient
from kfp_tfjob.cluster.errors import ClusterUnavailableError, ForbiddenError, NotFoundError
from kfp_tfjob.components.step_pods import too_large
from kfp_tfjob.options import images
from kfp_tfjob.pipelines.doctor import registry
from kfp_tfjob.pipelines.doctor.finding import Finding, fail, failures, ok, warn
from kfp_tfjob.pipelines.doctor.subject import Subject
from kfp_tfjob.pipelines.kubeflow.nodes import FIX
from kfp_tfjob.storage.words import counted


def reach(api: ClusterClient) -> Finding:
    """Return whether the cluster answers, and its version."""
    host = api.address
    try:
        found = api.request("GET", "/version", {})
    except ForbiddenError:
        return ok(f"Kubernetes at {host}; you may not read its version")
    except ClusterUnavailableError as error:
        why = error.__cause__
        if getattr(why, "status", None) == 401:
            return fail(
                f"Kubernetes at {host} does not accept your credentials",
                "log in again, until `kubectl get pods` works",
            )
        return fail(
            f"Kubernetes at {host} does not answer: {why}",
            "check the context of your kubeconfig, and the network or VPN to the cluster",
        )
    if problems := list(support.too_old(found)):
        return next(failures(problems))
    return ok(f"Kubernetes {found.get('gitVersion', '?')} at {host}")


def operator(subject: Subject) -> Iterator[Finding]:
    """Create the job as a dry run: CRD, webhook and schema."""
    api = subject.api
    try:
        problems = list(support.try_job(api, subject.job))
    except ForbiddenError:
        yield from _served(api)
        return
    if problems:
        yield from failures(problems)
    else:
        yield ok(f"the training operator accepts the {api.kind.name} (dry run)")


def _served(api: ClusterClient) -> Iterator[Finding]:
    """Look for the kind only, where the caller may not create one."""
    kind = api.kind
    try:
        found = api.request("GET", f"/apis/{kind.api_version}", {})
    except NotFoundError:
        found = {}
    if any(item["name"] == kind.plural for item in found.get("resources", ())):
        yield warn(
            f"this cluster knows {kind.name}s, but you may not create one, so the operator was not"
            " tried",
            "run doctor with the rights of an editor of the namespace; preflight tries it too",
        )
    else:
        yield fail(
            f"this cluster does not know {kind.name}s",
            "ask an administrator to install the Kubeflow training operator v1.9",
        )


def nodes(subject: Subject) -> list[Object] | None:
    """Return the nodes; None without the right to list them."""
    try:
        return list(subject.api.list("/api/v1/nodes"))
    except ForbiddenError:
        return None


def room(subject: Subject, found: Sequence[Object] | None) -> Iterator[Finding]:
    """Compare the job with the nodes."""
    if found is None:
        yield warn(
            "you may not list nodes, so the job was not compared with them",
            "ask an administrator for the right to list nodes",
        )
        return
    yield ok(f"{counted(len(found), 'node')}; the largest can allocate {_largest(found)}")
    yield from failures(shared_gpus(subject.spec, list(found)))
    for text in too_small(subject.spec, list(found)):
        yield warn(text, FIX)
    for it in subject.step_pods:
        for text in too_large(it, list(found)):
            yield warn(text, f"lower {it.key}, or add nodes")


def _largest(found: Sequence[Object]) -> str:
    """Return what the node with the most GPUs, then cores, can allocate."""

    def size(node: Object) -> tuple[Any, Any]:
        has = capacity.allocatable(node)
        return sum(n for name, n in has.items() if _is_gpu(name)), has.get("cpu", 0)

    if not found:
        return "nothing"
    has = capacity.allocatable(max(found, key=size))
    names = [name for name in has if _is_gpu(name) and has[name]]
    names += [name for name in ("cpu", "memory") if name in has]
    return ", ".join(f"{capacity.shown(name, has[name])} {name}" for name in names)


def _is_gpu(name: str) -> bool:
    return "/" in name and any(word in name for word in ("gpu", "mig-"))


def pullable(
    subject: Subject, steps: Sequence[str], found: Sequence[Object] | None
) -> Iterator[Finding]:
    """Look for the images of the steps and of the job, on the nodes and in the registry."""
    wanted = dict.fromkeys([*steps, subject.spec.image])
    there: dict[str, int] = {}
    for node in found or ():
        names = {name for item in node["status"].get("images") or () for name in item["names"]}
        for image in wanted:
            there[image] = there.get(image, 0) + bool(names & _spellings(image))
    for image in wanted:
        if images.is_placeholder(image):
            yield fail(
                f"image {image} is a placeholder, which no node can pull",
                "build and push the images with `make images REGISTRY=... PUSH=1`, and compile with"
                " them: kfp-tfjob compile --help",
            )
        elif (number := there.get(image, 0)) and number == len(found or ()):
            yield ok(f"{image} is on {_every(number)}")
        else:
            yield _in_registry(image, subject.account, number, len(found or ()))


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
        return warn(text, "push it: the other nodes cannot start its pods")
    if answer is registry.Answer.LACKS:
        return fail(text, "push it, or correct its name")
    if answer is registry.Answer.LOGIN:
        return warn(
            text,
            "give the nodes access, or set pod.all.image_pull_secret and the imagePullSecrets of"
            f" the service account {account}",
        )
    return warn(text, "check its name; nodes may reach a registry that this machine does not")


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
