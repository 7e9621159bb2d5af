"""Sends large objects in parallel parts, resumes broken uploads, and reads objects in ranges.

One connection rarely fills a network, and a single request of many GB starts over when it breaks.
Each part is sent with its own checksum, and the whole with the combined one. Called by `store.py`
for every object above the size of one part.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from dataclasses import dataclass

from botocore.exceptions import BotoCoreError, ClientError

from kfp_tfjob.common.errors import DataError, ObjectExistsError, Problem, StoreUnavailableError

from .address import S3Address
from .body import Body, FileChangedError
from .checksum import CHUNK, Checksum, of_all_bytes
from .s3_errors import code_of
from .s3_session import S3Session

log = logging.getLogger(__name__)

PART = 16 << 20  # bytes; larger files are sent in parts; S3 requires at least 5 MiB
_MOST_PARTS = 9000  # S3 allows 10,000; parts of a file over 140 GiB become larger than PART


def part_length(size: int) -> int:
    """Return the part size in bytes for an object of `size` bytes; the last part may be smaller."""
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
    """A part that the store has confirmed."""

    etag: str
    checksum: Checksum


class PartsUpload:
    """The upload of one object in parts.

    Args:
        session: The session with the store.
        file: The file to send.
        address: The destination.
        earlier: An upload to the same destination that an outage ended. If the file has not
            changed, the parts that the store has are not sent again.
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
            keep: If the store does not respond, keep the stored parts for a later upload.

        Raises:
            FileChangedError: The file changed while it was sent; no object was created.
        """
        if "UploadId" not in self._at:
            self._begin()
        try:
            parts = self._send_parts()
            if self._file.changed():
                raise FileChangedError(self._file.path)
            checksum = Checksum()
            for part in parts:
                checksum.append(part.checksum)
            self._complete(parts, checksum)
        except BaseException as error:
            if not (keep and isinstance(error, StoreUnavailableError)):
                self.abort()
            raise
        return checksum

    def abort(self) -> None:
        """Discard the stored parts; an error is only logged.

        The caller is about to raise the error that ended the upload, which matters more.
        """
        upload_id = self._at.pop("UploadId", "")
        self._parts.clear()
        if not upload_id:
            return
        try:
            self._session.client.abort_multipart_upload(**self._at, UploadId=upload_id)
        except (BotoCoreError, ClientError) as error:
            # An upload that the store has already discarded is no loss.
            if code_of(error) != "NoSuchUpload":
                log.warning("parts of an unfinished upload remain at %s: %s", self._address, error)

    def _begin(self) -> None:
        upload = self._session.call(
            f"write {self._address}",
            self._address,
            lambda: self._session.client.create_multipart_upload(
                **self._at,
                **self._checked({"ChecksumAlgorithm": "CRC64NVME"}),
                **self._session.settings.parameters,
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
        # Each part has the session's time limit. After an error, the others would be sent in vain.
        ended, _ = wait(futures, return_when=FIRST_EXCEPTION)
        self._stopped.set()
        for future in futures:
            future.cancel()
        wait(futures)  # running parts still read the file, which the caller closes
        for future in ended:  # raises the first error; stopped parts raise others
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

    def _complete(self, parts: list[_Part], checksum: Checksum) -> None:
        numbered = [
            {"PartNumber": number, "ETag": part.etag}
            | self._checked({"ChecksumCRC64NVME": part.checksum.base64})
            for number, part in enumerate(parts, 1)
        ]
        full_checksum = self._checked({"ChecksumCRC64NVME": checksum.base64})

        def attempt() -> None:
            try:
                self._session.client.complete_multipart_upload(
                    **self._at, MultipartUpload={"Parts": numbered}, **full_checksum
                )
            except ClientError as error:
                # If the reply to a successful completion was lost, the next finds no upload.
                if code_of(error) != "NoSuchUpload" or not self._is_stored(checksum):
                    raise

        self._session.call(f"complete {self._address}", self._address, attempt)

    def _checked(self, parameters: dict[str, str]) -> dict[str, str]:
        """Return the parameters, but an empty dict for a store that ignores CRC64NVME."""
        return {} if self._session.ignores_checksums else parameters

    def _is_stored(self, sent: Checksum) -> bool:
        """Return whether the object has the bytes that were sent."""
        bucket, key = self._address.bucket, self._address.key
        try:
            head = self._session.client.head_object(Bucket=bucket, Key=key, ChecksumMode="ENABLED")
            size, stored = head["ContentLength"], of_all_bytes(head)
            if size == self._file.size and not stored:
                stored = read_ranges(self._session, self._address, size, head["ETag"]).base64
        except ClientError:
            return False  # the caller then raises its own error, which says more
        return (size, stored) == (self._file.size, sent.base64)


def read_ranges(
    session: S3Session,
    address: S3Address,
    size: int,
    etag: str = "",
    sink: Callable[[bytes, int], object] = lambda _data, _offset: None,
) -> Checksum:
    """Read an object, in parallel ranges if it is larger than two parts.

    Args:
        session: The session with the store.
        address: The object.
        size: Its size in bytes.
        etag: The entity tag that all ranges must have; required for an object read in ranges.
        sink: Called with the bytes and their offset, from several threads.

    Returns:
        The checksum of the bytes.

    Raises:
        DataError: The object has another size, or changed while it was read.
    """
    checksum = Checksum()
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
            checksum.append(future.result())
    finally:
        for future in futures:
            future.cancel()
        wait(futures)  # a running range still writes to the sink, which the caller closes
    return checksum


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
                    fix="for a published version, use kfp-tfjob models rollback; otherwise,"
                    " delete this object and start a new run",
                    name="checksum-mismatch",
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
                fix="wait until nothing writes to it, then start a new run",
                name="changed-while-read",
            )
        ) from None
