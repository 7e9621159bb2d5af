"""The sink in Python, for machines without Go: good for a trial, not for measurements."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

ETAG = '"d41d8cd98f00b204e9800998ecf8427e"'


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    counts: dict[str, int] = {}
    kept: dict[str, bytes] = {}
    lock = threading.Lock()

    def _handle(self) -> None:
        url = urlsplit(self.path)
        query = parse_qs(url.query, keep_blank_values=True)
        left, data = int(self.headers.get("Content-Length") or 0), b""
        while left:
            piece = self.rfile.read(min(left, 1 << 20))
            left -= len(piece)
            data = piece
        if url.path == "/-/stats":
            self._reply(200, json.dumps({"cpu": time.process_time(), **self.counts}).encode())
            return
        with self.lock:
            self.counts[self.command] = self.counts.get(self.command, 0) + 1
        if self.command == "PUT":
            wrong = self.headers.get("x-amz-checksum-crc64nvme") == "AAAAAAAAAAA="
            if url.path.endswith("manifest.json"):
                self.kept[url.path] = data
            self._reply(
                400 if wrong else 200, b"<Error><Code>BadDigest</Code></Error>"[: 99 * wrong]
            )
        elif self.command == "POST" and "uploads" in query:
            name = b"InitiateMultipartUploadResult"
            self._reply(200, b"<%s><UploadId>1</UploadId></%s>" % (name, name))
        elif self.command == "POST":
            name, etag = b"CompleteMultipartUploadResult", ETAG.encode()
            self._reply(200, b"<%s><ETag>%s</ETag></%s>" % (name, etag, name))
        elif self.command == "DELETE":
            self.kept.pop(url.path, None)
            self._reply(204, b"")
        elif "list-type" in query:
            name = b"ListBucketResult"
            self._reply(200, b"<%s><IsTruncated>false</IsTruncated></%s>" % (name, name))
        elif url.path in self.kept:
            self._reply(200, self.kept[url.path])
        else:
            self._reply(404, b"<Error><Code>NoSuchKey</Code></Error>")

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _handle

    def _reply(self, status: int, data: bytes) -> None:
        self.send_response(status)
        self.send_header("ETag", ETAG)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        return


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()
