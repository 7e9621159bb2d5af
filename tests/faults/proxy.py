"""An HTTP proxy between a client and an S3 server that does what networks and stores do.

It forwards every request as it is until a fault is due. As a reverse proxy it is named as the
endpoint; as a forward proxy in `http_proxy`. With nothing behind it and a fault that answers every
request, it is any small HTTP server.
"""

from __future__ import annotations

import email.utils
import http.client
import os
import re
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import BinaryIO, Self
from urllib.parse import urlsplit

from botocore.credentials import ReadOnlyCredentials

from kfp_tfjob.storage.signing import sign

CHUNK = 1 << 16


@dataclass
class Seen:
    """One request as it went by; `ended` is 0 while it is in flight, `status` 0 without a reply."""

    method: str
    target: str
    began: float
    size: int = 0
    status: int = 0
    ended: float = 0.0


@dataclass
class Fault:
    """Something that goes wrong.

    Attributes:
        action: Does it; true when the request has been dealt with, false to forward it after all.
    """

    action: Callable[[Exchange], bool]
    method: str = "PUT"
    target: str = ""
    times: float = 1
    after: int = 0
    happened: int = 0

    def due(self, method: str, target: str) -> bool:
        if not re.search(f"^({self.method})$", method) or not re.search(self.target, target):
            return False
        if self.after > 0:
            self.after -= 1
            return False
        if self.happened >= self.times:
            return False
        self.happened += 1
        return True


class Exchange(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FaultProxy
    disable_nagle_algorithm = True

    def _handle(self) -> None:
        url = urlsplit(self.path)
        self.target = url.path + (f"?{url.query}" if url.query else "")
        self.left = int(self.headers.get("Content-Length") or 0)
        self.sent: dict[str, str] = {name: value for name, value in self.headers.items()}
        self.alter: Callable[[bytes], bytes] = lambda data: data
        self.rate = 0.0
        proxy = self.server
        self.seen = Seen(self.command, self.target, time.monotonic(), self.left)
        with proxy.lock:
            proxy.seen.append(self.seen)
            due = [fault for fault in proxy.faults if fault.due(self.command, self.target)]
        try:
            if not any(fault.action(self) for fault in due):
                self.forward()
        except (OSError, http.client.HTTPException):
            self.close_connection = True
        finally:
            self.seen.ended = time.monotonic()

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = do_CONNECT = _handle

    def body(self, most: float = float("inf")) -> Iterator[bytes]:
        """Yield what is left of the request's body, at most so many bytes."""
        while self.left and most > 0:
            data = self.rfile.read(min(CHUNK, self.left, most if most < CHUNK else CHUNK))
            if not data:
                raise ConnectionResetError
            self.left -= len(data)
            most -= len(data)
            if self.rate:
                time.sleep(len(data) / self.rate)
            yield data

    def ask(self) -> tuple[int, list[tuple[str, str]], bytes]:
        """Send the request on and return the reply of the server."""
        proxy = self.server
        if proxy.latency:
            time.sleep(proxy.latency)
        if proxy.tls:  # the server must see its own name
            self.sent["Host"] = proxy.upstream
            self.sign_again()
            upstream = http.client.HTTPSConnection(proxy.upstream, timeout=60, context=proxy.tls)
        else:
            upstream = http.client.HTTPConnection(proxy.upstream, timeout=60)
        try:
            upstream.putrequest(
                self.command, self.target, skip_host=True, skip_accept_encoding=True
            )
            for name, value in self.sent.items():
                if name.lower() not in ("connection", "proxy-connection", "expect"):
                    upstream.putheader(name, value)
            upstream.putheader("Connection", "close")
            upstream.endheaders()
            try:
                for data in self.body():
                    upstream.send(self.alter(data))
            except (BrokenPipeError, ConnectionResetError):
                for _ in self.body():
                    continue
            reply = upstream.getresponse()
            return reply.status, reply.getheaders(), reply.read()
        finally:
            upstream.close()

    def forward(self) -> bool:
        try:
            status, headers, data = self.ask()
        except ConnectionRefusedError:
            return self.answer(503, "ServiceUnavailable")
        self.reply(status, headers, data)
        return True

    def reply(self, status: int, headers: list[tuple[str, str]], data: bytes) -> None:
        self.seen.status = status
        self.send_response_only(status)
        replaced = {"connection", "content-length", "transfer-encoding"}
        if self.server.store_name:
            replaced.add("server")
            self.send_header("Server", self.server.store_name)
        for name, value in headers:
            if name.lower() not in replaced:
                self.send_header(name, value)
        length = dict((n.lower(), v) for n, v in headers).get("content-length", str(len(data)))
        self.send_header("Content-Length", length if self.command == "HEAD" else str(len(data)))
        self.end_headers()
        self.wfile.write(b"" if self.command == "HEAD" else data)

    def answer(self, status: int, code: str, **headers: str) -> bool:
        """Take the body and answer with an error of S3."""
        for _ in self.body():
            continue
        data = f"<?xml version='1.0'?><Error><Code>{code}</Code></Error>".encode()
        dated = {"Date": email.utils.formatdate(usegmt=True)} | headers
        self.reply(status, [("Content-Type", "application/xml"), *dated.items()], data)
        return True

    def reset(self) -> bool:
        linger = struct.pack("ii", 1, 0)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.close_connection = True
        self.connection.close()
        return True

    def sign_again(self, *without: str) -> None:
        """Drop headers and sign the request as the server's own user, at the true time."""
        kept = {
            name: value
            for name, value in self.sent.items()
            if not re.match("|".join(without) or "$", name.lower())
        }
        own = {n.lower(): v for n, v in kept.items() if n.lower().startswith("x-amz-")}
        own |= {n.lower(): v for n, v in kept.items() if n.lower() in ("host", "content-md5")}
        for name in ("x-amz-date", "x-amz-security-token"):
            own.pop(name, None)
        path, _, query = self.target.partition("?")
        pairs = [pair if "=" in pair else f"{pair}=" for pair in query.split("&") if pair]
        keys = self.server.keys
        signed = sign(
            self.command, path, "&".join(sorted(pairs)), own, keys, self.server.region, time.time()
        )
        names = {*signed, "x-amz-security-token"}
        self.sent = {n: v for n, v in kept.items() if n.lower() not in names} | signed

    def log_message(self, *_: object) -> None:
        return


class FaultProxy(ThreadingHTTPServer):
    """The proxy, in threads of this process.

    Args:
        secret: The folder with the server's keys; needed by faults that sign again.

    Attributes:
        store_name: The Server header of all replies; empty for the server's own.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, upstream: str = "", secret: Path | None = None) -> None:
        super().__init__(("127.0.0.1", 0), Exchange)
        names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
        access, key = ((secret / name).read_text() if secret else "" for name in names)
        self.keys = ReadOnlyCredentials(access, key, None)
        self.region = (secret / "AWS_REGION").read_text() if secret else ""
        self.upstream = urlsplit(upstream).netloc
        bundle = os.environ.get("AWS_CA_BUNDLE")
        is_tls = upstream.startswith("https:")
        self.tls = ssl.create_default_context(cafile=bundle) if is_tls else None
        self.endpoint = f"http://127.0.0.1:{self.server_address[1]}"
        self.faults: list[Fault] = []
        self.seen: list[Seen] = []
        self.latency = 0.0
        self.store_name = ""
        self.lock = threading.Lock()
        self._thread = threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True)

    def handle_error(self, *_: object) -> None:
        """Say nothing: clients that are killed break their connections."""

    def in_flight(self) -> list[Seen]:
        """Return the requests that have come and were not answered yet."""
        with self.lock:
            return [seen for seen in self.seen[-200:] if not seen.ended]

    def of(self, method: str, pattern: str = "") -> list[Seen]:
        with self.lock:
            seen = list(self.seen)
        return [one for one in seen if one.method == method and re.search(pattern, one.target)]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


# -- what can go wrong ----------------------------------------------------------------------------


def slow_down(exchange: Exchange) -> bool:
    """The store has too much to do."""
    return exchange.answer(503, "SlowDown")


def refuse(status: int, code: str) -> Callable[[Exchange], bool]:
    return lambda exchange: exchange.answer(status, code)


def page(status: int, body: bytes) -> Callable[[Exchange], bool]:
    """A proxy in front of the store answers in its place."""

    def action(exchange: Exchange) -> bool:
        for _ in exchange.body():
            continue
        exchange.reply(status, [("Content-Type", "text/html")], body)
        return True

    return action


def reset_midway(exchange: Exchange) -> bool:
    """The connection breaks after half of the body."""
    for _ in exchange.body(exchange.left // 2):
        continue
    return exchange.reset()


def lose_reply(exchange: Exchange) -> bool:
    """The store does what was asked, and the connection breaks before it can say so."""
    exchange.ask()
    return exchange.reset()


def error_after_200(exchange: Exchange) -> bool:
    """The store has begun to answer when it fails: it did nothing."""
    return exchange.answer(200, "InternalError")


def ignore_checksums(exchange: Exchange) -> bool:
    """A store that does not know CRC64NVME."""
    exchange.sign_again("x-amz-checksum", "x-amz-sdk-checksum")
    return False


def check_nothing(exchange: Exchange) -> bool:
    """A store that knows neither CRC64NVME nor Content-MD5."""
    exchange.sign_again("x-amz-checksum", "x-amz-sdk-checksum", "content-md5")
    return False


def ignore_conditions(exchange: Exchange) -> bool:
    """A store that does not know If-None-Match."""
    exchange.sign_again("if-none-match")
    return False


def look_first_write_later(seconds: float) -> Callable[[Exchange], bool]:
    """A store that looks for the object, and creates it so many seconds later."""
    stored: set[str] = set()

    def action(exchange: Exchange) -> bool:
        conditional = "if-none-match" in {name.lower() for name in exchange.sent}
        if not conditional or exchange.target in stored:
            return False
        time.sleep(seconds)
        exchange.sign_again("if-none-match")
        exchange.forward()
        stored.add(exchange.target)
        return True

    return action


def opaque_tags(exchange: Exchange) -> bool:
    """A store whose entity tags are no checksums."""
    status, headers, data = exchange.ask()
    kept = [(name, value) for name, value in headers if name.lower() != "etag"]
    exchange.reply(status, [*kept, ("ETag", '"7f-opaque"')], data)
    return True


def composite_checksum(exchange: Exchange) -> bool:
    """A store that keeps the checksum of the parts' checksums of a large object."""
    status, headers, data = exchange.ask()
    name = "x-amz-checksum-crc64nvme"
    kept = [(key, value) for key, value in headers if key.lower() != name]
    exchange.reply(status, [*kept, (name, "XsbSZKaLXuk=-3")], data)
    return True


def trickle(exchange: Exchange) -> bool:
    """The reply comes in small pieces, cut anywhere."""
    whole = exchange.wfile
    exchange.wfile = _Trickle(whole)
    try:
        return exchange.forward()
    finally:
        exchange.wfile = whole


class _Trickle:
    def __init__(self, whole: BinaryIO) -> None:
        self._whole = whole

    def write(self, data: bytes) -> None:
        step = max(len(data) // 40, 1)
        for start in range(0, len(data), step):
            self._whole.write(data[start : start + step])
            self._whole.flush()
            time.sleep(0.0005)


def damage(exchange: Exchange) -> bool:
    """One bit of the body changes on the way."""
    flipped = [False]

    def flip(data: bytes) -> bytes:
        if flipped[0] or not data:
            return data
        flipped[0] = True
        return bytes([data[0] ^ 1]) + data[1:]

    exchange.alter = flip
    return False


def damage_reply(exchange: Exchange) -> bool:
    """One bit of the reply changes on the way."""
    status, headers, data = exchange.ask()
    exchange.reply(status, headers, bytes([data[0] ^ 1]) + data[1:])
    return True


def slowly(rate: float) -> Callable[[Exchange], bool]:
    """The network takes so many bytes a second."""

    def action(exchange: Exchange) -> bool:
        exchange.rate = rate
        return False

    return action


def accepts_token(token: str) -> Callable[[Exchange], bool]:
    """Credentials that expire: only one session token is right."""

    def action(exchange: Exchange) -> bool:
        sent = {name.lower(): value for name, value in exchange.sent.items()}
        if sent.get("x-amz-security-token") != token:
            return exchange.answer(400, "ExpiredToken")
        exchange.sign_again()
        return False

    return action


def midway(act: Callable[[], object]) -> Callable[[Exchange], bool]:
    """Something happens to the client's files while half of the body is on its way."""

    def action(exchange: Exchange) -> bool:
        half, done = exchange.left // 2, [False]

        def alter(data: bytes) -> bytes:
            if exchange.left <= half and not done[0]:
                done[0] = True
                act()
            return data

        exchange.alter = alter
        return False

    return action


def away(seconds: float) -> Callable[[Exchange], bool]:
    """The network is gone for so long from the first request on."""
    until: list[float] = []

    def action(exchange: Exchange) -> bool:
        until[:] = until or [time.monotonic() + seconds]
        return exchange.reset() if time.monotonic() < until[0] else False

    return action


def hang_up_after(exchange: Exchange) -> bool:
    """The server closes a connection it had promised to keep."""
    exchange.forward()
    exchange.close_connection = True
    return True
