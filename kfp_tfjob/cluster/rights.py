"""Lists the rights that the steps need, and asks the cluster which of them an account lacks.

Only the cluster can answer this, because several roles may grant a right. Called by preflight's and
doctor's checks; tests/unit/test_deploy.py compares the lists with deploy/.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from kfp_tfjob.jobs.kind import JobKind

from .client import ClusterClient

_REVIEWS = "/apis/authorization.k8s.io/v1"
_PARALLEL_REVIEWS = 8  # each is a request, and some ten rights are checked while a user waits


@dataclass(frozen=True)
class Right:
    """The right to use one resource, or a subresource such as `pods/log`."""

    group: str
    resource: str
    verbs: tuple[str, ...]

    def __str__(self) -> str:
        """Return the verbs and the resource for a message."""
        return f"{', '.join(self.verbs)} {self.resource}"


def to_run(kind: JobKind) -> tuple[Right, ...]:
    """Return the rights without which no run is possible, as deploy/base grants them."""
    return (
        Right(kind.group, kind.plural, ("create", "get", "list", "watch", "delete")),
        Right("", "pods", ("get", "list", "watch", "patch")),
        Right("", "pods/log", ("get",)),
    )


# The launcher's rights to stop a job itself, on a back end that ends the exit task with the run.
TO_STOP = (
    Right("argoproj.io", "workflows", ("get", "watch")),
    Right("", "pods", ("delete", "deletecollection")),
)
# Rights that make messages precise; a run works without them.
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
        account: A service account in the client's namespace; empty for the caller.
        namespace: The objects' namespace; empty for the whole cluster, None for the client's.
    """
    namespace = api.namespace if namespace is None else namespace

    def is_allowed(right: Right, verb: str) -> bool:
        resource, _, subresource = right.resource.partition("/")
        attributes = {
            "namespace": namespace,
            "verb": verb,
            "group": right.group,
            "resource": resource,
            "subresource": subresource,
        }
        return _is_allowed(api, attributes, account)

    with ThreadPoolExecutor(_PARALLEL_REVIEWS) as pool:
        calls = [
            (right, {verb: pool.submit(is_allowed, right, verb) for verb in right.verbs})
            for right in rights
        ]
    lacking = []
    for right, reviews in calls:
        if verbs := tuple(verb for verb, review in reviews.items() if not review.result()):
            lacking.append(Right(right.group, right.resource, verbs))
    return lacking


def own_account(api: ClusterClient) -> str:
    """Return the service account that the caller uses; empty if it is not in the namespace."""
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    review = api.request("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", {}, body)
    user = review["status"]["userInfo"]["username"]
    prefix = f"system:serviceaccount:{api.namespace}:"
    return user.removeprefix(prefix) if user.startswith(prefix) else ""


def _is_allowed(api: ClusterClient, attributes: dict[str, str], account: str) -> bool:
    """Ask the cluster whether an account, or the caller if it is empty, may make a call."""
    spec: dict[str, object] = {"resourceAttributes": attributes}
    kind, scope = "SelfSubjectAccessReview", ""
    if account:
        # A namespace's administrator may ask for its accounts, but not in the whole cluster.
        kind = f"{'Local' * bool(attributes['namespace'])}SubjectAccessReview"
        scope = f"namespaces/{api.namespace}/" if attributes["namespace"] else ""
        group = "system:serviceaccounts"
        spec |= {
            "user": f"system:serviceaccount:{api.namespace}:{account}",
            "groups": [group, f"{group}:{api.namespace}", "system:authenticated"],
        }
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec}
    if scope:
        body["metadata"] = {"namespace": api.namespace}
    review = api.request("POST", f"{_REVIEWS}/{scope}{kind.lower()}s", {}, body)
    return bool(review["status"]["allowed"])
