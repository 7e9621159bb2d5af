"""Limits on the size of requests, before kserve and on their rows; and the count of requests."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, MutableMapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from kfp_tfjob.serving.refusal import RefusedRequest, answer
from kfp_tfjob.storage.errors import Problem
from kfp_tfjob.storage.formatting import sized

if TYPE_CHECKING:
    from kfp_tfjob.serving.metrics import Metrics

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]
MOST_ROWS = 1_000_000  # of one request: small rows take 45 times their JSON in memory
_CLOSED = 499  # the client left before the answer, as nginx counts it
# Bodies of open requests together, in largest requests: JSON takes ten times as much when parsed.
_OPEN = 8
_OTHER_OBJECTS = 10_000  # in a request, that are no rows: inputs and parameters in V2
# Seconds for the body of a request: without a byte of it, and in all.
STALLED, LONGEST = 30.0, 300.0
_BYTES_OF_OBJECT = 64  # tensors in binary have the byte of { or [ in one of 128


class Limits:
    """An ASGI application around another one.

    A request that says that it is too large is answered before it is read. At most the limit of one
    without a stated size is kept in memory. If the bodies of all open requests are too large
    together, a new one is answered with 503 and asked to come again.

    A body that stalls is answered with 408, or a few clients that hang would keep the others out.

    A compressed body is rejected, because it may be much larger than it seems.

    More objects and lists than any request needs are rejected while they arrive, because they take
    much more memory than their JSON.

    Args:
        app: The application.
        most: The largest body of a request, in bytes.
        metrics: Counts the requests for predictions.
    """

    def __init__(self, app: Application, most: int, metrics: Metrics) -> None:
        self._app, self._most, self._metrics = app, most, metrics
        self._open = 0  # bytes

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status, size, began_answer = time.perf_counter(), _CLOSED, 0, False
        refusal: RefusedRequest | None = None
        has_left, objects, has_all = False, 0, False

        async def limited() -> Message:
            nonlocal size, refusal, has_left, objects, has_all
            left = began + LONGEST - time.perf_counter()
            try:  # once the body is there, the application waits for the client to leave
                async with asyncio.timeout(None if has_all else min(STALLED, left)):
                    message = await receive()
            except TimeoutError:
                refusal = self._stalled(size)
                return {"type": "http.disconnect"}
            has_all |= not message.get("more_body")
            has_left |= message["type"] == "http.disconnect"
            came = len(message.get("body", b""))
            size, self._open = size + came, self._open + came
            objects += sum(map(message.get("body", b"").count, (b"{", b"[")))
            if size > self._most:
                refusal = self._too_large(size, declared)
            elif objects > max(MOST_ROWS + _OTHER_OBJECTS, self._most // _BYTES_OF_OBJECT):
                refusal = too_many_rows(objects)
            elif came and self._open > max(_OPEN * self._most, size):
                refusal = self._busy()
            if not refusal:
                return message
            return {"type": "http.disconnect"}  # the application stops reading

        async def counted(message: Message) -> None:
            nonlocal status, began_answer
            if refusal:
                return  # what the application makes of the disconnection
            if message["type"] == "http.response.start":
                status, began_answer = message["status"], True
            await send(message)

        headers = dict(scope["headers"])
        declared = headers.get(b"content-length", b"0")
        encoding = headers.get(b"content-encoding", b"").strip().lower()
        try:
            if encoding not in (b"", b"identity"):
                refusal = _compressed(encoding)
            elif declared.isdigit() and int(declared) > self._most:
                refusal = self._too_large(int(declared), declared)
            else:
                await self._app(scope, limited, counted)
        except Exception:  # also what the application makes of a client that left
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
        more = "" if declared.isdigit() and int(declared) else "more than "
        return RefusedRequest(
            Problem(
                "the request is too large",
                received=f"{more}{sized(size if not more else self._most)}",
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
                expected=f"at most {sized(_OPEN * self._most)}",
                fix="send the request again after Retry-After seconds, or add replicas",
            ),
            status=HTTPStatus.SERVICE_UNAVAILABLE,
        )


def protocol_of(path: str) -> str:
    """Return the protocol of a request for predictions; empty for any other request."""
    if path.startswith("/v1/models/") and path.endswith(":predict"):
        return "v1"
    return "v2" if path.startswith("/v2/models/") and path.endswith("/infer") else ""


def _compressed(encoding: bytes) -> RefusedRequest:
    return RefusedRequest(
        Problem(
            "the request's body is compressed",
            received=f"Content-Encoding: {encoding.decode('latin-1')}",
            expected="a body as it is",
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
        headers.append((b"connection", b"close"))  # the rest of the body may still come
    await send({"type": "http.response.start", "status": int(refusal.status), "headers": headers})
    await send({"type": "http.response.body", "body": data})


def refuse_many(rows: int) -> None:
    """Reject a request with too many rows."""
    if rows > MOST_ROWS:
        raise too_many_rows(rows)


def too_many_rows(rows: int) -> RefusedRequest:
    """Return the refusal of so many rows, or so many objects, which may be rows."""
    return RefusedRequest(
        Problem(
            "the request has too many rows",
            received=f"{rows:,} rows or objects",
            expected=f"at most {MOST_ROWS:,}",
            fix="send the rows in several requests",
        ),
        status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    )
