"""Checks that a place in a store can hold the output of runs."""

from __future__ import annotations

import uuid

from kfp_tfjob.checks.finding import Finding, ok
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.errors import ConfigurationError, ObjectExistsError, Problem
from kfp_tfjob.storage.store import Store


def check_store(store: Store, prefix: S3Address, root: S3Address) -> list[Finding]:
    """Write, read, create and delete small objects below `prefix`; messages name `root`.

    Raises:
        ConfigurationError: The place cannot hold the output of runs.
        StoreUnavailableError: The store does not respond.
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
    if not _creates_once(store, prefix):
        raise ConfigurationError(
            Problem(
                f"{root}'s store does not support conditional creates",
                received="a second PUT of one object with If-None-Match: * succeeded",
                expected="412 Precondition Failed, because this response decides which run is"
                " published",
                fix="update the store, or set another one in output_uri and storage_endpoint",
            )
        )
    return [ok(f"{root} can be written, read and deleted, and supports conditional creates")]


def _creates_once(store: Store, prefix: S3Address) -> bool:
    """Return whether a store refuses to create an existing object; deletes the test object."""
    address = prefix / f".probe-{uuid.uuid4().hex[:8]}"
    store.create(address, b"first")
    try:
        store.create(address, b"second")
    except ObjectExistsError:
        return True
    finally:
        store.delete(address)
    return False
