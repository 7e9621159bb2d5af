"""Checks from a laptop whether a cluster, a back end and a store are ready for runs."""

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
from kfp_tfjob.cluster.client import ClusterClient
from kfp_tfjob.cluster.errors import ForbiddenError
from kfp_tfjob.cluster.manifests import MULTI_USER, STANDALONE
from kfp_tfjob.jobs.spec import JobSpec
from kfp_tfjob.options.pipeline import RunParameters
from kfp_tfjob.pipelines.kubeflow.connection import Connection
from kfp_tfjob.pipelines.kubeflow.errors import ALLOW_ACCOUNT
from kfp_tfjob.pipelines.kubeflow.pods import INSTALLATION
from kfp_tfjob.pipelines.kubeflow.records import endpoint_of
from kfp_tfjob.pipelines.step_resources import DEFAULTS
from kfp_tfjob.storage.errors import NoRoomError, StoreUnavailableError
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.retry import Patience
from kfp_tfjob.storage.store import Store

_BACK_END, _STORE = "Kubeflow Pipelines", "store"
TOPICS = (CLUSTER, NAMESPACE, _BACK_END, _STORE)
_BACK_END_SECONDS = 2
_STORE_PATIENCE = Patience(seconds=3, silence=3)
# The version of Kubeflow Pipelines that first has: Secret names as run parameters, the user id of a
# task, and a check of a run's account.
_OLDEST, _USER_ID, _ACCOUNTS = (2, 5), (2, 16), (2, 18)

Report = Mapping[str, list[Finding]]


@dataclass(frozen=True)
class Question:
    """What to examine.

    Attributes:
        connection: Where the back end is.
        account: The service account of the runs; empty for that of Kubeflow Pipelines.
        values: The run parameters.
        spec: The job that they describe.
    """

    connection: Connection
    account: str
    values: RunParameters
    spec: JobSpec


def examine(question: Question) -> Report:
    """Reach the cluster, run the other checks at once, and return the findings by topic."""
    reached: list[Subject] = []
    cluster = _found("the cluster", partial(_reach, question, reached))
    level = level_of(reached[0].api) if reached else ""
    checks = [
        (_BACK_END, "the back end", partial(_check_back_end, question, level)),
        (_STORE, "the store", partial(check_own_store, question.values)),
    ]
    checks += [
        (it.topic, it.examined, partial(it.find, subject))
        for subject in reached
        for it in CHECKS
        if At.DOCTOR in it.at and it.find is not version
    ]
    with ThreadPoolExecutor() as pool:
        found = pool.map(lambda check: _found(*check[1:]), checks)
    report: dict[str, list[Finding]] = {topic: [] for topic in TOPICS} | {CLUSTER: cluster}
    for (topic, *_), some in zip(checks, found, strict=True):
        report[topic] += some
    return {topic: some for topic, some in report.items() if some}


def _found(what: str, check: Callable[[], Iterable[Finding]]) -> list[Finding]:
    try:
        return findings(what, check)
    except Exception as error:
        return [Finding(f"{what}: a bug in kfp-tfjob doctor", f"{type(error).__name__}: {error}")]


def _reach(question: Question, reached: list[Subject]) -> list[Finding]:
    """Add the subject of the checks to `reached`, if the cluster answers and is not too old."""
    api = open_cluster(0, question.spec.kind)
    here = api.namespace if api.namespace != "default" else INSTALLATION
    api.namespace = question.connection.namespace or here
    pods = step_pods(question.spec.pod, DEFAULTS)
    pods = asked_for(pods) or [pods["prepare_data"]]
    subject = Subject(api, question.spec, question.account, step_pods=pods)
    found = findings("the Kubernetes version", partial(version, subject))
    if not only(found, Status.PROBLEM):
        reached.append(replace(subject, account=question.account or _account(api)))
    return found


def _account(api: ClusterClient) -> str:
    """Return the account that Kubeflow Pipelines uses in the namespace."""
    try:
        return account_of(api) or STANDALONE
    except ForbiddenError:
        return STANDALONE


def _check_back_end(question: Question, level: str) -> Iterator[Finding]:
    found = question.connection.open(_BACK_END_SECONDS)
    users = "multi-user" if found.multi_user else "single-user"
    yield from judge_version(found.version, f"at {found.host}, {users}", level, question.account)


def judge_version(version: str, where: str, level: str, account: str = "") -> Iterator[Finding]:
    """Judge the version of a back end.

    Args:
        version: As it reports it.
        where: Its address, and whether it is multi-user, as text.
        level: The Pod Security level of the namespace of the runs; empty if unknown.
        account: The account that runs name; empty if they name none.
    """
    number = re.match(r"v?(\d+)\.(\d+)(\.\d+)?", version)
    if not number:
        yield unknown(
            f"Kubeflow Pipelines responds {where}, but does not report its version",
            fix="check that it is 2.5 or later, and for Pod Security restricted 2.16 or later",
        )
        return
    said = f"Kubeflow Pipelines {number[0]} {where}"
    known = int(number[1]), int(number[2])
    if known < _OLDEST:
        yield Finding(
            f"{said}: too old, because run parameters cannot name a Secret",
            fix="upgrade Kubeflow Pipelines to 2.5 or later",
        )
    elif known < _USER_ID and level == "restricted":
        yield Finding(
            f"{said}: it ignores a step's user id, so Pod Security restricted rejects its pod",
            fix="set PIPELINE_RUN_AS_USER of the API server, or upgrade to 2.16 or later",
        )
    elif known < _USER_ID:
        yield warning(
            f"{said}: it ignores a step's user id, so steps run as the image's user",
            "for Pod Security restricted, upgrade to 2.16 or later",
        )
    else:
        yield ok(said)
    if account not in ("", STANDALONE, MULTI_USER) and known >= _ACCOUNTS:
        yield warning(
            f"{said}: it rejects service account {account} unless an administrator allows it",
            ALLOW_ACCOUNT,
        )


def check_own_store(values: RunParameters) -> list[Finding]:
    """Write, read, create and delete small objects where runs will write, from this machine.

    The parameter is the address inside the cluster, so that of this machine's environment precedes.

    Raises:
        StepError: The place cannot hold the output of runs.
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
        raise  # it does answer
    except StoreUnavailableError as error:
        # An address inside the cluster is not reachable from here.
        found = [Finding.of(it, Status.UNKNOWN) for it in error.problems]
        fix = "if only pods can reach it, preflight checks it in a run"
        return [replace(it, fix=it.fix or fix) for it in found]
