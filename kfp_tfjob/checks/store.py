"""Checks that a folder in a store can hold the output of runs.

Which run publishes a model is decided by creating an object that must not exist yet. A store that
ignores this condition would let two runs publish the same version. Called by preflight, `doctor`,
and a launcher without preflight.
"""

from __future__ import annotations

import uuid

from kfp_tfjob.common.errors import ConfigurationError, ObjectExistsError, Problem
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.races import CREATORS, most_winners
from kfp_tfjob.storage.store import Store

from .finding import Finding, Status, ok


def check_store(store: Store, prefix: S3Address, root: S3Address) -> list[Finding]:
    """Write, read, create and delete small objects below `prefix`; messages name `root`.

    A store that ignores the condition of a create is rejected. A store that lets two simultaneous
    creates succeed is usable by one run at a time, so this is a warning.

    Raises:
        ConfigurationError: The store or the credentials do not allow one of these.
        StoreUnavailableError: The store does not respond.
    """
    probed = store.probe(prefix, read=True)
    if probed.undeletable:
        raise ConfigurationError(probed.undeletable)
    server = f"; the Server header is {probed.server!r}" if probed.server else ""
    if not _creates_once(store, prefix):
        raise ConfigurationError(
            Problem(
                f"{root}'s store does not support conditional creates",
                received=f"a second PUT of one object with If-None-Match: * succeeded{server}",
                expected="412 Precondition Failed, because this response decides which run is"
                " published",
                fix="update the store, or set another one in output_uri and storage_endpoint",
                name="no-conditional-create",
            )
        )
    usable = f"{root} can be written, read and deleted"
    winners = most_winners(store, prefix)
    if winners < 2:
        return [ok(f"{usable}, and supports conditional creates")]
    lost_race = Finding(
        f"{root}'s store lets several simultaneous creates of one object succeed, so two runs that"
        " publish a model at once may both report success, or write into the same version, which"
        " then does not match its manifest",
        received=f"{winners} of {CREATORS} creates with If-None-Match: * succeeded{server}",
        expected="one, and 412 Precondition Failed for the others",
        fix="let only one run at a time publish a model, or set another store in output_uri and"
        " storage_endpoint",
        status=Status.WARNING,
    )
    return [ok(usable), lost_race]


def _creates_once(store: Store, prefix: S3Address) -> bool:
    """Return whether a store rejects the create of an existing object, which is then deleted."""
    address = prefix / f".probe-{uuid.uuid4().hex[:8]}"
    store.create(address, b"first")
    try:
        store.create(address, b"second")
    except ObjectExistsError:
        return True
    finally:
        store.delete(address)
    return False
