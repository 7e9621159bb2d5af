"""Sends large objects in parallel parts, resumes broken uploads, and reads objects in ranges."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from dataclasses import dataclass

from botocore.exceptions import BotoCoreError, ClientError

from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.body import Body, FileChangedError
from kfp_tfjob.storage.checksum import CHUNK, Checksum, of_all_bytes
from kfp_tfjob.storage.errors import DataError, ObjectExistsError, Problem, StoreUnavailableError
from kfp_tfjob.storage.s3_errors import code_of
from kfp_tfjob.storage.s3_session import S3Session

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
        state: Equal for two files with the same content.
        path: Its name in errors.
        changed: Tells whether the file changed since it was opened.
    """

    fd: int
    size: int
    state: object
    path: object
    changed: Callable[[], bool]


@dataclass(frozen=True)
class _Part:
    """A part that the store has."""

    etag: str
    checksum: Checksum


class PartsUpload:
    """The upload of one object in parts.

    Args:
        session: The session with the store.
        file: The file to send.
        address: The destination.
        earlier: An upload to the same destination that an outage ended. If the file is still the
            same, the store does not have to receive its parts again.
    """

    def __init__(
        self,
        session: S3Session,
        file: OpenFile,
        address: S3Address,
        earlier: PartsUpload | None = None,
    ) -> None:
        self._session, self._file, self._address = session, file, address
        self._at = {"Bucket": address.bucket, "Key": address.key}
        self._parts: dict[int, _Part] = {}
        self._stopped = threading.Event()
        if earlier and earlier._file.state == file.state:
            self._at, self._parts = earlier._at, earlier._parts
            if self._parts:
                log.info("the upload of %s resumes: %d parts are stored", address, len(self._parts))
        elif earlier:
            earlier.abort()

    def send(self, keep: bool = False) -> Checksum:
        """Send the file and return the checksum of all its bytes.

        Args:
            keep: Keep the stored parts if the store does not respond, for a later upload.

        Raises:
            FileChangedError: The file changed while it was sent; no object was created.
        """
        if "UploadId" not in self._at:
            self._begin()
        try:
            parts = self._send_parts()
            if self._file.changed():
                raise FileChangedError(self._file.path)
            whole = Checksum()
            for part in parts:
                whole.append(part.checksum)
            self._complete(parts, whole)
        except BaseException as error:
            if not (keep and isinstance(error, StoreUnavailableError)):
                self.abort()
            raise
        return whole

    def abort(self) -> None:
        """Discard the stored parts; an error is only logged."""
        upload_id = self._at.pop("UploadId", "")
        self._parts.clear()
        if not upload_id:
            return
        try:
            self._session.client.abort_multipart_upload(**self._at, UploadId=upload_id)
        except (BotoCoreError, ClientError) as error:
            if code_of(error) != "NoSuchUpload":
                log.warning("parts of an unfinished upload remain at %s: %s", self._address, error)

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

    def _send_parts(self) -> list[_Part]:
        length = part_length(self._file.size)
        futures: list[Future[_Part]] = [
            self._session.lanes.submit(
                self._send_part, number, offset, min(length, self._file.size - offset)
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

    def _send_part(self, number: int, offset: int, size: int) -> _Part:
        if number in self._parts:
            return self._parts[number]
        if self._stopped.is_set() or self._file.changed():
            raise FileChangedError(self._file.path)
        reply, digests = self._session.put(
            f"write part {number} of {self._address}",
            self._address,
            Body(self._file.fd, size, offset, self._file.path),
            {"UploadId": self._at["UploadId"], "PartNumber": number},
        )
        self._parts[number] = _Part(reply.etag, digests.crc)
        return self._parts[number]

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
        return {} if self._session.ignores_checksums else parameters

    def _is_there(self, whole: Checksum) -> bool:
        """Return whether the object has the bytes that were sent."""
        bucket, key = self._address.bucket, self._address.key
        try:
            head = self._session.client.head_object(Bucket=bucket, Key=key, ChecksumMode="ENABLED")
            size, kept = head["ContentLength"], of_all_bytes(head)
            if size == self._file.size and not kept:
                kept = read_ranges(self._session, self._address, size, head["ETag"]).base64
        except ClientError:
            return False
        return (size, kept) == (self._file.size, whole.base64)


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
