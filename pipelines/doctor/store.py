"""Checks the store with the credentials of this machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from uuid import uuid4

from kfp_tfjob.pipelines.doctor.finding import Finding, State, failures, ok, warn
from kfp_tfjob.pipelines.kubeflow.records import endpoint_of
from kfp_tfjob.storage.errors import StoreUnavailableError
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.place import check_place
from kfp_tfjob.storage.retry import Patience
from kfp_tfjob.storage.store import Store

_PATIENCE = Patience(seconds=3, silence=3)


def check(values: Mapping[str, Any]) -> Iterator[Finding]:
    """Write, read, create and delete small objects where runs will write.

    The parameter is the address inside the cluster, so that of this machine's environment precedes.

    Args:
        values: The run parameters.

    Raises:
        StepError: The place cannot hold the output of runs.
    """
    if not values["output_uri"]:
        yield warn(
            "the store was not checked",
            "name the place of the output with --output s3://BUCKET/PREFIX, and --endpoint URL for"
            " a store other than AWS",
        )
        return
    root = Layout.parse(values["output_uri"]).root
    store = Store(endpoint_of(values), values["storage_region"], patience=_PATIENCE)
    try:
        warnings = check_place(store, root / f".doctor-{uuid4().hex[:8]}", root)
    except StoreUnavailableError as error:
        # An address inside the cluster is not reachable from here.
        yield from failures(
            error.problems, State.WARN, "if only pods can reach it, preflight checks it in a run"
        )
        return
    for warning in warnings:
        yield warn(warning, "do not publish one model from two runs at a time")
    if not warnings:
        yield ok(f"{root} can be written, read and deleted; of several creates, one wins")
