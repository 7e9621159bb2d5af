"""Limits on a request's bytes, time and rows, as an ASGI middleware before kserve.

kserve reads a whole body into memory and parses it, so one request could exhaust the memory. The
middleware also counts requests, because it sees even the ones that never reach kserve.
Installed by server.py; `check_row_count` is called by request_columns.py.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, MutableMapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from kfp_tfjob.common.errors import Problem
from kfp_tfjob.common.formatting import sized

from .refusal import RefusedRequest, answer

if TYPE_CHECKING:
    from .metrics import Metrics

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]
MOST_ROWS = 1_000_000  # in one request: small rows take 45 times their JSON in memory
_CLIENT_CLOSED = 499  # nginx's status for a client that left before the response
# The most bytes of all open bodies, in units of the largest body. Parsed JSON takes ten times as
# much memory.
_OPEN_REQUESTS = 8
_OTHER_OBJECTS = 10_000  # JSON objects in a request that are not rows: inputs and parameters in V2
# Seconds for a request's body: without a byte, and for the whole body.
STALLED, LONGEST = 30.0, 300.0
_BYTES_OF_OBJECT = 64  # per { or [ in a body; in binary tensors, 1 of 128 bytes is one by chance


class Limits:
    """An ASGI middleware that rejects requests which would exhaust the server.

    - A request whose Content-Length is too large is rejected before its body is read; a body
      without a stated size is read up to the limit.
    - If the bodies of all open requests are too large together, a new one is answered with 503 and
      Retry-After.
    - A body that stalls is answered with 408. Otherwise, a few hanging clients would keep out all
      other clients.
    - A compressed body is rejected, because its uncompressed size is unknown.
    - More objects and lists than any request needs are rejected while they arrive, because they
      take much more memory than their JSON.

    Args:
        app: The wrapped application.
        most: The largest body of a request, in bytes.
        metrics: Counts the prediction requests.
    """

    def __init__(self, app: Application, most: int, metrics: Metrics) -> None:
        self._app, self._most, self._metrics = app, most, metrics
        self._open = 0  # bytes

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status, size, began_answer = time.perf_counter(), _CLIENT_CLOSED, 0, False
        refusal: RefusedRequest | None = None
        has_left, objects, has_all = False, 0, False

        async def receive_limited() -> Message:
            nonlocal size, refusal, has_left, objects, has_all
            remaining = began + LONGEST - time.perf_counter()
            try:  # after the body, the application waits for the client's disconnect, without limit
                async with asyncio.timeout(None if has_all else min(STALLED, remaining)):
                    message = await receive()
            except TimeoutError:
                refusal = self._stalled(size)
                return {"type": "http.disconnect"}
            has_all |= not message.get("more_body")
            has_left |= message["type"] == "http.disconnect"
            received = len(message.get("body", b""))
            size, self._open = size + received, self._open + received
            objects += sum(map(message.get("body", b"").count, (b"{", b"[")))
            if size > self._most:
                refusal = self._too_large(size, declared)
            elif objects > max(MOST_ROWS + _OTHER_OBJECTS, self._most // _BYTES_OF_OBJECT):
                refusal = too_many_rows(objects)
            elif received and self._open > max(_OPEN_REQUESTS * self._most, size):
                refusal = self._busy()
            if not refusal:
                return message
            return {"type": "http.disconnect"}  # the application stops reading

        async def forward(message: Message) -> None:
            nonlocal status, began_answer
            if refusal:
                return  # the application's response to the simulated disconnect
            if message["type"] == "http.response.start":
                status, began_answer = message["status"], True
            await send(message)

        headers = dict(scope["headers"])
        declared = headers.get(b"content-length", b"0")
        encoding = headers.get(b"content-encoding", b"").strip().lower()
        try:
            if encoding not in (b"", b"identity"):
                refusal = _refuse_compressed(encoding)
            elif declared.isdigit() and int(declared) > self._most:
                refusal = self._too_large(int(declared), declared)
            else:
                await self._app(scope, receive_limited, forward)
        except Exception:  # expected if the client left or the request was rejected
            if not refusal and not has_left:
                status = HTTPStatus.INTERNAL_SERVER_ERROR
                raise
        finally:
            self._open -= size
            if refusal and not began_answer:
                status = refusal.status
                await _send(send, refusal)
            if protocol := protocol_of(scope["path"]):
                self._metrics.answered(protocol, int(status), time.perf_counter() - began)

    def _too_large(self, size: int, declared: bytes) -> RefusedRequest:
        qualifier = "" if declared.isdigit() and int(declared) else "more than "
        return RefusedRequest(
            Problem(
                "the request is too large",
                received=f"{qualifier}{sized(size if not qualifier else self._most)}",
                expected=f"at most {sized(self._most)}",
                fix="send the rows in several requests, or start the server with a larger"
                " --max-request-mb",
            ),
            status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        )

    def _stalled(self, size: int) -> RefusedRequest:
        return RefusedRequest(
            Problem(
                "the request's body did not arrive in time",
                received=f"{sized(size)}, then nothing more in time",
                expected=f"a byte at least every {STALLED:g} s, and the whole body within"
                f" {LONGEST:g} s",
                fix="send the request again, with fewer rows over a slow connection",
            ),
            status=HTTPStatus.REQUEST_TIMEOUT,
        )

    def _busy(self) -> RefusedRequest:
        return RefusedRequest(
            Problem(
                "the server is overloaded",
                received=f"{sized(self._open)} of open requests",
                expected=f"at most {sized(_OPEN_REQUESTS * self._most)}",
                fix="send the request again after Retry-After seconds, or add replicas",
            ),
            status=HTTPStatus.SERVICE_UNAVAILABLE,
        )


def protocol_of(path: str) -> str:
    """Return `v1` or `v2` for a prediction request's path; empty for any other path."""
    if path.startswith("/v1/models/") and path.endswith(":predict"):
        return "v1"
    return "v2" if path.startswith("/v2/models/") and path.endswith("/infer") else ""


def _refuse_compressed(encoding: bytes) -> RefusedRequest:
    return RefusedRequest(
        Problem(
            "the request's body is compressed",
            received=f"Content-Encoding: {encoding.decode('latin-1')}",
            expected="an uncompressed body",
            fix="send the body uncompressed and without the header Content-Encoding",
            path="Content-Encoding",
        ),
        status=HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
    )


async def _send(send: Send, refusal: RefusedRequest) -> None:
    data = json.dumps(answer(refusal)).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(data))]
    if refusal.status == HTTPStatus.SERVICE_UNAVAILABLE:
        headers.append((b"retry-after", b"1"))
    if refusal.status == HTTPStatus.REQUEST_TIMEOUT:
        headers.append((b"connection", b"close"))  # more of the body may still arrive
    await send({"type": "http.response.start", "status": int(refusal.status), "headers": headers})
    await send({"type": "http.response.body", "body": data})


def check_row_count(rows: int) -> None:
    """Reject a request with too many rows.

    Raises:
        RefusedRequest: There are more than MOST_ROWS.
    """
    if rows > MOST_ROWS:
        raise too_many_rows(rows)


def too_many_rows(rows: int) -> RefusedRequest:
    """Return the refusal of a request with this many rows, or objects that may be rows."""
    return RefusedRequest(
        Problem(
            "the request has too many rows",
            received=f"{rows:,} rows or objects",
            expected=f"at most {MOST_ROWS:,}",
            fix="send the rows in several requests",
        ),
        status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    )
