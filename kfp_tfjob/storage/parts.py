"""Sends large objects in parallel parts, resumes broken uploads, and reads objects in ranges."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from dataclasses import dataclass
from typing import Any, NamedTuple

from botocore.exceptions import BotoCoreError, ClientError

from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.body import Body, FileChangedError
from kfp_tfjob.storage.checksum import CHUNK, Checksum
from kfp_tfjob.storage.errors import DataError, ObjectExistsError, Problem
from kfp_tfjob.storage.failures import code_of
from kfp_tfjob.storage.s3_session import Checking, S3Session

log = logging.getLogger(__name__)

PART = 16 << 20  # bytes; larger files are sent in parts; S3 requires at least 5 MiB
_MOST_PARTS = 9000  # S3 allows 10,000


def part_length(size: int) -> int:
    """Return the size of the parts of an object of `size` bytes; the last may be smaller."""
    return max(PART, -(-size // _MOST_PARTS // CHUNK) * CHUNK)


@dataclass(frozen=True)
class OpenFile:
    """A file that is being sent.

    Attributes:
        fd: Its descriptor.
        size: Bytes to send.
        path: Its name in errors.
        changed: Tells whether the file changed since it was opened.
    """

    fd: int
    size: int
    path: object
    changed: Callable[[], bool]


@dataclass
class Resumable:
    """An upload that may outlive this process.

    Attributes:
        upload_id: Id of an unfinished upload of the same file; empty to start one.
        note: Called with the id when an upload begins, and with an empty string when it ends.
    """

    upload_id: str = ""
    note: Callable[[str], None] = lambda _: None


@dataclass(frozen=True)
class _Part:
    """A part that the store has."""

    etag: str
    checksum: Checksum


class _Listed(NamedTuple):
    """A part of an unfinished upload, as the store lists it."""

    size: int
    etag: str
    checksum: str | None


class PartsUpload:
    """The upload of one object in parts.

    Args:
        session: The session with the store.
        file: The file to send.
        address: The destination.
        resumable: Keeps the id of the upload; None if it ends with this process.
    """

    def __init__(
        self,
        session: S3Session,
        file: OpenFile,
        address: S3Address,
        resumable: Resumable | None = None,
    ) -> None:
        self._session, self._file, self._address = session, file, address
        self._resumable = resumable
        self._at = {"Bucket": address.bucket, "Key": address.key}
        self._stopped = threading.Event()

    def send(self) -> Checksum:
        """Send the file and return the checksum of all its bytes.

        Raises:
            FileChangedError: The file changed while it was sent; no object was created.
        """
        there = self._resume()
        if there is None:
            self._begin()
        try:
            parts = self._send_parts(there or {})
            if self._file.changed():
                raise FileChangedError(self._file.path)
            whole = Checksum()
            for part in parts:
                whole.append(part.checksum)
            self._complete(parts, whole)
        except BaseException as error:
            # After an outage, the store need not receive the same parts again.
            if self._resumable is None or isinstance(error, FileChangedError):
                abort(self._session, self._address, self._at["UploadId"])
                self._note("")
            raise
        self._note("")
        return whole

    def _note(self, upload_id: str) -> None:
        if self._resumable:
            self._resumable.note(upload_id)

    def _begin(self) -> None:
        upload = self._session.call(
            f"write {self._address}",
            self._address,
            lambda: self._session.client.create_multipart_upload(
                **self._at,
                **self._checked({"ChecksumAlgorithm": "CRC64NVME"}),
                **self._session.options.parameters,
            ),
        )
        self._at["UploadId"] = upload["UploadId"]
        self._note(upload["UploadId"])

    def _resume(self) -> dict[int, _Listed] | None:
        """Return the stored parts of the unfinished upload; None if there is none."""
        if not self._resumable or not self._resumable.upload_id:
            return None
        at = self._at | {"UploadId": self._resumable.upload_id}
        found: dict[int, _Listed] = {}
        marker = 0
        try:
            while True:
                page = self._session.call(
                    f"list the parts of {self._address}",
                    self._address,
                    lambda marker=marker: self._list(at, marker),
                )
                for part in page.get("Parts", []):
                    checksum = part.get("ChecksumCRC64NVME")
                    found[part["PartNumber"]] = _Listed(part["Size"], part["ETag"], checksum)
                if not page.get("IsTruncated"):
                    break
                marker = page["NextPartNumberMarker"]
        except _UploadGoneError:
            return None
        log.info("the upload of %s resumes: %d parts are stored", self._address, len(found))
        self._at = at
        return found

    def _list(self, at: dict[str, str], marker: int) -> dict[str, Any]:
        try:
            return self._session.client.list_parts(**at, PartNumberMarker=marker)
        except ClientError as error:
            if code_of(error) == "NoSuchUpload":
                raise _UploadGoneError from error
            raise

    def _send_parts(self, there: dict[int, _Listed]) -> list[_Part]:
        length = part_length(self._file.size)
        futures: list[Future[_Part]] = [
            self._session.lanes.submit(
                self._send_part,
                number,
                offset,
                min(length, self._file.size - offset),
                there.get(number),
            )
            for number, offset in enumerate(range(0, self._file.size, length), 1)
        ]
        ended, _ = wait(futures, return_when=FIRST_EXCEPTION)
        self._stopped.set()
        for future in futures:
            future.cancel()
        wait(futures)
        for future in ended:  # raises the first error, not those of the stopped parts
            future.result()
        return [future.result() for future in futures]

    def _send_part(self, number: int, offset: int, size: int, there: _Listed | None) -> _Part:
        if self._stopped.is_set() or self._file.changed():
            raise FileChangedError(self._file.path)
        body = Body(self._file.fd, size, offset, self._file.path)
        if there and there.size == size:
            keeps = there.checksum
            found = self._session.fast_put.digests(body, md5=not keeps)
            etag = there.etag.strip('"')
            if found.crc.base64 == keeps or (not keeps and found.md5.hex() == etag):
                return _Part(there.etag, found.crc)
        reply, digests = self._session.put(
            f"write part {number} of {self._address}",
            self._address,
            body,
            {"UploadId": self._at["UploadId"], "PartNumber": number},
        )
        return _Part(reply.etag, digests.crc)

    def _complete(self, parts: list[_Part], whole: Checksum) -> None:
        listed = [
            {"PartNumber": number, "ETag": part.etag}
            | self._checked({"ChecksumCRC64NVME": part.checksum.base64})
            for number, part in enumerate(parts, 1)
        ]
        of_all = self._checked({"ChecksumCRC64NVME": whole.base64})

        def attempt() -> None:
            try:
                self._session.client.complete_multipart_upload(
                    **self._at, MultipartUpload={"Parts": listed}, **of_all
                )
            except ClientError as error:
                # If the reply to a successful completion was lost, the next finds no upload.
                if code_of(error) != "NoSuchUpload" or not self._is_there(whole):
                    raise

        self._session.call(f"complete {self._address}", self._address, attempt)

    def _checked(self, parameters: dict[str, str]) -> dict[str, str]:
        """Return the parameters; none for a store that ignores CRC64NVME."""
        return {} if self._session.checking is Checking.IGNORES else parameters

    def _is_there(self, whole: Checksum) -> bool:
        """Tell whether the object has the bytes that were sent."""
        bucket, key = self._address.bucket, self._address.key
        try:
            head = self._session.client.head_object(Bucket=bucket, Key=key, ChecksumMode="ENABLED")
            size, kept = head["ContentLength"], head.get("ChecksumCRC64NVME")
            if size == self._file.size and not kept:
                kept = read_ranges(self._session, self._address, size, head["ETag"]).base64
        except ClientError:
            return False
        return (size, kept) == (self._file.size, whole.base64)


class _UploadGoneError(Exception):
    """The store no longer knows an upload."""


def abort(session: S3Session, address: S3Address, upload_id: str) -> None:
    """Discard the parts of an upload; an error is only logged."""
    try:
        session.client.abort_multipart_upload(
            Bucket=address.bucket, Key=address.key, UploadId=upload_id
        )
    except (BotoCoreError, ClientError) as error:
        if code_of(error) != "NoSuchUpload":
            log.warning("parts of an unfinished upload remain at %s: %s", address, error)


def unfinished(session: S3Session, prefix: S3Address) -> Iterator[tuple[S3Address, str]]:
    """Yield the address and id of each unfinished upload below a prefix."""
    markers: dict[str, str] = {}
    while True:
        page = session.call(
            f"list unfinished uploads below {prefix}",
            prefix,
            lambda markers=markers: session.client.list_multipart_uploads(
                Bucket=prefix.bucket, Prefix=f"{prefix.key}/", **markers
            ),
        )
        for upload in page.get("Uploads", []):
            yield S3Address(prefix.bucket, upload["Key"]), upload["UploadId"]
        if not page.get("IsTruncated"):
            return
        markers = {
            "KeyMarker": page["NextKeyMarker"],
            "UploadIdMarker": page["NextUploadIdMarker"],
        }


def read_ranges(
    session: S3Session,
    address: S3Address,
    size: int,
    etag: str = "",
    sink: Callable[[bytes, int], object] = lambda _data, _offset: None,
) -> Checksum:
    """Read an object; a large one in parallel ranges.

    Args:
        session: The session with the store.
        address: The object.
        size: Its size in bytes.
        etag: The entity tag that all ranges must have; required for a large object.
        sink: Takes the bytes and their offset; called from several threads.

    Returns:
        The checksum of the bytes.

    Raises:
        DataError: The object has a different size, or changed during the read.
    """
    whole = Checksum()
    if size <= 2 * PART:
        return _read_range(session, address, 0, size, {}, sink)
    futures = [
        session.lanes.submit(
            _read_range,
            session,
            address,
            offset,
            min(PART, size - offset),
            {"Range": f"bytes={offset}-{min(offset + PART, size) - 1}", "IfMatch": etag},
            sink,
        )
        for offset in range(0, size, PART)
    ]
    try:
        for future in futures:
            whole.append(future.result())
    finally:
        for future in futures:
            future.cancel()
        wait(futures)
    return whole


def _read_range(
    session: S3Session,
    address: S3Address,
    offset: int,
    size: int,
    extra: dict[str, str],
    sink: Callable[[bytes, int], object],
) -> Checksum:
    def attempt() -> Checksum:
        checksum, position = Checksum(), offset
        reply = session.client.get_object(Bucket=address.bucket, Key=address.key, **extra)
        if reply["ContentLength"] != size:
            raise DataError(
                Problem(
                    f"{address} does not match its manifest",
                    received=f"{reply['ContentLength']} bytes",
                    expected=f"{size} bytes",
                    fix="do not use it; the run that wrote the manifest must write it again",
                )
            )
        for chunk in reply["Body"].iter_chunks(CHUNK):
            sink(chunk, position)
            checksum.update(chunk)
            position += len(chunk)
        return checksum

    try:
        return session.call(f"read {address}", address, attempt)
    except ObjectExistsError:  # the reply to a condition that fails
        raise DataError(
            Problem(
                f"{address} changed while it was being read",
                received="a different entity tag",
                expected=f"the entity tag {extra.get('IfMatch')}",
                fix="wait until nothing writes to it, then start the run again",
            )
        ) from None
