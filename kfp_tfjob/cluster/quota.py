"""Reads the refusals of a ResourceQuota: can the job never fit, or may it wait?"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal

from kubernetes.utils.quantity import parse_quantity

from kfp_tfjob.cluster import capacity
from kfp_tfjob.jobs.objects import Object
from kfp_tfjob.jobs.status import replicas

_EXCEEDED = re.compile(r"exceeded quota: (\S+), requested: (\S+), used: (\S+), limited: (\S+)")
_PODS = frozenset({"pods", "count/pods"})


@dataclass(frozen=True)
class Exceeded:
    """One refusal of a pod, by the quota's names for resources, such as `requests.cpu`."""

    name: str
    requested: Mapping[str, Decimal]
    limited: Mapping[str, Decimal]
    message: str

    def never(self, job: Object) -> str:
        """Return why the quota can never admit the job, even if unused, or "" if it could."""
        together = use_of(job) if _counts_alike(job) else {}
        for resource, limit in self.limited.items():
            most = max(self.requested.get(resource, Decimal(0)), together.get(resource, Decimal(0)))
            if most > limit:
                return (
                    f"the job asks for {capacity.shown(resource, most)} {resource}, but quota"
                    f" {self.name} allows {capacity.shown(resource, limit)} in all"
                )
        return ""


def exceeded(messages: Iterable[str]) -> Iterator[Exceeded]:
    """Yield the refusals among messages."""
    for text in messages:
        if found := _EXCEEDED.search(text):
            name, requested, _, limited = found.groups()
            try:
                yield Exceeded(name, _amounts(requested), _amounts(limited), found[0])
            except ValueError:
                continue  # truncated or worded differently: shown, but not used to decide


def never(job: Object, messages: Iterable[str]) -> str:
    """Return which quota can never admit the job, by the refusals of its pods; "" if none."""
    for refusal in exceeded(messages):
        if why := refusal.never(job):
            return f"{why}: {refusal.message}"
    return ""


def left(found: Object) -> dict[str, tuple[Decimal, Decimal]]:
    """Return what a ResourceQuota still allows and what it allows in all, by the quota's names."""
    status = found.get("status") or {}
    used = status.get("used") or {}
    hard = status.get("hard") or found["spec"].get("hard") or {}
    totals = {name: parse_quantity(value) for name, value in hard.items()}
    return {
        name: (total - parse_quantity(used.get(name, "0")), total) for name, total in totals.items()
    }


def _amounts(text: str) -> dict[str, Decimal]:
    pairs = (item.partition("=") for item in text.split(","))
    return {name: parse_quantity(value) for name, _, value in pairs if value}


def _counts_alike(job: Object) -> bool:
    """Tell whether a quota counts all pods: some count one priority class only."""
    return len({item.pod.get("priorityClassName") for item in replicas(job)}) == 1


def use_of(job: Object) -> dict[str, Decimal]:
    """Return the amounts of a whole job, by the names that quotas use."""
    requests, limits = capacity.of_job(job), capacity.of_job(job, "limits")
    return {
        **dict.fromkeys(_PODS, Decimal(sum(item.count for item in replicas(job)))),
        **requests,
        **{f"requests.{name}": amount for name, amount in requests.items()},
        **{f"limits.{name}": amount for name, amount in limits.items()},
    }
