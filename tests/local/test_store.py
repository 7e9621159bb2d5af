"""The store against a real S3 server: what is written is what is read, and each wait ends."""

import json
import os
import resource
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from botocore.utils import ContainerMetadataFetcher

from kfp_tfjob.checks.store import check_store
from kfp_tfjob.common.errors import (
    ConfigurationError,
    DataError,
    StepError,
    StoreUnavailableError,
)
from kfp_tfjob.pipelines.local.s3_server import Server
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.body import SMALL
from kfp_tfjob.storage.checksum import crc64nvme
from kfp_tfjob.storage.credentials import SecretVolume
from kfp_tfjob.storage.retry import Patience
from kfp_tfjob.storage.store import PART, Store
from tests.faults.proxy import (
    Exchange,
    Fault,
    FaultProxy,
    accepts_token,
    composite_checksum,
    ignore_checksums,
    ignore_conditions,
    page,
    refuse,
)
from tests.faults.world import EVER
from tests.problems import problem_of

NAMES = [
    "a b",
    "ü/ñ 𝄞",
    "a+b%20c#d?e&f=g",
    "~-._!*'()$,;:@[]{}|^`\\\r\n",
    "a//b",
    "/".join(["d" * 100] * 8),
]


@pytest.mark.parametrize("name", NAMES)
def test_any_name_comes_back(store: Store, base: S3Address, name: str) -> None:
    store.write(base / name, b"content")
    assert store.read(base / name) == b"content"
    assert [item.address for item in store.list(base)] == [base / name]


@pytest.mark.parametrize("size", [0, SMALL, SMALL + 1, PART + 1, 2 * PART + 5])
def test_files_of_any_size_are_sent_proven_and_fetched(
    store: Store, base: S3Address, tmp_path: Path, size: int
) -> None:
    file, copy = tmp_path / "file", tmp_path / "copy"
    file.write_bytes(os.urandom(size))
    entry = store.send(file, base / "file", "file")
    assert entry.size == size
    store.verify(base / "file", entry)
    store.fetch(base / "file", tmp_path, replace(entry, key="copy"))
    assert copy.read_bytes() == file.read_bytes()
    for wrong in (replace(entry, size=size + 1), replace(entry, crc64nvme="rosUhgp5mIg=")):
        with pytest.raises(DataError, match="manifest"):
            store.verify(base / "file", wrong)
        with pytest.raises(DataError, match="manifest"):
            store.fetch(base / "file", tmp_path, replace(wrong, key="wrong"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy", "file"]


def test_a_checksum_of_checksums_is_not_compared(proxy: FaultProxy, base: S3Address) -> None:
    """SeaweedFS 4.34 keeps one for an object in parts, so verification called them all damaged."""
    store = Store(proxy.endpoint)
    data = os.urandom(1000)
    store.write(base / "object", data)
    proxy.faults = [Fault(composite_checksum, "HEAD")]
    assert store.entry(base / "object", "key").crc64nvme == crc64nvme(data)
    assert proxy.faults[0].happened


def test_an_object_that_is_too_large_is_not_read(store: Store, base: S3Address) -> None:
    store.write(base / "large", b"x" * 1001)
    assert store.read(base / "large", limit=1001) == b"x" * 1001
    with pytest.raises(DataError, match="1,000 bytes"):
        store.read(base / "large", limit=1000)
    assert store.read(base / "large")  # the connection is of use again


def test_a_file_of_which_the_disk_took_only_a_part_is_not_there(
    store: Store, base: S3Address, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.write_bytes(os.urandom(100_000))
    entry = store.send(file, base / "file", "file")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, before[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            store.fetch(base / "file", tmp_path, replace(entry, key="copy"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == [file]


def test_a_large_object_that_changes_while_it_is_fetched_is_said_to_have(
    proxy: FaultProxy, store: Store, base: S3Address, tmp_path: Path
) -> None:
    file, other = tmp_path / "file", tmp_path / "other"
    for path in (file, other):
        path.write_bytes(os.urandom(2 * PART + 5))
    entry = store.send(file, base / "file", "file")
    proxy.faults = [Fault(lambda _: not store.send(other, base / "file", "file"), "GET")]
    with pytest.raises(DataError, match="/file changed"):
        Store(proxy.endpoint).fetch(base / "file", tmp_path, replace(entry, key="copy"))


def test_numbers_are_those_right_below(store: Store, base: S3Address) -> None:
    for key in ("2.json", "10.json", "7/manifest.json", "7/x/9.json", "x.json", "3"):
        store.write(base / key, b"")
    assert store.numbers(base) == [2, 3, 7, 10]


def test_the_probe_takes_no_other_refusal_for_a_check(proxy: FaultProxy, base: S3Address) -> None:
    proxy.faults = [
        Fault(refuse(400, "RequestTimeout")),
        Fault(ignore_checksums, times=float("inf")),
    ]
    store = Store(proxy.endpoint)
    store.probe(base)
    assert store.session.ignores_checksums


@pytest.mark.parametrize("denied", ["GET", "PUT"])
def test_the_probe_finds_out_what_is_not_allowed(
    proxy: FaultProxy, base: S3Address, denied: str
) -> None:
    proxy.faults = [Fault(refuse(403, "AccessDenied"), denied, times=float("inf"))]
    with pytest.raises(ConfigurationError, match="AccessDenied"):
        Store(proxy.endpoint).probe(base, read=True)


def test_the_probe_leaves_nothing_behind_and_says_when_it_cannot(
    proxy: FaultProxy, base: S3Address
) -> None:
    store = Store(proxy.endpoint)
    assert store.probe(base, read=True).undeletable is None
    assert [seen.method for seen in proxy.seen] == ["PUT", "PUT", "GET", "DELETE"]
    assert list(store.list(base)) == []
    proxy.faults = [Fault(refuse(403, "AccessDenied"), "DELETE", times=float("inf"))]
    assert Store(proxy.endpoint).probe(base).undeletable


def test_a_store_that_overwrites_is_refused(proxy: FaultProxy, base: S3Address) -> None:
    store = Store(proxy.endpoint)
    assert [it.status for it in check_store(store, base, base)] == ["ok"]
    proxy.faults = [Fault(ignore_conditions, times=float("inf"))]
    with pytest.raises(ConfigurationError) as caught:
        check_store(store, base, base)
    assert "If-None-Match: *" in caught.value.received
    assert list(store.list(base)) == []


def test_a_create_that_meets_another_on_its_way_is_tried_again(
    proxy: FaultProxy, base: S3Address
) -> None:
    proxy.faults = [Fault(refuse(409, "ConditionalRequestConflict"), times=2)]
    store = Store(proxy.endpoint)
    store.create(base / "object", b"mine")
    assert store.read(base / "object") == b"mine"
    assert [seen.status for seen in proxy.seen] == [409, 409, 200, 200]


def test_a_wrong_clock_is_named(proxy: FaultProxy, base: S3Address) -> None:
    proxy.faults = [Fault(refuse(403, "RequestTimeTooSkewed"), "PUT", times=float("inf"))]
    with pytest.raises(ConfigurationError, match="clock"):
        Store(proxy.endpoint).write(base / "object", b"mine")


def test_a_head_that_is_refused_without_a_word_finds_the_new_keys(
    proxy: FaultProxy, s3: Server, store: Store, base: S3Address, tmp_path: Path
) -> None:
    store.write(base / "object", b"mine")
    for file in s3.secret.iterdir():
        (tmp_path / file.name).write_text(file.read_text())
    (tmp_path / "AWS_SESSION_TOKEN").write_text("old")
    rotated = Store(proxy.endpoint, secret=SecretVolume(tmp_path), patience=Patience(5))
    proxy.faults = [Fault(accepts_token("new"), ".*", times=float("inf"))]
    with pytest.raises(StepError):
        rotated.head(base / "object")
    (tmp_path / "AWS_SESSION_TOKEN").write_text("new")
    assert rotated.head(base / "object")["ContentLength"] == 4


@pytest.mark.parametrize("code", ["BadDigest", "XAmzContentChecksumMismatch"])
def test_a_body_that_was_damaged_on_the_way_is_sent_again(
    proxy: FaultProxy, base: S3Address, code: str
) -> None:
    proxy.faults = [Fault(refuse(400, code))]
    store = Store(proxy.endpoint)
    store.write(base / "object", b"mine")
    assert store.read(base / "object") == b"mine"


# A plain page, one that is XML without a code of S3, and none at all.
PAGES = {
    "Traefik": b"404 page not found\n",
    "XHTML": b"<html><head><title>404 Not Found</title></head><body>nginx</body></html>",
    "Envoy": b"",
}


@pytest.mark.parametrize("body", PAGES.values(), ids=PAGES)
def test_a_proxys_404_is_no_missing_object(
    proxy: FaultProxy, store: Store, base: S3Address, body: bytes
) -> None:
    """Training began again at step 0, and `runs prune` deleted the dataset of a new run."""
    store.write(base / "folder" / "object", b"mine")
    address, client = base / "folder" / "object", Store(proxy.endpoint, patience=Patience(20))
    for call, expected in (
        (lambda: client.read(address), b"mine"),
        (lambda: client.has(address), True),
        (lambda: client.entry(address, "key").size, 4),
        (lambda: [item.address for item in client.list(base)], [address]),
        (lambda: client.folders(base), ["folder"]),
        (lambda: client.write(address, b"mine"), crc64nvme(b"mine")),
    ):
        proxy.faults = [Fault(page(404, body), ".*", times=2)]
        assert call() == expected
        assert proxy.faults[0].happened == 2
    proxy.faults = [Fault(page(404, body), "HEAD", times=2)]  # a GET between them succeeds
    assert client.has(address)
    proxy.faults = [Fault(page(404, body), ".*", times=EVER)]
    client = client.with_patience(0.1)
    for call, arguments in (
        (client.read, (address,)),
        (client.has, (address,)),
        (client.folders, (base,)),
        (client.write, (address, b"mine")),
    ):
        problem = problem_of(call, *arguments, kind=StoreUnavailableError)
        assert problem.name == "wrong-endpoint"
        assert "proxy" in problem.fix and "HTTP 404" in problem.received


def test_a_missing_object_costs_no_second_request(proxy: FaultProxy, base: S3Address) -> None:
    assert not Store(proxy.endpoint).has(base / "missing")
    assert [seen.method for seen in proxy.seen] == ["HEAD"]


def test_a_missing_object_of_a_store_without_ids_of_requests(
    proxy: FaultProxy, base: S3Address
) -> None:
    """Its reply to HEAD is the same as a proxy's, so the code in the reply to GET decides."""
    proxy.faults = [Fault(refuse(404, "NoSuchKey"), ".*", times=EVER)]
    assert not Store(proxy.endpoint, patience=Patience(1)).has(base / "missing")
    assert [seen.method for seen in proxy.seen] == ["HEAD", "GET"]


@pytest.mark.parametrize("status", [408, 425])
def test_a_proxys_page_about_a_wait_is_passing(
    proxy: FaultProxy, base: S3Address, status: int
) -> None:
    store = Store(proxy.endpoint, patience=Patience(20))
    for call in (lambda: store.write(base / "object", b"mine"), lambda: list(store.list(base))):
        proxy.faults = [Fault(page(status, PAGES["XHTML"]), ".*", times=2)]
        assert call()
        assert proxy.faults[0].happened == 2


ADDRESS = S3Address("bucket", "key")
_AGENT_TRIES = ContainerMetadataFetcher.RETRY_ATTEMPTS  # by botocore, before it gives up
# Servers that never answer are not given longer by a busy machine.
SILENCE = Patience(seconds=0.1, silence=0.5)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with FaultProxy() as found:
        yield found


CALLS = {
    "probe": lambda store: store.probe(ADDRESS),
    "write": lambda store: store.write(ADDRESS, b"data"),
    "read": lambda store: store.read(ADDRESS),
    "list": lambda store: list(store.list(ADDRESS)),
}


@pytest.mark.parametrize("call", CALLS)
def test_an_endpoint_that_does_not_answer_ends_the_wait(
    server: FaultProxy, call: str, tmp_path: Path
) -> None:
    server.faults = [Fault(lambda _: threading.Event().wait(), ".*", times=EVER)]
    store = Store(server.endpoint, secret=SecretVolume(tmp_path), patience=SILENCE)
    began = time.monotonic()
    with pytest.raises(StoreUnavailableError) as caught:
        CALLS[call](store)
    assert time.monotonic() - began < 60  # twice the silence, and whatever the machine is busy with
    assert "bucket" in str(caught.value)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(("status", "code"), [(500, "InternalError"), (503, "SlowDown")])
def test_an_answer_that_is_an_error_is_quoted(
    server: FaultProxy, call: str, status: int, code: str, tmp_path: Path, caplog
) -> None:
    """It was called a store that does not respond, with botocore's own count of retries."""
    server.faults = [Fault(refuse(status, code), ".*", times=EVER)]
    store = Store(server.endpoint, secret=SecretVolume(tmp_path), patience=SILENCE)
    problem = problem_of(CALLS[call], store, kind=StoreUnavailableError)
    assert problem.received.startswith(f"HTTP {status}") and problem.fix
    assert "respond" not in problem.what
    (line,) = [it.getMessage() for it in caplog.records if "trying again" in it.getMessage()]
    assert f"HTTP {status}" in line
    if call != "probe":  # a HEAD has no body to quote
        assert f"HTTP {status} {code}" in problem.received
    assert "retries" not in line + problem.received


def test_half_of_the_keys_are_no_keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY", raising=False)
    with pytest.raises(ConfigurationError, match="missing: AWS_SECRET_ACCESS_KEY"):
        Store("http://127.0.0.1:9", secret=SecretVolume(tmp_path))


@pytest.mark.parametrize("size", [10, 11])
def test_an_object_without_a_length_is_bounded(
    server: FaultProxy, size: int, tmp_path: Path
) -> None:
    def chunked(exchange: Exchange) -> bool:
        head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        exchange.wfile.write(head + b"%x\r\n%s\r\n0\r\n\r\n" % (size, b"x" * size))
        return True

    server.faults = [Fault(chunked, "GET", times=EVER)]
    store = Store(server.endpoint, secret=SecretVolume(tmp_path))
    if size == 10:
        assert store.read(ADDRESS, 10) == b"x" * 10
    else:
        with pytest.raises(DataError, match="too large"):
            store.read(ADDRESS, 10)


@pytest.mark.parametrize("status", [301, 307])
@pytest.mark.parametrize("call", CALLS)
def test_an_endpoint_that_redirects_is_said_to(
    server: FaultProxy, status: int, call: str, tmp_path: Path
) -> None:
    def redirect(exchange: Exchange) -> bool:
        for _ in exchange.body():
            continue
        exchange.reply(status, [("Location", f"{server.endpoint}{exchange.target}")], b"")
        return True

    server.faults = [Fault(redirect, ".*", times=EVER)]
    store = Store(server.endpoint, secret=SecretVolume(tmp_path))
    with pytest.raises(ConfigurationError) as caught:
        CALLS[call](store)
    assert f"{server.endpoint}/bucket" in str(caught.value)


@pytest.mark.parametrize("endpoint", ["http://h h", "http://[::1", "http://h:x", "http://h:99999"])
def test_an_endpoint_that_is_no_url_is_refused(endpoint: str) -> None:
    with pytest.raises(ConfigurationError, match="storage_endpoint"):
        Store(endpoint)


def test_an_agent_that_does_not_give_credentials_at_first(server: FaultProxy, monkeypatch) -> None:
    """On a new node, the agent of EKS Pod Identity answers some seconds later than pods start."""
    given = {"AccessKeyId": "of-the-agent", "SecretAccessKey": "s", "Token": "t"}
    given["Expiration"] = "2999-01-01T00:00:00Z"

    def give(exchange: Exchange) -> bool:
        exchange.reply(200, [], json.dumps(given).encode())
        return True

    server.faults = [Fault(refuse(500, "Away"), "GET", times=_AGENT_TRIES)]
    server.faults.append(Fault(give, "GET", after=_AGENT_TRIES))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{server.endpoint}/keys")
    monkeypatch.setattr(ContainerMetadataFetcher, "SLEEP_TIME", 0)
    store = Store(server.endpoint, patience=Patience(seconds=30))
    assert store.session._keys("test").access_key == "of-the-agent"
    assert [seen.target for seen in server.seen] == ["/keys"] * (_AGENT_TRIES + 1)


def test_an_endpoint_that_cannot_work_is_refused_at_once_with_the_one_that_does(
    s3: Server, store: Store, base: S3Address
) -> None:
    """A server without TLS counted as an outage, and a bucket in the endpoint got the objects."""
    store.write(base / "a", b"1")
    bucket = base.bucket
    for wrong in (s3.endpoint.replace("http:", "https:"), f"{s3.endpoint}/{bucket}"):
        other = Store(wrong, patience=Patience(20))
        for call, given in (
            (other.has, (base / "a",)),
            (other.write, (base / "b", b"2")),
            (other.read, (base / "a",)),
        ):
            begin = time.monotonic()
            problem = problem_of(call, *given)
            assert time.monotonic() - begin < 5
            assert problem.path == "storage_endpoint"
            assert Store(problem.suggestion).read(base / "a") == b"1"
    assert [it.address for it in store.list(S3Address(bucket, bucket))] == []
