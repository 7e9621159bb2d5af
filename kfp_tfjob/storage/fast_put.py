"""The hot path: sends PUT over keep-alive connections, signed here and streamed from the file.

boto3 spends 1 to 2 ms of CPU on a request; this module spends a tenth of that. boto3 still does
everything else: credentials, endpoint, addressing, and all other requests. It also sends the PUT
over a route that only boto3 can handle, for example through a proxy. Called by `s3_session.py`.
"""

from __future__ import annotations

import logging
import ssl
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import quote, urlsplit
from xml.etree import ElementTree

from botocore.exceptions import ClientError, HTTPClientError
from botocore.httpsession import where
from botocore.utils import get_environ_proxies
from urllib3.util.wait import wait_for_read

from kfp_tfjob.common.errors import StepError

from .address import S3Address
from .body import Body
from .s3_errors import REDIRECTS
from .signing import UNSIGNED, sign

log = logging.getLogger(__name__)

# boto3's parameters and their headers; the headers of `put` are signed here.
_HEADERS = {
    "ChecksumCRC64NVME": "x-amz-checksum-crc64nvme",
    "ContentMD5": "content-md5",
    "ContentType": "content-type",
    "IfNoneMatch": "if-none-match",
    "ServerSideEncryption": "x-amz-server-side-encryption",
    "SSEKMSKeyId": "x-amz-server-side-encryption-aws-kms-key-id",
}
_IDLE_SECONDS = 20  # servers keep an unused connection longer
# The bucket is at another address, which boto3 can find.
_ELSEWHERE = REDIRECTS | {"AuthorizationHeaderMalformed"}


@dataclass(frozen=True)
class Reply:
    """The reply to a PUT; the names of its headers are lower-case."""

    status: int
    headers: Mapping[str, str]
    body: bytes = b""

    @property
    def etag(self) -> str:
        """The entity tag, with the quotes from the store."""
        return self.headers.get("etag", "")


@dataclass(frozen=True)
class _Route:
    """The address of the objects of a bucket."""

    secure: bool
    host: str  # with the port if it is not the default
    prefix: str


class FastPut:
    """Sends objects and parts to a store.

    Args:
        client: The boto3 client of the store.
        ca_bundle: File with the certificates to trust; empty for the default ones.
        headers: Further headers of every request; the client's own requests have them already.
    """

    def __init__(
        self, client: Any, ca_bundle: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        self._client, self._ca = client, ca_bundle or where()
        self._headers = headers or {}
        self._context: ssl.SSLContext | None = None
        self._routes: dict[str, _Route | None] = {}
        self._idle: dict[_Route, list[tuple[float, HTTPConnection]]] = {}

    def put(self, address: S3Address, body: Body, parameters: Mapping[str, str | int]) -> Reply:
        """Send an object, or one part of it, and return the store's reply.

        Args:
            address: The destination.
            body: The body to send.
            parameters: As for put_object of boto3, or with UploadId as for upload_part.

        Raises:
            ClientError: The store rejected the body.
            HTTPClientError: The connection failed.
            FileChangedError: The file became shorter.
        """
        if address.bucket not in self._routes:
            self._routes[address.bucket] = self._find_route(address.bucket)
        if route := self._routes[address.bucket]:
            try:
                return self._send_directly(route, address, body, parameters)
            except ClientError as error:
                if error.response["Error"]["Code"] not in _ELSEWHERE:
                    raise
                log.info("%s is now reached through boto3: %s", address.bucket, error)
                self._routes[address.bucket] = None
        call = self._client.upload_part if "UploadId" in parameters else self._client.put_object
        try:
            response = call(Bucket=address.bucket, Key=address.key, Body=body.file(), **parameters)
        except HTTPClientError as error:
            cause = error.kwargs.get("error")
            if isinstance(cause, StepError):  # botocore took an error of the file for the network's
                raise cause from error
            raise
        metadata = response["ResponseMetadata"]
        return Reply(metadata["HTTPStatusCode"], metadata["HTTPHeaders"])

    def _find_route(self, bucket: str) -> _Route | None:
        """Return the bucket's route, taken from a URL of boto3; None if only boto3 can reach it."""
        url = urlsplit(
            self._client.generate_presigned_url("put_object", {"Bucket": bucket, "Key": "k"})
        )
        # boto3 signs URLs for AWS's global host, which redirects requests outside us-east-1.
        regional = urlsplit(self._client.meta.endpoint_url).netloc
        host = url.netloc.replace("s3.amazonaws.com", regional)
        if url.scheme in get_environ_proxies(f"{url.scheme}://{host}") or bucket.endswith("--x-s3"):
            return None
        return _Route(url.scheme == "https", host, url.path.removesuffix("k"))

    def _send_directly(
        self, route: _Route, address: S3Address, body: Body, parameters: Mapping[str, str | int]
    ) -> Reply:
        """Send an object or a part without boto3, but with the errors that boto3 would raise."""
        path = route.prefix + quote(address.key, safe="/~")
        query = ""
        if "UploadId" in parameters:
            upload = quote(str(parameters["UploadId"]), safe="~")
            query = f"partNumber={parameters['PartNumber']}&uploadId={upload}"
        headers = {_HEADERS[name]: str(parameters[name]) for name in parameters if name in _HEADERS}
        headers |= {"host": route.host, "x-amz-content-sha256": UNSIGNED, **self._headers}
        signed = sign("PUT", path, query, headers, *self._identity())
        signed["content-length"] = str(body.size)
        try:
            reply = self._exchange(route, f"{path}?{query}" if query else path, signed, body)
        except (OSError, HTTPException) as error:
            raise HTTPClientError(error=error, request=None, response=None) from error
        if reply.status >= 300 or b"<Error" in reply.body:
            raise _client_error(reply)
        return reply

    def _exchange(
        self, route: _Route, target: str, headers: Mapping[str, str], body: Body
    ) -> Reply:
        connection = self._connect(route)
        try:
            early = True
            # A server that rejects a body early sends its reply and hangs up.
            with suppress(BrokenPipeError, ConnectionResetError):
                connection.request("PUT", target, body.chunks(), headers)
                early = False
            response = connection.getresponse()
            lowered = {name.lower(): content for name, content in response.getheaders()}
            reply = Reply(response.status, lowered, response.read())
        except BaseException:
            connection.close()
            raise
        # After an early reply, the server may take the rest of the body for the next request.
        if early or response.will_close or response.status >= 300:
            connection.close()
        else:
            self._idle[route].append((time.monotonic(), connection))
        return reply

    def _identity(self) -> tuple[Any, str, float]:
        keys = self._client._get_credentials().get_frozen_credentials()
        return keys, self._client.meta.region_name, time.time()

    def _connect(self, route: _Route) -> HTTPConnection:
        idle = self._idle.setdefault(route, [])
        while idle:
            try:
                used, connection = idle.pop()
            except IndexError:  # another thread took the last connection
                break
            # A connection on which something can be read was closed by the server.
            if time.monotonic() - used < _IDLE_SECONDS and not wait_for_read(connection.sock, 0):
                return connection
            connection.close()
        config = self._client.meta.config
        if route.secure:
            self._context = self._context or ssl.create_default_context(cafile=self._ca)
            connection = HTTPSConnection(
                route.host, timeout=config.connect_timeout, context=self._context
            )
        else:
            connection = HTTPConnection(route.host, timeout=config.connect_timeout)
        connection.connect()
        connection.sock.settimeout(config.read_timeout)
        return connection


def _client_error(reply: Reply) -> ClientError:
    """Return the error that boto3 would raise for a reply with an error."""
    code, message = str(reply.status), ""
    try:
        tree = ElementTree.fromstring(reply.body)
        elements = {node.tag.rpartition("}")[2]: node.text or "" for node in tree.iter()}
        code, message = elements.get("Code", code), elements.get("Message", message)
    except ElementTree.ParseError:
        # Not S3's XML but, for example, a proxy's page, whose beginning says what it is.
        message = reply.body[:200].decode(errors="replace")
    return ClientError(
        {
            "Error": {"Code": code, "Message": message},
            "ResponseMetadata": {
                # An error in a reply with status 200 is an internal error of the store.
                "HTTPStatusCode": 500 if reply.status < 300 else reply.status,
                "HTTPHeaders": dict(reply.headers),
            },
        },
        "PutObject",
    )
