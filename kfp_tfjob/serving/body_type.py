"""Sets a prediction request's Content-Type from its path and headers.

kserve and FastAPI parse the body by Content-Type. `curl -d` sends a form's Content-Type, and other
clients omit it, although a request has only one possible type: V1 is JSON, and so is V2, unless the
header of its binary extension gives the JSON's length before the tensors. Triton and TensorFlow
Serving ignore Content-Type, so requests that work there work here. Called by `server.py` and
`protocol.py`.
"""

from __future__ import annotations

from kfp_tfjob.common.errors import Problem

from .limits import Application, Message, Receive, Send, protocol_of

JSON_LENGTH = "inference-header-content-length"
# Examples of valid bodies, for messages.
ROWS = '{"instances": [{COLUMN: VALUE, ...}, ...]}'
REQUEST = '{"inputs": [{"name": COLUMN, "shape": [ROWS], "datatype": TYPE, "data": [...]}, ...]}'
BINARY_REQUEST = (
    '{"inputs": [{"name": COLUMN, "shape": [ROWS], "datatype": TYPE, "parameters":'
    ' {"binary_data_size": BYTES}}, ...]} and after it the bytes of each input'
)


class BodyType:
    """An ASGI middleware that sets the Content-Type of prediction requests.

    Args:
        app: The wrapped application.
    """

    def __init__(self, app: Application) -> None:
        self._app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request."""
        protocol = protocol_of(scope["path"]) if scope["type"] == "http" else ""
        if protocol:
            headers = dict(scope["headers"])
            is_binary = protocol == "v2" and JSON_LENGTH.encode() in headers
            is_event = b"cloudevents" in headers.get(b"content-type", b"") or b"ce-id" in headers
            if not is_event:  # kserve unwraps a CloudEvent by its own Content-Type
                kind = b"application/octet-stream" if is_binary else b"application/json"
                headers[b"content-type"] = kind
                scope = {**scope, "headers": list(headers.items())}
        await self._app(scope, receive, send)


def not_json(reason: str, expected: str) -> Problem:
    """Return the problem of a body that is not a JSON object."""
    return Problem(
        "the request's body is not a JSON object",
        received=reason,
        expected=expected,
        fix="send one JSON object in UTF-8",
    )
