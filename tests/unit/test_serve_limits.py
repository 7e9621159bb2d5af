"""The limits before the server: as an ASGI application, without a network."""

import asyncio
import json
from typing import Any

import pytest

from kfp_tfjob.serving.body_type import JSON_LENGTH, BodyType
from kfp_tfjob.serving.limits import Limits

MOST = 1000
PATH = "/v1/models/pets:predict"


class Counts:
    """Keeps what was counted."""

    def __init__(self) -> None:
        self.answers: list[tuple[str, int]] = []

    def answered(self, protocol: str, code: int, seconds: float) -> None:
        assert seconds >= 0
        self.answers.append((protocol, code))


async def application(scope: Any, receive: Any, send: Any) -> None:
    """Read the body and answer with its size; a client that leaves is an error, as in Starlette."""
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise RuntimeError("the client left")
        size, more = size + len(message.get("body", b"")), message.get("more_body", False)
        if scope.get("wait"):
            await scope["wait"].wait()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"%d" % size})


class Client:
    """Sends the pieces of a body, and keeps what it is sent."""

    def __init__(self, pieces: list[bytes]) -> None:
        self.left, self.sent = [*pieces], list[Any]()

    async def receive(self) -> Any:
        body = self.left.pop(0)
        return {"type": "http.request", "body": body, "more_body": bool(self.left)}

    async def send(self, message: Any) -> None:
        self.sent.append(message)

    async def ask(self, limits: Limits, path: str = PATH, **more: Any) -> None:
        await limits({"type": "http", "path": path, "headers": [], **more}, self.receive, self.send)


async def ask(
    limits: Limits, pieces: list[bytes], declared: bool = False, **more: Any
) -> tuple[int, bytes, dict[bytes, bytes]]:
    client = Client(pieces)
    length = [(b"content-length", b"%d" % sum(map(len, pieces)))] if declared else []
    await client.ask(limits, headers=length, **more)
    (start,) = (it for it in client.sent if it["type"] == "http.response.start")
    body = b"".join(it["body"] for it in client.sent if it["type"] == "http.response.body")
    return start["status"], body, dict(start["headers"])


@pytest.mark.parametrize("declared", [True, False])
def test_a_request_above_the_limit_is_refused(declared: bool) -> None:
    counts = Counts()
    limits = Limits(application, MOST, counts)
    status, body, _ = asyncio.run(ask(limits, [b"x" * 500, b"x" * 501], declared))
    assert status == 413
    assert "too large" in json.loads(body)["error"]
    assert asyncio.run(ask(limits, [b"x" * 500, b"x" * 500], declared))[:2] == (200, b"1000")
    assert counts.answers == [("v1", 413), ("v1", 200)]


@pytest.mark.parametrize("one", [b"{},", b"[],"])
def test_more_objects_than_rows_are_refused_while_they_come(monkeypatch, one: bytes) -> None:
    monkeypatch.setattr("kfp_tfjob.serving.limits.MOST_ROWS", 100)
    monkeypatch.setattr("kfp_tfjob.serving.limits._OTHER_OBJECTS", 10)
    counts = Counts()
    limits = Limits(application, MOST, counts)
    pieces = [one * 50, one * 70]  # each {} or [] takes twenty times as much when parsed
    status, body, _ = asyncio.run(ask(limits, pieces))
    assert status == 413 and json.loads(body)["error"]
    assert asyncio.run(ask(limits, [one * 110]))[0] == 200
    assert counts.answers == [("v1", 413), ("v1", 200)]


def test_open_requests_are_limited_together() -> None:
    counts = Counts()
    limits = Limits(application, MOST, counts)

    async def many() -> list[Any]:
        done = asyncio.Event()
        open_ones = [asyncio.create_task(ask(limits, [b"x" * MOST], wait=done)) for _ in range(8)]
        await asyncio.sleep(0)
        refused = await ask(limits, [b"x"])
        health = await ask(limits, [b""], path="/v2/health/ready")
        done.set()
        return [refused, health, *await asyncio.gather(*open_ones), await ask(limits, [b"x"])]

    refused, health, *rest = asyncio.run(many())
    assert refused[0] == 503 and refused[2][b"retry-after"] == b"1"
    assert "8.0 kB" in json.loads(refused[1])["error"]
    assert health[0] == 200
    assert [it[0] for it in rest] == [200] * 9
    assert ("", 200) not in counts.answers  # only requests for predictions count


def test_an_error_of_the_application_stays_one() -> None:
    async def broken(scope: Any, receive: Any, send: Any) -> None:
        raise ValueError("its own")

    counts = Counts()
    with pytest.raises(ValueError, match="its own"):
        asyncio.run(ask(Limits(broken, MOST, counts), [b"x"]))
    assert counts.answers == [("v1", 500)]


@pytest.mark.parametrize(("pause", "pieces", "longest"), [(99.0, 1, 99.0), (0.04, 50, 0.5)])
def test_a_body_that_stalls_or_trickles_is_given_up(monkeypatch, pause, pieces, longest) -> None:
    monkeypatch.setattr("kfp_tfjob.serving.limits.STALLED", 0.2)
    monkeypatch.setattr("kfp_tfjob.serving.limits.LONGEST", longest)
    left = iter(range(pieces))

    class Slow(Client):
        async def receive(self) -> Any:
            if next(left, None) is None or len(self.sent) > pieces:
                await asyncio.sleep(pause)
            await asyncio.sleep(pause if pieces > 1 else 0)
            return {"type": "http.request", "body": b"x" * 10, "more_body": True}

    counts, client = Counts(), Slow([])
    limits = Limits(application, MOST, counts)
    asyncio.run(asyncio.wait_for(client.ask(limits), 60))
    start = client.sent[0]
    assert start["status"] == 408 and (b"connection", b"close") in start["headers"]
    assert counts.answers == [("v1", 408)] and limits._open == 0


def test_a_client_waits_for_its_answer_as_long_as_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kfp_tfjob.serving.limits.STALLED", 0.05)
    monkeypatch.setattr("kfp_tfjob.serving.limits.LONGEST", 0.05)

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        try:  # Starlette listens for a client that leaves
            await asyncio.wait_for(receive(), 0.3)
        except TimeoutError:
            pass
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})

    class Patient(Client):
        async def receive(self) -> Any:
            if not self.left:
                await asyncio.sleep(60)
            return await super().receive()

    client = Patient([b"x"])
    asyncio.run(client.ask(Limits(slow, MOST, Counts())))
    assert client.sent[0]["status"] == 200


def test_a_client_that_leaves_is_counted_and_no_error_of_the_server() -> None:
    class Leaving(Client):
        async def receive(self) -> Any:
            return {"type": "http.disconnect"}

    counts, client = Counts(), Leaving([])
    asyncio.run(client.ask(Limits(application, MOST, counts)))
    assert client.sent == [] and counts.answers == [("v1", 499)]


@pytest.mark.parametrize(
    ("path", "header", "value", "kind"),
    [
        (PATH, "content-type", "application/x-www-form-urlencoded", "application/json"),
        (PATH, "accept", "*/*", "application/json"),
        (PATH, "content-type", "application/cloudevents+json", "application/cloudevents+json"),
        ("/v2/models/pets/infer", "content-type", "text/plain", "application/json"),
        ("/v2/models/pets/infer", "content-type", "application/octet-stream", "application/json"),
        ("/v2/models/pets/infer", JSON_LENGTH, "9", "application/octet-stream"),
        ("/v2/models/pets", "content-type", "text/plain", "text/plain"),
    ],
)
def test_the_protocol_decides_how_a_body_is_read(
    path: str, header: str, value: str, kind: str
) -> None:
    types: list[str] = []

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        types.extend(it.decode() for name, it in scope["headers"] if name == b"content-type")

    scope = {"type": "http", "path": path, "headers": [(header.encode(), value.encode())]}
    client = Client([b""])
    asyncio.run(BodyType(inner)(scope, client.receive, client.send))
    assert types == [kind]


@pytest.mark.parametrize(("encoding", "code"), [("gzip", 415), ("br", 415), ("Identity", 200)])
def test_a_compressed_body_is_refused_before_it_is_read(encoding: str, code: int) -> None:
    counts = Counts()
    client = Client([b"x"])
    named = [(b"content-encoding", encoding.encode())]
    asyncio.run(client.ask(Limits(application, MOST, counts), headers=named))
    assert client.sent[0]["status"] == code
    assert counts.answers == [("v1", code)]
    assert bool(client.left) is (code == 415)
