"""Checks the Kubeflow Pipelines back end: whether it answers, and what its version lacks."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kfp_tfjob.checks.finding import Finding, ok, unknown, warning
from kfp_tfjob.cluster.manifests import MULTI_USER, STANDALONE
from kfp_tfjob.pipelines.kubeflow.connection import Connection
from kfp_tfjob.pipelines.kubeflow.refusals import ALLOW_ACCOUNT

_SECONDS = 2
_OLDEST = (2, 5)  # Secret names as run parameters
_USER_ID = (2, 16)  # the user id of a task
_ACCOUNTS = (2, 18)  # checks the account of a run


def check(connection: Connection, level: str, account: str = "") -> Iterator[Finding]:
    """Connect, and judge the version.

    Args:
        connection: Where the back end is.
        level: The Pod Security level of the namespace of the runs; empty if unknown.
        account: The account that runs name; empty if they name none.

    Raises:
        StepError: It cannot be reached.
    """
    found = connection.open(_SECONDS)
    users = "multi-user" if found.multi_user else "single-user"
    yield from _judged(found.version, f"at {found.host}, {users}", level, account)


def _judged(version: str, where: str, level: str, account: str = "") -> Iterator[Finding]:
    number = re.match(r"v?(\d+)\.(\d+)(\.\d+)?", version)
    if not number:
        yield unknown(
            f"Kubeflow Pipelines answers {where}, but does not report its version",
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
            f"{said}: it ignores the user id of a step, so Pod Security restricted refuses its pod",
            fix="set PIPELINE_RUN_AS_USER of the API server, or upgrade to 2.16 or later",
        )
    elif known < _USER_ID:
        yield warning(
            f"{said}: it ignores the user id of a step, so steps run as the user of the image",
            "for Pod Security restricted, upgrade to 2.16 or later",
        )
    else:
        yield ok(said)
    if account not in ("", STANDALONE, MULTI_USER) and known >= _ACCOUNTS:
        yield warning(
            f"{said}: it refuses service account {account} unless an administrator allows it",
            ALLOW_ACCOUNT,
        )
