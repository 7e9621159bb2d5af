"""Tests a store with a few requests before anything depends on it.

Stores that claim to be S3 differ: some ignore checksums, some do not allow deleting. What they do
with one small object decides how every later write is checked. Called when a step or the uploader
first uses a store, so that a wrong address or right fails there and not after hours of training.
"""

from __future__ import annotations

import hashlib
import logging
import time
import uuid
from dataclasses import dataclass

from botocore.exceptions import BotoCoreError, ClientError

from kfp_tfjob.common.errors import Problem, StepError, StoreUnavailableError

from .address import S3Address
from .body import Body
from .s3_errors import MISMATCH, RENEWABLE, code_of, server_of, transient, without_room
from .s3_session import S3Session

log = logging.getLogger(__name__)

_CONTENT = b"Does this store check what it is sent? This object is deleted at once.\n"
_MD5 = hashlib.md5(_CONTENT, usedforsecurity=False).hexdigest()
_WRONG = "AAAAAAAAAAA="  # well-formed, but the CRC64NVME of other bytes


@dataclass(frozen=True)
class Probed:
    """The result of the test.

    Attributes:
        latency: The time of a small request, in seconds.
        undeletable: Why the credentials may not delete, so that pruned checkpoints remain; None if
            they may.
        server: The Server header, which often is the store's name and version; may be empty.
    """

    latency: float
    undeletable: Problem | None
    server: str

    def __str__(self) -> str:
        """Return one line for the log."""
        return f"the store is writable and responds in {self.latency * 1000:.0f} ms"


def probe(session: S3Session, prefix: S3Address, read: bool = False) -> Probed:
    """Write an object with a wrong checksum, then with the correct one, and delete it.

    Args:
        session: The session with the store; it keeps the result for every later PUT.
        prefix: Where to write.
        read: Also read the object back.

    Raises:
        ConfigurationError: Writing or reading is not allowed there, or there is no such bucket.
        NoRoomError: The store answers but rejects writes.
        StoreUnavailableError: The store does not respond.
    """
    address = prefix / f".probe-{uuid.uuid4().hex[:8]}"
    where = f"write below {prefix}"
    body = Body(_CONTENT, len(_CONTENT))
    parameters = session.settings.parameters

    def rejects_wrong_checksum() -> bool:
        try:
            session.fast_put.put(address, body, {**parameters, "ChecksumCRC64NVME": _WRONG})
        except ClientError as error:
            if (
                error.response["ResponseMetadata"]["HTTPStatusCode"] != 400
                or code_of(error) in RENEWABLE
                or (transient(error) and code_of(error) not in MISMATCH)
            ):
                raise
            return True
        return False

    try:
        session.ignores_checksums = not session.call(where, prefix, rejects_wrong_checksum)
        began = time.monotonic()
        reply, _ = session.put(where, address, body, parameters)
        latency = time.monotonic() - began
    except StoreUnavailableError as error:
        raise _explain_rejected_write(session, prefix, error) from error.__cause__
    location = {"Bucket": address.bucket, "Key": address.key}
    session.tags_are_md5 = reply.etag.strip('"') == _MD5
    if read:
        session.call(f"read below {prefix}", address, lambda: session.client.get_object(**location))
    problem = None
    try:
        session.call(f"delete {address}", address, lambda: session.client.delete_object(**location))
    except StepError as error:
        # Runs work without this right; they only leave more behind.
        problem = Problem(
            f"objects cannot be deleted below {prefix}",
            received=error.received,
            expected="credentials that may read, write, list and delete there",
            fix="allow s3:DeleteObject; until then, old checkpoints stay in the store",
        )
        log.warning("%s", problem)
    return Probed(latency, problem, reply.headers.get("server", ""))


def _explain_rejected_write(
    session: S3Session, prefix: S3Address, error: StoreUnavailableError
) -> StoreUnavailableError:
    """Return the error of a failed write, with another remedy if a listing still succeeds."""
    if isinstance(error.__cause__, ClientError):
        return error
    try:
        reply = session.client.list_objects_v2(Bucket=prefix.bucket, MaxKeys=1)
    except (BotoCoreError, ClientError):
        return error  # the store answers nothing at all, as the error says
    return without_room(error, server_of(reply), "; a listing succeeded")
