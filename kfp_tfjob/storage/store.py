"""A client for an S3 store: checksummed writes, verified reads, conditional creates, retries.

Every write carries its CRC64NVME in a header, so a store that checks it rejects a damaged body.
Trailers are never used: some stores keep them inside the object. Opened by `step.py` for each step,
and by the sidecar, the server and the commands.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import closing
from copy import copy
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from botocore.exceptions import ClientError
from botocore.utils import is_valid_endpoint_url, is_valid_ipv6_endpoint_url

from kfp_tfjob.common import files
from kfp_tfjob.common.errors import (
    ConfigurationError,
    DataError,
    ObjectExistsError,
    ObjectNotFoundError,
    Problem,
    StepError,
)
from kfp_tfjob.common.names import below

from .address import S3Address
from .body import Body, FileChangedError, open_file
from .checksum import crc64nvme, of_all_bytes
from .credentials import SecretVolume
from .documents import LONGEST
from .manifest import Manifest, ManifestObject
from .parts import PART, OpenFile, PartsUpload, read_ranges
from .probe import Probed, probe
from .retry import Patience
from .s3_errors import WORDLESS, code_of, is_proxy_page
from .s3_session import S3Session, setting

__all__ = ["PART", "FileChangedError", "Listed", "Store", "check_endpoint"]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Listed:
    """An object in a listing: its address, size in bytes, entity tag, and when it was written."""

    address: S3Address
    size: int
    etag: str
    modified: datetime


class Store:
    """One S3 endpoint.

    Args:
        endpoint: URL; if empty, the Secret or else the environment sets it; the default is AWS.
        region: Region; if empty, set in the same way; the default is `us-east-1`.
        secret: The mounted Secret; None for the volume that the environment names.
        patience: How long a call is retried while the store is unreachable.
    """

    def __init__(
        self,
        endpoint: str = "",
        region: str = "",
        secret: SecretVolume | None = None,
        patience: Patience | None = None,
    ) -> None:
        secret = secret or SecretVolume.from_environment()
        self.endpoint = endpoint or setting("AWS_ENDPOINT_URL", secret)
        self.region = region or setting("AWS_REGION", secret, "AWS_DEFAULT_REGION") or "us-east-1"
        check_endpoint(self.endpoint)
        self.patience = patience or Patience()
        self.session = S3Session(self.endpoint, self.region, secret, self.patience)
        self._client = self.session.client
        check_endpoint(self._client.meta.endpoint_url)  # AWS_ENDPOINT_URL_S3, a profile
        self._probed: Probed | None = None

    def with_patience(self, seconds: float) -> Store:
        """Return the same store, with the same connections, that retries calls for `seconds`."""
        store = copy(self)
        store.patience = replace(self.patience, seconds=seconds)
        store.session = copy(self.session)
        store.session.patience = store.patience
        return store

    def probe(self, prefix: S3Address, read: bool = False) -> Probed:
        """Test once whether the store verifies checksums and the credentials may write.

        Args:
            prefix: Where to write a test object; it is deleted again.
            read: Also test whether the credentials may read.

        Raises:
            ConfigurationError: Writing or reading is not allowed there.
        """
        if self._probed is None or read:
            self._probed = probe(self.session, prefix, read)
            log.info("%s", self._probed)
        return self._probed

    # -- reading --------------------------------------------------------------------------------

    def read(self, address: S3Address, limit: int = LONGEST) -> bytes:
        """Return a whole small object.

        Args:
            address: The object.
            limit: The most bytes it may have.

        Raises:
            ObjectNotFoundError: There is no such object.
            DataError: The object is larger.
        """

        def attempt() -> bytes | None:
            reply = self._get(address)
            with closing(reply["Body"]) as body:
                if reply.get("ContentLength", 0) > limit:
                    return None
                data = body.read(limit + 1)  # a chunked reply lacks its length
                return data if len(data) <= limit else None

        data = self._call(f"read {address}", address, attempt)
        if data is None:
            raise DataError(
                Problem(
                    f"{address} is too large",
                    received=f"more than {limit:,} bytes",
                    expected=f"at most {limit:,} bytes",
                    fix="find out who wrote it, because kfp-tfjob never writes that much there",
                )
            )
        return data

    def read_range(self, address: S3Address, start: int = 0, end: int | None = None) -> bytes:
        """Return an object's bytes from `start` up to `end`; without `end`, up to the object's end.

        The caller verifies them, because the store's checksum covers only whole objects.

        Raises:
            ObjectNotFoundError: There is no such object.
        """
        if end is not None and end <= start:
            return b""
        headers = {} if not start and end is None else {"Range": _range(start, end)}

        def attempt() -> bytes:
            reply = self._get(address, **headers)
            with closing(reply["Body"]) as body:
                data = body.read()
            if headers and reply["ResponseMetadata"]["HTTPStatusCode"] != 206:
                return data[start:end]  # the store ignores Range
            return data

        return self._call(f"read {address}", address, attempt)

    def open(self, address: S3Address, offset: int = 0, etag: str = "") -> Any:
        """Return the body of an object as a stream, which the caller closes.

        If the stream breaks, the caller opens it again, because only the caller knows how much of
        it was used.

        Args:
            address: The object.
            offset: The first byte to read; it must be inside the object.
            etag: The entity tag that the object must still have; empty for any.

        Raises:
            ObjectNotFoundError: There is no such object.
            DataError: The object has another entity tag, so it has changed.
        """
        extra = {"IfMatch": f'"{etag}"'} if etag else {}
        if offset:
            extra["Range"] = f"bytes={offset}-"
        try:
            reply = self._call(f"open {address}", address, lambda: self._get(address, **extra))
        except ObjectExistsError:  # the reply to a condition that fails
            reply = None
        if reply is None or (etag and reply["ETag"].strip('"') != etag):
            raise DataError(
                Problem(
                    f"{address} changed while it was being read",
                    received="a different tag" if reply is None else reply["ETag"].strip('"'),
                    expected=f"the entity tag {etag}",
                    fix="wait until nothing writes to it, then start a new run",
                    name="changed-while-read",
                )
            )
        if offset and reply["ResponseMetadata"]["HTTPStatusCode"] != 206:
            raise StepError(
                Problem(
                    f"the store ignores Range and sends {address} from the start",
                    received=f"HTTP {reply['ResponseMetadata']['HTTPStatusCode']}",
                    expected="206 Partial Content",
                    fix="update the store or the proxy in front of it, or set another one in"
                    " storage_endpoint",
                )
            )
        return reply["Body"]

    def fetch(self, address: S3Address, folder: Path, expected: ManifestObject) -> None:
        """Download an object to its key below `folder`; it appears only if its checksum is right.

        Args:
            address: The object.
            folder: The local folder.
            expected: The object's entry in the manifest.

        Raises:
            DataError: The bytes differ from the manifest, or the key leads out of the folder.
        """
        path = below(folder, expected.key)
        path.parent.mkdir(parents=True, exist_ok=True)
        with files.atomic_write(path) as partial:
            if expected.size > 2 * PART:
                head = self.head(address)
                size, etag = head["ContentLength"], head["ETag"]
            else:  # one request reads all of it, and fails if the size differs
                size, etag = expected.size, ""
            if size == expected.size:
                with open(partial, "wb", buffering=0) as file:
                    checksum = read_ranges(
                        self.session,
                        address,
                        expected.size,
                        etag,
                        lambda data, offset: _write_all(file.fileno(), data, offset),
                    ).base64
            else:
                checksum = "not computed"
            expected.check(address, size, checksum)

    def entry(self, address: S3Address, key: str) -> ManifestObject:
        """Return the manifest entry of an object under `key`.

        The checksum comes from the store if it keeps one; otherwise the bytes are read.

        Raises:
            ObjectNotFoundError: There is no such object.
        """
        head = self._call(
            f"check {address}",
            address,
            lambda: self._head(address, ChecksumMode="ENABLED"),
        )
        size, checksum = head["ContentLength"], of_all_bytes(head)
        checksum = checksum or read_ranges(self.session, address, size, head["ETag"]).base64
        return ManifestObject(key, size, checksum)

    def verify(self, address: S3Address, expected: ManifestObject) -> None:
        """Check that a stored object has the bytes of the manifest.

        Raises:
            DataError: The object is missing or differs.
        """
        stored = self.entry(address, expected.key)
        expected.check(address, stored.size, stored.crc64nvme)

    def read_manifest(self, address: S3Address) -> Manifest:
        """Return the manifest at an address.

        Raises:
            ObjectNotFoundError: There is no manifest, so the folder is not complete.
            DataError: It is not a manifest.
        """
        return Manifest.from_bytes(self.read(address), where=address)

    def list(self, prefix: S3Address) -> Iterator[Listed]:
        """Yield the objects below a prefix, sorted by key."""
        token: dict[str, str] = {}
        key = f"{prefix.key}/" if prefix.key else ""
        while True:
            page = self._call(
                f"list {prefix}",
                prefix,
                lambda token=token: self._client.list_objects_v2(
                    Bucket=prefix.bucket, Prefix=key, **token
                ),
            )
            for entry in page.get("Contents", []):
                address = S3Address(prefix.bucket, entry["Key"])
                etag = entry["ETag"].strip('"')
                yield Listed(address, entry["Size"], etag, entry["LastModified"])
            if not page.get("IsTruncated"):
                return
            token = {"ContinuationToken": page["NextContinuationToken"]}

    def numbers(self, prefix: S3Address) -> list[int]:
        """Return the sorted numbers that follow a prefix: `<prefix>/12.json`, `<prefix>/7/...`.

        Counters of the project are append-only objects; the highest number decides.
        """
        start = len(prefix.key) + 1 if prefix.key else 0
        numbers = set()
        for listed in self.list(prefix):
            name = listed.address.key[start:].partition("/")[0].removesuffix(".json")
            if name.isdecimal():
                numbers.add(int(name))
        return sorted(numbers)

    def folders(self, prefix: S3Address) -> list[str]:
        """Return the sorted names of the folders directly below a prefix."""
        key = f"{prefix.key}/"

        def attempt() -> list[str]:
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=prefix.bucket, Prefix=key, Delimiter="/"
            )
            prefixes = [
                common["Prefix"] for page in pages for common in page.get("CommonPrefixes", [])
            ]
            return sorted(name[len(key) : -1] for name in prefixes)

        return self._call(f"list {prefix}", prefix, attempt)

    def head(self, address: S3Address) -> dict[str, Any]:
        """Return the reply to a HEAD request.

        Raises:
            ObjectNotFoundError: There is no such object.
        """
        return self._call(
            f"check {address}",
            address,
            lambda: self._head(address),
        )

    def has(self, address: S3Address) -> bool:
        """Return whether an object exists, even if the store does not list it yet."""
        try:
            self.head(address)
        except ObjectNotFoundError:
            return False
        return True

    # -- writing --------------------------------------------------------------------------------

    def write(self, address: S3Address, data: bytes, content_type: str = "") -> str:
        """Write a small object and return its base64 CRC64NVME."""
        return self._put(address, Body(data, len(data)), {}, content_type)

    def create(self, address: S3Address, data: bytes, content_type: str = "") -> str:
        """Write a small object unless it exists; every object that decides something uses this.

        Raises:
            ObjectExistsError: Another writer was first. An existing object with the same bytes is
                no error, because the reply to an earlier try may have been lost.
        """
        try:
            body = Body(data, len(data))
            return self._put(address, body, {"IfNoneMatch": "*"}, content_type)
        except ObjectExistsError:
            if self.read(address) == data:
                return crc64nvme(data)
            raise

    def send(
        self,
        path: Path | str,
        address: S3Address,
        key: str,
        appending: bool = False,
        unfinished: dict[str, PartsUpload] | None = None,
    ) -> ManifestObject:
        """Send a file and return its manifest entry under `key`.

        Args:
            path: The file.
            address: The destination.
            key: The key of the entry.
            appending: Whether the file may grow meanwhile, such as a log; its current bytes are
                sent.
            unfinished: Uploads in parts that an outage ended, by key; the next call with the same
                dict continues them.

        Raises:
            FileChangedError: The file changed while it was sent, or is missing; do not use the
                stored object.
            FileUnreadableError: The file cannot be read.
        """
        fd = open_file(path)
        try:
            before = os.fstat(fd)

            def changed() -> bool:
                now = os.fstat(fd)
                if appending:
                    return now.st_size < before.st_size
                return _state(now) != _state(before)

            if before.st_size > PART:
                file = OpenFile(fd, before.st_size, _state(before), path, changed)
                checksum = self._send_parts(file, address, key, unfinished)
            else:
                body = Body(fd, before.st_size, 0, path)
                checksum = self._put(address, body, {})
                if changed():
                    raise FileChangedError(path)
        finally:
            os.close(fd)
        return ManifestObject(key, before.st_size, checksum)

    def delete(self, address: S3Address) -> None:
        """Delete an object; a missing object is no error."""
        self._call(
            f"delete {address}",
            address,
            lambda: self._client.delete_object(Bucket=address.bucket, Key=address.key),
        )

    def make_bucket(self, bucket: str) -> None:
        """Create a bucket; an existing bucket is no error."""
        address = S3Address(bucket)

        def attempt() -> None:
            try:
                self._client.create_bucket(Bucket=bucket)
            except ClientError as error:
                if code_of(error) not in ("BucketAlreadyOwnedByYou", "BucketAlreadyExists"):
                    raise

        self._call(f"create the bucket {bucket}", address, attempt)

    # -- inside ---------------------------------------------------------------------------------

    def _get(self, address: S3Address, **extra: str) -> dict[str, Any]:
        return self._client.get_object(Bucket=address.bucket, Key=address.key, **extra)

    def _head(self, address: S3Address, **extra: str) -> dict[str, Any]:
        location = {"Bucket": address.bucket, "Key": address.key, **extra}
        try:
            return self._client.head_object(**location)
        except ClientError as error:
            if code_of(error) not in WORDLESS and not is_proxy_page(error):
                raise
        # A reply to HEAD lacks a body, so only GET's refusal says whether it is transient, and
        # whether it is the store's.
        self._get(address)["Body"].close()
        return self._client.head_object(**location)

    def _put(
        self, address: S3Address, body: Body, condition: dict[str, str], content_type: str = ""
    ) -> str:
        extra = condition | ({"ContentType": content_type} if content_type else {})
        parameters = {**self.session.settings.parameters, **extra}
        return self.session.put(f"write {address}", address, body, parameters)[1].crc.base64

    def _send_parts(
        self,
        file: OpenFile,
        address: S3Address,
        key: str,
        unfinished: dict[str, PartsUpload] | None,
    ) -> str:
        """Send a large file in parts and return its checksum in Base64.

        If an outage ends the upload, it stays in `unfinished`, and the next call with this key
        resumes it. Without the dict, it is aborted.
        """
        if unfinished is None:
            return PartsUpload(self.session, file, address).send().base64
        unfinished[key] = PartsUpload(self.session, file, address, unfinished.get(key))
        checksum = unfinished[key].send(keep=True).base64
        del unfinished[key]
        return checksum

    def _call(self, action: str, address: S3Address, call: Callable[[], Any]) -> Any:
        return self.session.call(action, address, call)


def _range(start: int, end: int | None) -> str:
    return f"bytes={start}-{'' if end is None else end - 1}"


def _state(file: os.stat_result) -> tuple[int, int, int, int]:
    return file.st_ino, file.st_size, file.st_mtime_ns, file.st_ctime_ns


def _write_all(fd: int, data: bytes, offset: int) -> None:
    """Write all bytes, or raise; a disk that fills up accepts a part of them without an error."""
    while data:
        count = os.pwrite(fd, data, offset)
        data, offset = data[count:], offset + count


def check_endpoint(endpoint: str) -> None:
    """Check that an endpoint is empty, which means AWS, or a URL without a password or a query.

    Raises:
        ConfigurationError: It is neither.
    """
    user, _, location = endpoint.rpartition("@")
    address, _, query = location.partition("?")
    if user or query:
        # It would appear wherever the endpoint is printed.
        raise ConfigurationError(
            Problem(
                f"storage_endpoint contains {'a user or a password' if user else 'a query'}",
                received=f"{'******@' if user else ''}{address}{'?******' if query else ''}",
                expected="http://HOST:PORT or https://HOST",
                fix=f"remove the part {'before the @' if user else 'from the ?'}, and put the keys"
                " into the Secret named by storage_secret or in the AWS environment",
                path="storage_endpoint",
                name="wrong-endpoint",
            )
        )
    if endpoint and not _is_url(endpoint):
        raise ConfigurationError(
            Problem(
                "storage_endpoint is not a URL",
                received=repr(endpoint),
                expected="http://HOST:PORT or https://HOST",
                fix="correct storage_endpoint, or leave it empty for AWS",
                path="storage_endpoint",
                name="wrong-endpoint",
            )
        )


def _is_url(endpoint: str) -> bool:
    try:
        url = urlsplit(endpoint)
        valid = is_valid_endpoint_url(endpoint) or is_valid_ipv6_endpoint_url(endpoint)
        return url.scheme in ("http", "https") and bool(valid) and url.port != 0
    except ValueError:  # a port that is not a number, or an unclosed bracket
        return False
