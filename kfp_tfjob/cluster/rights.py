"""Knows the rights that the steps need, and asks the cluster for those that an account lacks."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from kfp_tfjob.cluster.client import ClusterClient
from kfp_tfjob.jobs.kind import JobKind

_REVIEWS = "/apis/authorization.k8s.io/v1"
_AT_ONCE = 8


@dataclass(frozen=True)
class Right:
    """The right to use one kind of object, or a subresource such as `pods/log`."""

    group: str
    resource: str
    verbs: tuple[str, ...]

    def __str__(self) -> str:
        """Return it for people."""
        return f"{', '.join(self.verbs)} {self.resource}"


def to_run(kind: JobKind) -> tuple[Right, ...]:
    """Return the rights without which no run is possible, as deploy/base grants them."""
    return (
        Right(kind.group, kind.plural, ("create", "get", "list", "watch", "delete")),
        Right("", "pods", ("get", "list", "watch", "patch")),
        Right("", "pods/log", ("get",)),
    )


# What Terminate needs on a back end that ends the exit task with the run.
TO_STOP = (
    Right("argoproj.io", "workflows", ("get", "watch")),
    Right("", "pods", ("delete", "deletecollection")),
)
# What makes messages precise.
TO_EXPLAIN = (
    Right("", "events", ("list",)),
    Right("", "configmaps", ("get",)),
    Right("", "persistentvolumeclaims", ("get",)),
    Right("", "serviceaccounts", ("get",)),
)


def missing(
    api: ClusterClient, rights: Sequence[Right], account: str = "", namespace: str | None = None
) -> list[Right]:
    """Return the rights that an account lacks, each with the verbs that it lacks.

    Args:
        api: The cluster.
        rights: The rights to ask for.
        account: A service account of the namespace of `api`; empty for the caller.
        namespace: Where the objects are; empty for the whole cluster, None for that of `api`.
    """
    place = api.namespace if namespace is None else namespace

    def is_allowed(right: Right, verb: str) -> bool:
        resource, _, part = right.resource.partition("/")
        wanted = {"namespace": place, "verb": verb, "group": right.group}
        return _allowed(api, wanted | {"resource": resource, "subresource": part}, account)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        calls = [
            (right, {verb: pool.submit(is_allowed, right, verb) for verb in right.verbs})
            for right in rights
        ]
    found = []
    for right, answers in calls:
        if verbs := tuple(verb for verb, answer in answers.items() if not answer.result()):
            found.append(Right(right.group, right.resource, verbs))
    return found


def own_account(api: ClusterClient) -> str:
    """Return the service account that the caller uses; empty if it is none of the namespace."""
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    reply = api.request("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", {}, body)
    user, place = reply["status"]["userInfo"]["username"], f"system:serviceaccount:{api.namespace}:"
    return user.removeprefix(place) if user.startswith(place) else ""


def _allowed(api: ClusterClient, wanted: dict[str, str], account: str) -> bool:
    spec: dict[str, object] = {"resourceAttributes": wanted}
    kind, place = "SelfSubjectAccessReview", ""
    if account:
        # An administrator of a namespace may ask for its accounts, but not in the whole cluster.
        kind = f"{'Local' * bool(wanted['namespace'])}SubjectAccessReview"
        place = f"namespaces/{api.namespace}/" if wanted["namespace"] else ""
        every = "system:serviceaccounts"
        spec |= {
            "user": f"system:serviceaccount:{api.namespace}:{account}",
            "groups": [every, f"{every}:{api.namespace}", "system:authenticated"],
        }
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec}
    if place:
        body["metadata"] = {"namespace": api.namespace}
    reply = api.request("POST", f"{_REVIEWS}/{place}{kind.lower()}s", {}, body)
    return bool(reply["status"]["allowed"])
