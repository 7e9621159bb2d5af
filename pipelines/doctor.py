"""Checks from a laptop whether a cluster, a back end and a store are ready for runs.

Nothing needs to be installed for it. It reaches the cluster first, because the other checks depend
on that, and then runs them at the same time, because each may wait for a timeout. Called by
`kfp-tfjob doctor`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from uuid import uuid4

from kfp_tfjob.checks.cluster import version
from kfp_tfjob.checks.engine import CHECKS, CLUSTER, NAMESPACE, At, findings
from kfp_tfjob.checks.finding import Finding, Status, ok, only, unknown, warning
from kfp_tfjob.checks.namespace import account_of, level_of
from kfp_tfjob.checks.step_pods import asked_for, step_pods
from kfp_tfjob.checks.store import check_store
from kfp_tfjob.checks.subject import Subject, open_cluster
from kfp_tfjob.cluster.api_errors import ForbiddenError
from kfp_tfjob.cluster.client import ClusterClient
from kfp_tfjob.cluster.manifests import MULTI_USER, STANDALONE
from kfp_tfjob.common.errors import NoRoomError, StoreUnavailableError
from kfp_tfjob.jobs.spec import JobSpec
from kfp_tfjob.options.parameters import RunParameters
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.retry import Patience
from kfp_tfjob.storage.store import Store

from .kubeflow.connection import Connection
from .kubeflow.errors import ALLOW_ACCOUNT
from .kubeflow.pods import INSTALLATION
from .kubeflow.records import endpoint_of
from .step_resources import DEFAULTS

_BACK_END, _STORE = "Kubeflow Pipelines", "store"
TOPICS = (CLUSTER, NAMESPACE, _BACK_END, _STORE)
_BACK_END_SECONDS = 2  # a person waits, and a back end that works answers at once
_STORE_PATIENCE = Patience(seconds=3, silence=3)  # as above; preflight tries longer
# The first versions of Kubeflow Pipelines with Secret names as run parameters, with the user id of
# a task, and with a check of a run's account. Only the tested version was run.
_OLDEST, _USER_ID, _TESTED, _ACCOUNTS = (2, 5), (2, 16), (2, 17), (2, 18)

Report = Mapping[str, list[Finding]]


@dataclass(frozen=True)
class Request:
    """The run whose start is to be checked.

    Attributes:
        connection: How to reach the back end.
        account: The service account of the runs; empty for Kubeflow Pipelines' account.
        values: The run parameters.
        spec: The job that they describe.
    """

    connection: Connection
    account: str
    values: RunParameters
    spec: JobSpec


def examine(request: Request) -> Report:
    """Return the findings of all checks by topic; topics without findings are omitted."""
    reached: list[Subject] = []
    cluster = _run_check("the cluster", partial(_reach, request, reached))
    level = level_of(reached[0].api) if reached else ""
    checks = [
        (_BACK_END, "the back end", partial(_check_back_end, request, level)),
        (_STORE, "the store", partial(check_output_store, request.values)),
    ]
    checks += [
        (check.topic, check.examined, partial(check.find, subject))
        for subject in reached
        for check in CHECKS
        if At.DOCTOR in check.at and check.find is not version
    ]
    with ThreadPoolExecutor() as pool:
        results = pool.map(lambda check: _run_check(*check[1:]), checks)
    report: dict[str, list[Finding]] = {topic: [] for topic in TOPICS} | {CLUSTER: cluster}
    for (topic, *_), result in zip(checks, results, strict=True):
        report[topic] += result
    return {topic: of_topic for topic, of_topic in report.items() if of_topic}


def _run_check(examined: str, check: Callable[[], Iterable[Finding]]) -> list[Finding]:
    try:
        return findings(examined, check)
    except Exception as error:  # a bug in one check must not hide the findings of the others
        cause = f"{type(error).__name__}: {error}"
        return [Finding(f"{examined}: a bug in kfp-tfjob doctor", cause)]


def _reach(request: Request, reached: list[Subject]) -> list[Finding]:
    """Return the findings about the cluster; if it can run jobs, add the subject to `reached`."""
    api = open_cluster(0, request.spec.kind)
    # A kubeconfig without a namespace gives `default`, where nobody installs Kubeflow Pipelines.
    default_namespace = api.namespace if api.namespace != "default" else INSTALLATION
    api.namespace = request.connection.namespace or default_namespace
    pods = step_pods(request.spec.pod, DEFAULTS)
    pods = asked_for(pods) or [pods["prepare_data"]]
    subject = Subject(api, request.spec, request.account, step_pods=pods)
    results = findings("the Kubernetes version", partial(version, subject))
    if not only(results, Status.PROBLEM):
        reached.append(replace(subject, account=request.account or _account(api)))
    return results


def _account(api: ClusterClient) -> str:
    """Return the account that Kubeflow Pipelines uses in the namespace; a guess if unknown."""
    try:
        return account_of(api) or STANDALONE
    except ForbiddenError:
        return STANDALONE  # the checks of the account name it, so a wrong guess shows


def _check_back_end(request: Request, level: str) -> Iterator[Finding]:
    back_end = request.connection.open(_BACK_END_SECONDS)
    users = "multi-user" if back_end.multi_user else "single-user"
    location = f"at {back_end.host}, {users}"
    yield from check_version(back_end.version, location, level, request.account)


def check_version(version: str, where: str, level: str, account: str = "") -> Iterator[Finding]:
    """Check that the version of a back end supports these runs.

    Args:
        version: The version as the back end reports it.
        where: Its address, and whether it is multi-user, for the message.
        level: The Pod Security level of the runs' namespace; empty if unknown.
        account: The service account in the run's request; empty if it names none.
    """
    number = re.match(r"v?(\d+)\.(\d+)(\.\d+)?", version)
    if not number:
        yield unknown(
            f"Kubeflow Pipelines responds {where}, but does not report its version",
            fix="check that it is 2.17; older versions have not been tried",
        )
        return
    back_end = f"Kubeflow Pipelines {number[0]} {where}"
    release = int(number[1]), int(number[2])
    if release < _OLDEST:
        yield Finding(
            f"{back_end}: too old, because run parameters cannot name a Secret",
            fix="upgrade Kubeflow Pipelines to 2.17",
        )
    elif release < _USER_ID and level == "restricted":
        yield Finding(
            f"{back_end}: it ignores a step's user id, so Pod Security restricted rejects its pod",
            fix="set PIPELINE_RUN_AS_USER of the API server, or upgrade to 2.17",
        )
    elif release < _USER_ID:
        yield warning(
            f"{back_end}: not tried; it ignores a step's user id, so steps run as the image's user",
            "upgrade to 2.17",
        )
    elif release < _TESTED:
        yield warning(f"{back_end}: not tried, because it is older than 2.17", "upgrade to 2.17")
    elif release > _TESTED:
        yield warning(
            f"{back_end}: not tried, because it is newer than 2.17",
            "read what changes after 2.17 in docs/support.md",
        )
    else:
        yield ok(back_end)
    if account not in ("", STANDALONE, MULTI_USER) and release >= _ACCOUNTS:
        yield warning(
            f"{back_end}: it rejects service account {account} unless an administrator allows it",
            ALLOW_ACCOUNT,
        )


def check_output_store(values: RunParameters) -> list[Finding]:
    """Write, read, create and delete small objects below `output_uri`, from this machine.

    The parameter `storage_endpoint` is the store's address inside the cluster, so an endpoint in
    this machine's environment takes precedence.

    Raises:
        StepError: The store cannot hold the output of runs.
    """
    if not values["output_uri"]:
        fix = "pass the output's address with --output s3://BUCKET/PREFIX, and --endpoint URL"
        return [unknown("the store was not checked", fix=f"{fix} for a store other than AWS")]
    root = Layout.parse(values["output_uri"]).root
    endpoint = endpoint_of(values["storage_endpoint"])
    store = Store(endpoint, values["storage_region"], patience=_STORE_PATIENCE)
    try:
        return check_store(store, root / f".doctor-{uuid4().hex[:8]}", root)
    except NoRoomError:
        raise  # the store answers, so it can be reached from here
    except StoreUnavailableError as error:
        # An address inside the cluster is not reachable from here.
        results = [Finding.of(problem, Status.UNKNOWN) for problem in error.problems]
        fix = "if only pods can reach it, preflight checks it in a run"
        return [replace(finding, fix=finding.fix or fix) for finding in results]
