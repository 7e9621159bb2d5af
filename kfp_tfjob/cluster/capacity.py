"""Computes a job's requests and the nodes' capacity, as Kubernetes does.

All nodes are assumed to be empty, because other pods come and go. So a job that does not fit cannot
start on the current nodes at any time, and a job that fits may still have to wait. Called by
preflight's checks and by `kfp-tfjob submit`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal

from kubernetes.utils.quantity import parse_quantity

from kfp_tfjob.jobs.objects import Object
from kfp_tfjob.jobs.status import replicas

Amounts = dict[str, Decimal]


def format_amount(resource: str, amount: Decimal) -> str:
    """Return an amount for messages: memory and storage in GiB, other resources as a number."""
    if resource.endswith(("memory", "storage")) or resource.startswith("hugepages-"):
        return f"{amount / 2**30:.4g} GiB"
    return f"{amount.normalize():f}"


def of_pod(spec: Object) -> Amounts:
    """Return a pod's requests: its containers' total, or an init container's if that is larger."""
    sidecars: Amounts = {}
    peak: Amounts = {}
    for container in spec.get("initContainers") or ():
        running = _sum(sidecars, _container_requests(container))
        if container.get("restartPolicy") == "Always":  # a native sidecar keeps running
            sidecars = running
        peak = _maximum(peak, running)
    total = sidecars
    for container in spec.get("containers") or ():
        total = _sum(total, _container_requests(container))
    return _maximum(peak, total)


def of_job(job: Object) -> Amounts:
    """Return the total requests of a job's pods."""
    total: Amounts = {}
    for replica in replicas(job):
        requests = of_pod(replica.pod)
        total = _sum(total, {name: amount * replica.count for name, amount in requests.items()})
    return total


def fits(node: Object, spec: Object) -> bool:
    """Return whether a pod may run on a node, by its labels and taints; affinity is ignored."""
    labels = node["metadata"].get("labels") or {}
    if any(labels.get(key) != value for key, value in (spec.get("nodeSelector") or {}).items()):
        return False
    taints = (node.get("spec") or {}).get("taints") or []
    # PreferNoSchedule is only a preference.
    hard = [taint for taint in taints if taint["effect"] in ("NoSchedule", "NoExecute")]
    tolerations = spec.get("tolerations") or ()
    return all(any(_tolerates(toleration, taint) for toleration in tolerations) for taint in hard)


def _pods_that_fit(nodes: Iterable[Object], requests: Amounts) -> int:
    """Return the number of pods with these requests that the nodes could hold if empty."""
    count = 0
    for node in nodes:
        capacity = allocatable(node)
        per_resource = [
            capacity.get(name, Decimal(0)) // amount for name, amount in requests.items()
        ]
        count += int(min(per_resource, default=Decimal(0)))
    return count


def no_room(
    pod: Object, count: int, nodes: Sequence[Object], who: str, set_by: Callable[[str], str]
) -> str:
    """Return the reason why even empty nodes cannot hold `count` pods; empty if they can.

    Args:
        pod: The pod's spec.
        count: The number of equal pods.
        nodes: The cluster's nodes.
        who: The pods' name at the start of the message.
        set_by: Returns the option that sets the request of a resource.
    """
    requests = of_pod(pod)
    fitting = [node for node in nodes if fits(node, pod)]
    most = _pods_that_fit(fitting, requests)
    if most >= count:
        return ""
    if nodes and not fitting:
        return "no current node matches its node selector and tolerations"
    too_small = []
    for name, amount in requests.items():
        capacities = [
            (allocatable(node).get(name, Decimal(0)), node["metadata"].get("name", ""))
            for node in fitting
        ]
        largest, node = max(capacities, default=(amount, ""))
        if largest < amount:
            too_small.append(
                f"{who} requests a total of {format_amount(name, amount)} {name}, set by"
                f" {set_by(name)}, but the largest node, {node}, can allocate only"
                f" {format_amount(name, largest)}"
            )
    if too_small:
        return f"no matching node is large enough: {'; '.join(too_small)}"
    return f"matching nodes currently have room for {most}"


def lacks_room(job: Object, nodes: Sequence[Object]) -> str:
    """Return a sentence about a resource whose total exceeds all nodes'; empty if there is none."""
    pods = [replica.pod for replica in replicas(job)]
    usable = [allocatable(node) for node in nodes if any(fits(node, pod) for pod in pods)]
    for name, amount in of_job(job).items():
        capacity = sum((amounts.get(name, Decimal(0)) for amounts in usable), Decimal(0))
        if capacity < amount:
            return (
                f"the job requests a total of {format_amount(name, amount)} {name}, but the nodes"
                f" have only {format_amount(name, capacity)}"
            )
    return ""


def _container_requests(container: Object) -> Amounts:
    requests = ((container.get("resources") or {}).get("requests") or {}).items()
    return {name: parse_quantity(quantity) for name, quantity in requests}


def _sum(first: Amounts, second: Amounts) -> Amounts:
    zero = Decimal(0)
    return {name: first.get(name, zero) + second.get(name, zero) for name in first | second}


def _maximum(first: Amounts, second: Amounts) -> Amounts:
    zero = Decimal(0)
    return {name: max(first.get(name, zero), second.get(name, zero)) for name in first | second}


def allocatable(node: Object) -> Amounts:
    """Return the amounts that all pods on a node may request together."""
    amounts = (node["status"].get("allocatable") or {}).items()
    return {name: parse_quantity(quantity) for name, quantity in amounts}


def _tolerates(toleration: Object, taint: Object) -> bool:
    if toleration.get("effect") not in (None, "", taint["effect"]):
        return False
    if toleration.get("operator") == "Exists":
        return toleration.get("key") in (None, "", taint["key"])
    return toleration.get("key") == taint["key"] and str(toleration.get("value", "")) == str(
        taint.get("value", "")
    )
