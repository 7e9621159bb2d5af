"""Checks the store with the credentials of this machine."""

from __future__ import annotations

from dataclasses import replace
from uuid import uuid4

from kfp_tfjob.checks.finding import Finding, Status, unknown
from kfp_tfjob.checks.store import check_store
from kfp_tfjob.options.pipeline import RunParameters
from kfp_tfjob.pipelines.kubeflow.records import endpoint_of
from kfp_tfjob.storage.errors import StoreUnavailableError
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.retry import Patience
from kfp_tfjob.storage.store import Store

_PATIENCE = Patience(seconds=3, silence=3)


def check(values: RunParameters) -> list[Finding]:
    """Write, read, create and delete small objects where runs will write.

    The parameter is the address inside the cluster, so that of this machine's environment precedes.

    Args:
        values: The run parameters.

    Raises:
        StepError: The place cannot hold the output of runs.
    """
    if not values["output_uri"]:
        fix = "pass the output's address with --output s3://BUCKET/PREFIX, and --endpoint URL"
        return [unknown("the store was not checked", fix=f"{fix} for a store other than AWS")]
    root = Layout.parse(values["output_uri"]).root
    store = Store(
        endpoint_of(values["storage_endpoint"]), values["storage_region"], patience=_PATIENCE
    )
    try:
        return check_store(store, root / f".doctor-{uuid4().hex[:8]}", root)
    except StoreUnavailableError as error:
        # An address inside the cluster is not reachable from here.
        found = [Finding.of(it, Status.UNKNOWN) for it in error.problems]
        fix = "if only pods can reach it, preflight checks it in a run"
        return [replace(it, fix=it.fix or fix) for it in found]
