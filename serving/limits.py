"""What stands before kserve: the limit on the size of a request, and the count of requests."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, MutableMapping
from http import HTTPStatus
from typing import Any

from kfp_tfjob.serving.metrics import Metrics
from kfp_tfjob.serving.refusal import RefusedRequest, answer
from kfp_tfjob.storage.errors import Problem
from kfp_tfjob.storage.words import sized

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]
_CLOSED = 499  # the client left before the answer, as nginx counts it


class Limits:
    """An ASGI application around another one.

    A request that says that it is too large is answered before it is read. Of one that does not
    say its size, at most the limit is kept in memory.

    Args:
        app: The application.
        most: The largest body of a request, in bytes.
        metrics: Counts the requests for predictions.
    """

    def __init__(self, app: Application, most: int, metrics: Metrics) -> None:
        self._app, self._most, self._metrics = app, most, metrics

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status, size = time.perf_counter(), _CLOSED, 0
        refused = began_answer = False

        async def limited() -> Message:
            nonlocal size, refused
            message = await receive()
            size += len(message.get("body", b""))
            if size <= self._most:
                return message
            refused = True
            return {"type": "http.disconnect"}  # the application stops reading

        async def counted(message: Message) -> None:
            nonlocal status, began_answer
            if refused:
                return  # what the application makes of the disconnection
            if message["type"] == "http.response.start":
                status, began_answer = message["status"], True
            await send(message)

        declared = dict(scope["headers"]).get(b"content-length", b"0")
        try:
            if declared.isdigit() and int(declared) > self._most:
                size, refused = int(declared), True
            else:
                await self._app(scope, limited, counted)
        except Exception:
            if not refused:
                raise
        finally:
            if refused and not began_answer:
                status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
                await _send(send, status, answer(self._too_large(size, declared)))
            if protocol := _protocol(scope["path"]):
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


def _protocol(path: str) -> str:
    """Return the protocol of a request for predictions; empty for any other request."""
    if path.startswith("/v1/models/") and path.endswith(":predict"):
        return "v1"
    return "v2" if path.startswith("/v2/models/") and path.endswith("/infer") else ""


async def _send(send: Send, status: int, body: dict[str, Any]) -> None:
    data = json.dumps(body).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(data))]
    await send({"type": "http.response.start", "status": int(status), "headers": headers})
    await send({"type": "http.response.body", "body": data})
