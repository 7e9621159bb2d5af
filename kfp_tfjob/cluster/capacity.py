"""Computes the requests of a job and the capacity of nodes, as Kubernetes does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal

from kubernetes.utils.quantity import parse_quantity

from kfp_tfjob.jobs.objects import Object
from kfp_tfjob.jobs.status import replicas

Amounts = dict[str, Decimal]


def shown(resource: str, amount: Decimal) -> str:
    """Return an amount for people: bytes in GiB, everything else as a plain number."""
    if resource.endswith(("memory", "storage")) or resource.startswith("hugepages-"):
        return f"{amount / 2**30:.4g} GiB"
    return f"{amount.normalize():f}"


def of_pod(spec: Object) -> Amounts:
    """Return a pod's requests: its containers, or an init container if that is larger."""
    beside: Amounts = {}
    most: Amounts = {}
    for container in spec.get("initContainers") or ():
        own = _added(beside, _of_container(container))
        if container.get("restartPolicy") == "Always":  # a native sidecar keeps running
            beside = own
        most = _larger(most, own)
    together = beside
    for container in spec.get("containers") or ():
        together = _added(together, _of_container(container))
    return _larger(most, together)


def of_job(job: Object) -> Amounts:
    """Return the total requests of all pods of a job."""
    total: Amounts = {}
    for replica in replicas(job):
        each = of_pod(replica.pod)
        total = _added(total, {name: n * replica.count for name, n in each.items()})
    return total


def fits(node: Object, spec: Object) -> bool:
    """Return whether a pod may run on a node, by its labels and taints; affinity is ignored."""
    labels = node["metadata"].get("labels") or {}
    if any(labels.get(key) != value for key, value in (spec.get("nodeSelector") or {}).items()):
        return False
    taints = (node.get("spec") or {}).get("taints") or []
    hard = [item for item in taints if item["effect"] in ("NoSchedule", "NoExecute")]
    tolerations = spec.get("tolerations") or ()
    return all(any(_tolerates(one, taint) for one in tolerations) for taint in hard)


def room(nodes: Iterable[Object], asked: Amounts) -> int:
    """Return how many pods with these requests the nodes could hold if they were empty."""
    found = 0
    for node in nodes:
        has = allocatable(node)
        parts = [has.get(name, Decimal(0)) // n for name, n in asked.items()]
        found += int(min(parts, default=Decimal(0)))
    return found


def no_room(
    pod: Object, count: int, nodes: Sequence[Object], who: str, set_by: Callable[[str], str]
) -> str:
    """Return why nodes, even if empty, do not hold `count` pods; "" if they do."""
    asked = of_pod(pod)
    fitting = [node for node in nodes if fits(node, pod)]
    most = room(fitting, asked)
    if most >= count:
        return ""
    if nodes and not fitting:
        return "no current node matches its node selector and tolerations"
    small = []
    for name, amount in asked.items():
        has = [
            (allocatable(node).get(name, Decimal(0)), node["metadata"].get("name", ""))
            for node in fitting
        ]
        largest, node = max(has, default=(amount, ""))
        if largest < amount:
            small.append(
                f"{who} requests a total of {shown(name, amount)} {name}, set by"
                f" {set_by(name)}, but the largest node, {node}, can allocate only"
                f" {shown(name, largest)}"
            )
    if small:
        return f"no matching node is large enough: {'; '.join(small)}"
    return f"matching nodes currently have room for {most}"


def lacks_room(job: Object, nodes: Sequence[Object]) -> str:
    """Return which total of a job exceeds what the nodes have in all, or "" if none does."""
    pods = [replica.pod for replica in replicas(job)]
    usable = [allocatable(node) for node in nodes if any(fits(node, pod) for pod in pods)]
    for name, amount in of_job(job).items():
        has = sum((item.get(name, Decimal(0)) for item in usable), Decimal(0))
        if has < amount:
            return (
                f"the job requests a total of {shown(name, amount)} {name}, but the nodes have only"
                f" {shown(name, has)}"
            )
    return ""


def _of_container(container: Object) -> Amounts:
    given = ((container.get("resources") or {}).get("requests") or {}).items()
    return {name: parse_quantity(value) for name, value in given}


def _added(left: Amounts, right: Amounts) -> Amounts:
    zero = Decimal(0)
    return {name: left.get(name, zero) + right.get(name, zero) for name in left | right}


def _larger(left: Amounts, right: Amounts) -> Amounts:
    zero = Decimal(0)
    return {name: max(left.get(name, zero), right.get(name, zero)) for name in left | right}


def allocatable(node: Object) -> Amounts:
    """Return what pods may use of a node."""
    given = (node["status"].get("allocatable") or {}).items()
    return {name: parse_quantity(value) for name, value in given}


def _tolerates(toleration: Object, taint: Object) -> bool:
    if toleration.get("effect") not in (None, "", taint["effect"]):
        return False
    if toleration.get("operator") == "Exists":
        return toleration.get("key") in (None, "", taint["key"])
    return toleration.get("key") == taint["key"] and str(toleration.get("value", "")) == str(
        taint.get("value", "")
    )
