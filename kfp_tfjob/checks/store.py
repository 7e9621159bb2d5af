"""Checks that a place in a store can hold the output of runs."""

from __future__ import annotations

from kfp_tfjob.checks.finding import Finding, ok, warning
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.errors import ConfigurationError, Problem
from kfp_tfjob.storage.probe_creating import Creating, probe_creating
from kfp_tfjob.storage.store import Store


def check_store(store: Store, prefix: S3Address, root: S3Address) -> list[Finding]:
    """Write, read, create and delete small objects.

    Args:
        store: The store.
        prefix: Where to write.
        root: What messages name.

    Raises:
        ConfigurationError: The place cannot hold the output of runs.
        StoreUnavailableError: The store does not answer.
    """
    probed = store.probe(prefix, read=True)
    if not probed.deletes:
        raise ConfigurationError(
            Problem(
                f"objects cannot be deleted below {prefix}",
                expected="credentials that may read, write, list and delete there",
                fix="correct the Secret named by storage_secret or the AWS environment",
            )
        )
    creating = probe_creating(store, prefix)
    if creating is Creating.OVERWRITES:
        raise ConfigurationError(
            Problem(
                f"the store of {root} does not support conditional creates",
                received="a second PUT of one object with If-None-Match: * succeeded",
                expected="412 Precondition Failed: it decides which run is published",
                fix="update the store, or set a different one in output_uri and storage_endpoint",
            )
        )
    if creating is Creating.RACES:
        return [
            warning(
                f"the store of {root} lets simultaneous conditional creates of one object"
                " all succeed: two runs that publish the same model within milliseconds may both"
                " report that their version is the champion",
                "do not publish one model from two runs at a time",
            )
        ]
    return [ok(f"{root} can be written, read and deleted; of several creates, one wins")]
