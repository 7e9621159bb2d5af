"""Large objects: sent in parts at the same time, taken up where they broke off, read in ranges."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.body import Body, FileChangedError
from kfp_tfjob.storage.checksum import CHUNK, Checksum
from kfp_tfjob.storage.errors import DataError, ObjectExistsError, Problem
from kfp_tfjob.storage.failures import code_of
from kfp_tfjob.storage.link import Checking, Link

log = logging.getLogger(__name__)

PART = 16 << 20  # bytes; from here on a file is sent in parts, at least the 5 MiB S3 demands
_MOST_PARTS = 9000  # S3 takes 10,000


def part_length(size: int) -> int:
    """Return the bytes of each part but the last of an object of `size` bytes."""
    return max(PART, -(-size // _MOST_PARTS // CHUNK) * CHUNK)


@dataclass(frozen=True)
class OpenFile:
    """A file that is being sent.

    Attributes:
        fd: Its descriptor.
        size: Bytes that are sent.
        path: What it is called in an error.
        changed: Tells whether it was written to since it was opened.
    """

    fd: int
    size: int
    path: object
    changed: Callable[[], bool]


@dataclass
class Resumable:
    """An upload that may outlive this process.

    Attributes:
        upload_id: Of an unfinished upload of the very same file; empty to start one.
        note: Called with the id of an upload when it has begun, with an empty text when it ended.
    """

    upload_id: str = ""
    note: Callable[[str], None] = lambda _: None


@dataclass(frozen=True)
class _Part:
    """A part that the store has."""

    etag: str
    checksum: Checksum


class PartsUpload:
    """One object on its way in parts.

    Args:
        link: The way to the store.
        file: What is sent.
        address: Where to.
        resumable: Where its id is kept; None when it ends with this process.
    """

    def __init__(
        self, link: Link, file: OpenFile, address: S3Address, resumable: Resumable | None = None
    ) -> None:
        self._link, self._file, self._address = link, file, address
        self._resumable = resumable
        self._at = {"Bucket": address.bucket, "Key": address.key}
        self._stopped = threading.Event()

    def send(self) -> Checksum:
        """Send the file and return the checksum of the whole.

        Raises:
            FileChangedError: The file was written to meanwhile; there is no object from it.
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
            # The store being away is no reason to send again what it has.
            if self._resumable is None or isinstance(error, FileChangedError):
                abort(self._link, self._address, self._at["UploadId"])
                self._note("")
            raise
        self._note("")
        return whole

    def _note(self, upload_id: str) -> None:
        if self._resumable:
            self._resumable.note(upload_id)

    def _begin(self) -> None:
        upload = self._link.call(
            f"write {self._address}",
            self._address,
            lambda: self._link.client.create_multipart_upload(
                **self._at,
                **self._checked({"ChecksumAlgorithm": "CRC64NVME"}),
                **self._link.options.parameters_for(self._address),
            ),
        )
        self._at["UploadId"] = upload["UploadId"]
        self._note(upload["UploadId"])

    def _resume(self) -> dict[int, dict[str, Any]] | None:
        """Return the parts that an earlier life of this upload has stored; None without one."""
        if not self._resumable or not self._resumable.upload_id:
            return None
        at = self._at | {"UploadId": self._resumable.upload_id}
        found: dict[int, dict[str, Any]] = {}
        marker = 0
        try:
            while True:
                page = self._link.call(
                    f"list the parts of {self._address}",
                    self._address,
                    lambda marker=marker: self._list(at, marker),
                )
                found |= {part["PartNumber"]: part for part in page.get("Parts", [])}
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
            return self._link.client.list_parts(**at, PartNumberMarker=marker)
        except ClientError as error:
            if code_of(error) == "NoSuchUpload":
                raise _UploadGoneError from error
            raise

    def _send_parts(self, there: dict[int, dict[str, Any]]) -> list[_Part]:
        length = part_length(self._file.size)
        futures: list[Future[_Part]] = [
            self._link.lanes.submit(
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
        for future in ended:  # the error that came first, before those of being stopped
            future.result()
        return [future.result() for future in futures]

    def _send_part(
        self, number: int, offset: int, size: int, there: dict[str, Any] | None
    ) -> _Part:
        if self._stopped.is_set() or self._file.changed():
            raise FileChangedError(self._file.path)
        body = Body(self._file.fd, size, offset, self._file.path, self._link.throttle)
        if there and there["Size"] == size:
            keeps = there.get("ChecksumCRC64NVME")
            found = self._link.wire.digests(body, md5=not keeps)
            etag = there["ETag"].strip('"')
            if found.crc.base64 == keeps or (not keeps and found.md5.hex() == etag):
                return _Part(there["ETag"], found.crc)
        reply, digests = self._link.put(
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
                self._link.client.complete_multipart_upload(
                    **self._at, MultipartUpload={"Parts": listed}, **of_all
                )
            except ClientError as error:
                # The reply to a completion that worked may be lost; the next finds no upload.
                if code_of(error) != "NoSuchUpload" or not self._is_there(whole):
                    raise

        self._link.call(f"complete {self._address}", self._address, attempt)

    def _checked(self, parameters: dict[str, str]) -> dict[str, str]:
        """Return the parameters, or nothing for a store that knows no CRC64NVME."""
        return {} if self._link.checking is Checking.IGNORES else parameters

    def _is_there(self, whole: Checksum) -> bool:
        """Tell whether the object has the bytes that were sent."""
        bucket, key = self._address.bucket, self._address.key
        try:
            head = self._link.client.head_object(Bucket=bucket, Key=key, ChecksumMode="ENABLED")
            size, kept = head["ContentLength"], head.get("ChecksumCRC64NVME")
            if size == self._file.size and not kept:
                kept = read_ranges(self._link, self._address, size, head["ETag"]).base64
        except ClientError:
            return False
        return (size, kept) == (self._file.size, whole.base64)


class _UploadGoneError(Exception):
    """The store does not know an upload any more."""


def abort(link: Link, address: S3Address, upload_id: str) -> None:
    """Throw away the parts of an upload; what the store answers is only logged."""
    try:
        link.client.abort_multipart_upload(
            Bucket=address.bucket, Key=address.key, UploadId=upload_id
        )
    except (BotoCoreError, ClientError) as error:
        if code_of(error) != "NoSuchUpload":
            log.warning("parts of an unfinished upload stay at %s: %s", address, error)


def unfinished(link: Link, prefix: S3Address) -> Iterator[tuple[S3Address, str]]:
    """Yield the uploads below a prefix that were begun and not ended: the address and the id."""
    markers: dict[str, str] = {}
    while True:
        page = link.call(
            f"list unfinished uploads below {prefix}",
            prefix,
            lambda markers=markers: link.client.list_multipart_uploads(
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
    link: Link,
    address: S3Address,
    size: int,
    etag: str = "",
    sink: Callable[[bytes, int], object] = lambda _data, _offset: None,
) -> Checksum:
    """Read an object, a large one in ranges at the same time.

    Args:
        link: The way to the store.
        address: The object.
        size: Its bytes.
        etag: The entity tag all ranges must have; needed for a large object.
        sink: Takes the bytes and where they begin; called from several threads.

    Returns:
        The checksum of the bytes.

    Raises:
        DataError: It is shorter or longer than it was said to be, or changed meanwhile.
    """
    whole = Checksum()
    if size <= 2 * PART:
        return _read_range(link, address, 0, size, {}, sink)
    futures = [
        link.lanes.submit(
            _read_range,
            link,
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
    link: Link,
    address: S3Address,
    offset: int,
    size: int,
    extra: dict[str, str],
    sink: Callable[[bytes, int], object],
) -> Checksum:
    def attempt() -> Checksum:
        checksum, position = Checksum(), offset
        reply = link.client.get_object(Bucket=address.bucket, Key=address.key, **extra)
        if reply["ContentLength"] != size:
            raise DataError(
                Problem(
                    f"{address} is not what its manifest says",
                    received=f"{reply['ContentLength']} bytes",
                    expected=f"{size} bytes",
                    fix="do not use it; the run that wrote the manifest has to write it again",
                )
            )
        for chunk in reply["Body"].iter_chunks(CHUNK):
            sink(chunk, position)
            checksum.update(chunk)
            position += len(chunk)
        return checksum

    try:
        return link.call(f"read {address}", address, attempt)
    except ObjectExistsError:  # how a condition that does not hold is answered
        raise DataError(
            Problem(
                f"{address} changed while it was read",
                received="another entity tag",
                expected=f"the entity tag {extra.get('IfMatch')}",
                fix="wait until nothing writes to it, then start the run again",
            )
        ) from None
