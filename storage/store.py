"""A store that speaks S3: checksummed writes, verified reads, conditional creates, patience.

Every write carries its CRC64NVME in a header, so that a store that checks refuses a body that was
damaged on the way. Trailers are never used: some stores keep them inside the object.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import boto3
import botocore.session
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionError,
    HTTPClientError,
    NoCredentialsError,
    PartialCredentialsError,
)

from storage.address import S3Address
from storage.checksum import CHUNK, Checksum, crc64nvme
from storage.credentials import SecretVolume
from storage.errors import (
    ConfigurationError,
    DataError,
    ObjectExistsError,
    ObjectNotFoundError,
    Problem,
    StepError,
)
from storage.manifest import Manifest, ManifestObject
from storage.retry import Patience

log = logging.getLogger(__name__)

PART = 16 << 20  # bytes; from here on a file is sent in parts, at least the 5 MiB S3 demands
_MOST_PARTS = 9000  # S3 takes 10,000
_MISSING = {"NoSuchKey", "404", "NotFound"}
_TAKEN = {"PreconditionFailed", "ConditionalRequestConflict", "412"}
_DENIED = {
    "AccessDenied": "the credentials may not do this",
    "403": "the credentials may not do this",
    "InvalidAccessKeyId": "the store does not know this access key",
    "SignatureDoesNotMatch": "the secret key does not belong to the access key",
    "ExpiredToken": "the session token has expired",
    "InvalidToken": "the session token is not valid",
}


@dataclass(frozen=True)
class Listed:
    """An object as a listing shows it: its address, its size in bytes and its entity tag."""

    address: S3Address
    size: int
    etag: str


class Store:
    """One S3 endpoint.

    Args:
        endpoint: URL; empty means what the Secret, then the environment, then AWS says.
        region: Region; empty as above, and `us-east-1` where nobody says.
        secret: The mounted Secret; None for the volume named by the environment.
        patience: How long a call is repeated while the store is away.
    """

    def __init__(
        self,
        endpoint: str = "",
        region: str = "",
        secret: SecretVolume | None = None,
        patience: Patience | None = None,
    ) -> None:
        secret = secret or SecretVolume.from_environment()
        self.endpoint = (
            endpoint or secret.get("AWS_ENDPOINT_URL") or os.environ.get("AWS_ENDPOINT_URL", "")
        )
        self.region = (
            region
            or secret.get("AWS_REGION")
            or os.environ.get("AWS_REGION")
            or os.environ.get("AWS_DEFAULT_REGION")
            or "us-east-1"
        )
        check_endpoint(self.endpoint)
        self.patience = patience or Patience()
        session = botocore.session.get_session()
        secret.install(session)
        self._client = boto3.Session(botocore_session=session).client(
            "s3",
            endpoint_url=self.endpoint or None,
            region_name=self.region,
            config=Config(
                connect_timeout=5,
                read_timeout=60,
                max_pool_connections=32,
                retries={"total_max_attempts": 1},  # ours know a deadline
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
                s3={"addressing_style": "path" if self.endpoint else "auto"},
            ),
        )

    # -- reading --------------------------------------------------------------------------------

    def read(self, address: S3Address) -> bytes:
        """Return a whole small object.

        Raises:
            ObjectNotFoundError: There is no such object.
        """
        return self._call(f"read {address}", address, lambda: self._get(address)["Body"].read())

    def open(self, address: S3Address, offset: int = 0, etag: str = "") -> Any:
        """Return the body of an object as a stream; the caller closes it.

        A stream that breaks is the caller's to open again: only the caller knows what was used.

        Args:
            address: The object.
            offset: The first byte that is wanted; it must lie inside the object.
            etag: The entity tag the object must still have; empty for whatever is there.

        Raises:
            ObjectNotFoundError: There is no such object.
            DataError: The object has another entity tag: it was written meanwhile.
        """
        extra = {"IfMatch": f'"{etag}"'} if etag else {}
        if offset:
            extra["Range"] = f"bytes={offset}-"
        try:
            reply = self._call(f"open {address}", address, lambda: self._get(address, **extra))
        except ObjectExistsError:  # how a condition that does not hold is answered
            reply = None
        if reply is None or (etag and reply["ETag"].strip('"') != etag):
            raise DataError(
                Problem(
                    f"{address} changed while it was read",
                    received="another entity tag" if reply is None else reply["ETag"].strip('"'),
                    expected=f"the entity tag {etag}",
                    fix="start the run again once nobody writes to it any more",
                )
            )
        if offset and reply["ResponseMetadata"]["HTTPStatusCode"] != 206:
            raise StepError(Problem(f"the store ignores Range and sends {address} from its start"))
        return reply["Body"]

    def fetch(self, address: S3Address, path: Path, expected: ManifestObject) -> None:
        """Bring an object to `path`, which appears only once its checksum is right.

        Raises:
            DataError: The bytes in the store are not those of the manifest.
        """
        partial = path.with_name(f".{path.name}.part")
        path.parent.mkdir(parents=True, exist_ok=True)

        def attempt() -> tuple[int, str]:
            checksum, size = Checksum(), 0
            with open(partial, "wb") as file:
                for chunk in self._get(address)["Body"].iter_chunks(CHUNK):
                    checksum.update(chunk)
                    size += len(chunk)
                    file.write(chunk)
            return size, checksum.base64

        try:
            found = self._call(f"fetch {address}", address, attempt)
            _compare(address, found, expected)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)

    def prove(self, address: S3Address, expected: ManifestObject) -> None:
        """Prove that an object in the store has the bytes of the manifest.

        The store's own checksum is taken where it keeps one; otherwise the bytes are read back.

        Raises:
            DataError: The object is missing or differs.
        """

        def attempt() -> tuple[int, str]:
            head = self._client.head_object(
                Bucket=address.bucket, Key=address.key, ChecksumMode="ENABLED"
            )
            size, stored = head["ContentLength"], head.get("ChecksumCRC64NVME")
            if size == expected.size and not stored:
                checksum = Checksum()
                for chunk in self._get(address)["Body"].iter_chunks(CHUNK):
                    checksum.update(chunk)
                stored = checksum.base64
            return size, stored or "not computed"

        _compare(address, self._call(f"prove {address}", address, attempt), expected)

    def read_manifest(self, address: S3Address) -> Manifest:
        """Return the manifest at an address.

        Raises:
            ObjectNotFoundError: There is none: what it would stand for is not complete.
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
            for item in page.get("Contents", []):
                address = S3Address(prefix.bucket, item["Key"])
                yield Listed(address, item["Size"], item["ETag"].strip('"'))
            if not page.get("IsTruncated"):
                return
            token = {"ContinuationToken": page["NextContinuationToken"]}

    def numbers(self, prefix: S3Address) -> list[int]:
        """Return, sorted, the numbers that follow a prefix: `<prefix>/12.json`, `<prefix>/7/...`.

        Counters of the project are append-only objects; the highest number decides.
        """
        start = len(prefix.key) + 1 if prefix.key else 0
        found = set()
        for item in self.list(prefix):
            head = item.address.key[start:].partition("/")[0].removesuffix(".json")
            if head.isdecimal():
                found.add(int(head))
        return sorted(found)

    def head(self, address: S3Address) -> dict[str, Any]:
        """Return the reply to a HEAD request.

        Raises:
            ObjectNotFoundError: There is no such object.
        """
        return self._call(
            f"look at {address}",
            address,
            lambda: self._client.head_object(Bucket=address.bucket, Key=address.key),
        )

    # -- writing --------------------------------------------------------------------------------

    def write(self, address: S3Address, data: bytes, content_type: str = "") -> str:
        """Write a small object and return its base64 CRC64NVME."""
        return self._put(address, data, {}, content_type)

    def create(self, address: S3Address, data: bytes, content_type: str = "") -> str:
        """Write a small object unless it exists: the way everything that decides is written.

        Raises:
            ObjectExistsError: Somebody else wrote it first. When the very same bytes are there,
                the write counts as ours: the reply to an earlier try was lost.
        """
        try:
            return self._put(address, data, {"IfNoneMatch": "*"}, content_type)
        except ObjectExistsError:
            if self.read(address) == data:
                return crc64nvme(data)
            raise

    def send(
        self, path: Path, address: S3Address, key: str, appending: bool = False
    ) -> ManifestObject:
        """Send a file and return its entry for a manifest, under `key`.

        Args:
            path: The file.
            address: Where to.
            key: The key of the entry.
            appending: The file only ever grows; it is sent as long as it is now.

        Raises:
            FileChangedError: The file was written to meanwhile; nothing was stored from it.
        """
        with open(path, "rb", buffering=0) as file:
            before = os.fstat(file.fileno())

            def changed() -> bool:
                now = os.fstat(file.fileno())
                if appending:
                    return now.st_size < before.st_size
                return (now.st_size, now.st_mtime_ns) != (before.st_size, before.st_mtime_ns)

            if before.st_size <= PART:
                data = os.pread(file.fileno(), before.st_size, 0)
                if len(data) != before.st_size or changed():
                    raise FileChangedError(path)
                checksum = self._put(address, data, {})
            else:
                checksum = self._send_parts(file.fileno(), before.st_size, address, changed, path)
        return ManifestObject(key, before.st_size, checksum)

    def delete(self, address: S3Address) -> None:
        """Delete an object; one that is not there is no error."""
        self._call(
            f"delete {address}",
            address,
            lambda: self._client.delete_object(Bucket=address.bucket, Key=address.key),
        )

    def make_bucket(self, bucket: str) -> None:
        """Make a bucket; one that is ours already is no error."""
        address = S3Address(bucket)

        def attempt() -> None:
            try:
                self._client.create_bucket(Bucket=bucket)
            except ClientError as error:
                if _code(error) not in ("BucketAlreadyOwnedByYou", "BucketAlreadyExists"):
                    raise

        self._call(f"make the bucket {bucket}", address, attempt)

    # -- inside ---------------------------------------------------------------------------------

    def _get(self, address: S3Address, **extra: str) -> dict[str, Any]:
        return self._client.get_object(Bucket=address.bucket, Key=address.key, **extra)

    def _put(
        self, address: S3Address, data: bytes, condition: dict[str, str], content_type: str = ""
    ) -> str:
        checksum = crc64nvme(data)
        extra = condition | ({"ContentType": content_type} if content_type else {})
        self._call(
            f"write {address}",
            address,
            lambda: self._client.put_object(
                Bucket=address.bucket,
                Key=address.key,
                Body=data,
                ChecksumCRC64NVME=checksum,
                **extra,
            ),
        )
        return checksum

    def _send_parts(self, fd: int, size: int, address: S3Address, changed: Any, path: Path) -> str:
        at = {"Bucket": address.bucket, "Key": address.key}
        length = max(PART, -(-size // _MOST_PARTS // CHUNK) * CHUNK)
        upload = self._call(
            f"write {address}",
            address,
            lambda: self._client.create_multipart_upload(**at, ChecksumAlgorithm="CRC64NVME"),
        )
        at["UploadId"] = upload["UploadId"]
        whole, parts = Checksum(), []
        try:
            for number, offset in enumerate(range(0, size, length), 1):
                data = os.pread(fd, min(length, size - offset), offset)
                if len(data) != min(length, size - offset) or changed():
                    raise FileChangedError(path)
                whole.update(data)
                part = {"PartNumber": number, "ChecksumCRC64NVME": crc64nvme(data)}
                reply = self._call(
                    f"write part {number} of {address}",
                    address,
                    lambda data=data, part=part: self._client.upload_part(**at, **part, Body=data),
                )
                parts.append(part | {"ETag": reply["ETag"]})
            self._call(
                f"complete {address}",
                address,
                lambda: self._complete(at, parts, size, whole.base64),
            )
        except BaseException:
            self._abort(at)
            raise
        return whole.base64

    def _complete(self, at: dict[str, Any], parts: list[Any], size: int, checksum: str) -> None:
        try:
            self._client.complete_multipart_upload(
                **at, MultipartUpload={"Parts": parts}, ChecksumCRC64NVME=checksum
            )
        except ClientError as error:
            # The reply to a completion that worked may be lost; the second one finds no upload.
            if _code(error) != "NoSuchUpload":
                raise
            head = self._client.head_object(Bucket=at["Bucket"], Key=at["Key"])
            if head["ContentLength"] != size:
                raise

    def _abort(self, at: dict[str, Any]) -> None:
        try:
            self._client.abort_multipart_upload(**at)
        except (BotoCoreError, ClientError) as error:
            log.warning("parts of an unfinished upload stay in %s: %s", at["Bucket"], error)

    def _call(self, what: str, address: S3Address, call: Any) -> Any:
        try:
            return self.patience.run(what, call, transient)
        except ClientError as error:
            raise self._explain(error, what, address) from error
        except (NoCredentialsError, PartialCredentialsError) as error:
            raise ConfigurationError(
                Problem(
                    f"there are no credentials to {what}",
                    received=str(error),
                    expected="AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
                    fix="create the Secret named by storage_secret, or give the environment the"
                    " standard AWS credentials",
                )
            ) from error
        except BotoCoreError as error:
            raise ConfigurationError(Problem(f"cannot {what}", received=str(error))) from error

    def _explain(self, error: ClientError, what: str, address: S3Address) -> StepError:
        code = _code(error)
        received = f"{code}: {error.response['Error'].get('Message', '')}".rstrip(": .")
        if code in _TAKEN:
            return ObjectExistsError(Problem(f"cannot {what}: it exists already"))
        if code in _MISSING:
            return ObjectNotFoundError(Problem(f"cannot {what}: it is not there"))
        if code in ("NoSuchBucket", "InvalidBucketName"):
            return ConfigurationError(
                Problem(
                    f"cannot {what}: there is no bucket {address.bucket}",
                    received=received,
                    expected="a bucket that exists",
                    fix=f"make the bucket {address.bucket} at {self.endpoint or 'AWS'},"
                    " or name another one",
                )
            )
        if code in _DENIED:
            return ConfigurationError(
                Problem(
                    f"cannot {what}: {_DENIED[code]}",
                    received=received,
                    expected="credentials that may read, write, list and delete there",
                    fix="correct the Secret named by storage_secret or the AWS environment",
                )
            )
        return StepError(Problem(f"cannot {what}", received=received))


def check_endpoint(endpoint: str) -> None:
    """Check that an endpoint is empty, which means AWS, or a URL.

    Raises:
        ConfigurationError: It is neither.
    """
    url = urlsplit(endpoint)
    if endpoint and (url.scheme not in ("http", "https") or not url.hostname):
        raise ConfigurationError(
            Problem(
                "storage_endpoint is not a URL",
                received=repr(endpoint),
                expected="http://HOST:PORT or https://HOST",
                fix="correct storage_endpoint, or leave it empty for AWS",
            )
        )


class FileChangedError(StepError):
    """A file was written to while it was sent."""

    def __init__(self, path: Path) -> None:
        super().__init__(Problem(f"{path} changed while it was sent"))


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def transient(error: Exception) -> bool:
    """Tell whether an error of boto3 may pass by itself."""
    if isinstance(error, ClientError):
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        passing = {
            "SlowDown",
            "RequestTimeout",
            "BadDigest",
            "InternalError",
            "RequestTimeTooSkewed",
        }
        return status >= 500 and status != 501 or status == 429 or _code(error) in passing
    # ConnectionError of botocore covers endpoint, connect timeout and closed connection;
    # a body that breaks off raises an error of urllib3 wrapped as HTTPClientError or OSError.
    name = type(error).__name__
    return isinstance(error, ConnectionError | HTTPClientError) or name in (
        "ResponseStreamingError",
        "IncompleteReadError",
        "ProtocolError",
        "IncompleteRead",
    )


def _compare(address: S3Address, found: tuple[int, str], expected: ManifestObject) -> None:
    if found != (expected.size, expected.crc64nvme):
        raise DataError(
            Problem(
                f"{address} is not what its manifest says",
                received=f"{found[0]} bytes, CRC64NVME {found[1]}",
                expected=f"{expected.size} bytes, CRC64NVME {expected.crc64nvme}",
                fix="do not use it; the run that wrote the manifest has to write it again",
            )
        )
