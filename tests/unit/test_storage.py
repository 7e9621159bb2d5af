"""Addresses, manifests, retries, the Secret and kept connections: what holds without a store."""

import json
import time
from contextlib import suppress
from pathlib import Path
from unittest.mock import Mock

import boto3
import pytest
from botocore.exceptions import ClientError, SSLError
from hypothesis import given
from hypothesis import strategies as st

from kfp_tfjob.cluster.api_errors import ApiError
from kfp_tfjob.common.errors import (
    ConfigurationError,
    DataError,
    Problem,
    StepError,
    StoreUnavailableError,
)
from kfp_tfjob.storage import manifest as manifests
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.body import Body
from kfp_tfjob.storage.checksum import crc64nvme, file_crc64nvme
from kfp_tfjob.storage.credentials import SecretVolume
from kfp_tfjob.storage.fast_put import FastPut
from kfp_tfjob.storage.layout import is_for_training
from kfp_tfjob.storage.manifest import Manifest, ManifestObject
from kfp_tfjob.storage.parts import part_length
from kfp_tfjob.storage.retry import Patience, answer_of
from kfp_tfjob.storage.s3_errors import explain, transient
from kfp_tfjob.storage.store import PART, Store
from tests.fuzz.bounds import bounded
from tests.http_server import Handler, serving
from tests.problems import problem_of


@pytest.mark.parametrize(
    ("uri", "bucket", "key"),
    [
        ("s3://bucket", "bucket", ""),
        ("s3://bucket/", "bucket", ""),
        (" s3://bucket/a/b/ ", "bucket", "a/b"),
        ("s3://bucket/a b/ü+%#", "bucket", "a b/ü+%#"),
    ],
)
def test_addresses(uri: str, bucket: str, key: str) -> None:
    assert S3Address.parse(uri) == S3Address(bucket, key)
    assert S3Address.parse(str(S3Address(bucket, key))) == S3Address(bucket, key)


@pytest.mark.parametrize("uri", ["", "bucket/key", "s3://", "s3:///key", "http://bucket", "s3://a"])
def test_what_is_no_address_is_refused(uri: str) -> None:
    with pytest.raises(ConfigurationError, match="output_uri"):
        S3Address.parse(uri, "output_uri")


def test_the_checksum_is_the_one_of_s3(tmp_path: Path) -> None:
    # The check value of CRC-64/NVME is ae8b14860a799888.
    assert crc64nvme(b"123456789") == "rosUhgp5mIg="
    path = tmp_path / "file"
    path.write_bytes(b"x" * (3 << 20))
    assert file_crc64nvme(path) == crc64nvme(path.read_bytes())


objects = st.builds(
    ManifestObject,
    key=st.text(min_size=1),
    size=st.integers(0),
    crc64nvme=st.text(),
    sha256=st.none() | st.text(),
)


@given(st.lists(objects, unique_by=lambda o: o.key), st.text(max_size=5), st.integers(0, 9))
def test_a_manifest_is_read_back_as_it_was_whatever_the_order(
    found: list[ManifestObject], run_id: str, attempt: int
) -> None:
    attempt = attempt if run_id else 0
    manifest = Manifest.of("output", found, run_id, attempt, {"step": 3})
    assert Manifest.from_bytes(manifest.to_bytes()) == manifest
    turned = Manifest.of("output", found[::-1], run_id, attempt, {"step": 3})
    assert turned.digest == manifest.digest


GOOD = {"format": "kfp-tfjob/manifest/1", "kind": "code", "run_id": "r", "attempt": 1}
GOOD |= {"details": {}, "objects": [{"key": "a", "size": 1, "crc64nvme": "AAAAAAAAAAA="}]}


@pytest.mark.parametrize(
    "change",
    [
        {"objects": [{"key": None, "size": 1, "crc64nvme": ""}]},
        {"objects": [{"key": 7, "size": 1, "crc64nvme": ""}]},
        {"objects": [{"key": "a", "size": "1", "crc64nvme": ""}]},
        {"objects": [{"key": "a", "size": -1, "crc64nvme": ""}]},
        {"objects": [{"key": "a", "size": True, "crc64nvme": ""}]},
        {"objects": [{"key": "a", "size": 1.5, "crc64nvme": ""}]},
        {"objects": [{"key": "a", "size": float("inf"), "crc64nvme": ""}]},
        {"objects": [{"key": "a", "size": 1, "crc64nvme": None}]},
        {"objects": [{"key": "a", "size": 1, "crc64nvme": "", "sha256": 1}]},
        {"objects": [{"key": "a", "size": 1, "crc64nvme": "", "more": 1}]},
        {"objects": [{"key": "\ud800", "size": 1, "crc64nvme": ""}]},
        {"objects": ["a"]},
        {"objects": {"a": 1}},
        {"objects": None},
        {"format": "other/1"},
        {"kind": None},
        {"run_id": 1},
        {"attempt": "1"},
        {"attempt": -1},
        {"attempt": float("inf")},
        {"details": []},
        {"details": {"files": "\udfff"}},
    ],
)
def test_a_malformed_manifest_is_refused(change: dict) -> None:
    assert Manifest.from_bytes(json.dumps(GOOD).encode()).run_id == "r"
    with pytest.raises(DataError, match="manifest"):
        Manifest.from_bytes(json.dumps(GOOD | change).encode())
    with pytest.raises(DataError, match="manifest"):
        Manifest.from_bytes(
            json.dumps(GOOD | change, ensure_ascii=False).encode(errors="replace")[:-1]
        )


@pytest.mark.parametrize(
    "data",
    [
        b"[" * 1_000_000,
        b'{"a":' * 100_000,
        b"[" + b"[]," * (10 << 20) + b"[]]",
        b'{"format": "kfp-tfjob/manifest/1", "a": ' + b"9" * 10_000 + b"}",
        b" " * (33 << 20),
        json.dumps(GOOD).encode("utf-16"),
    ],
    ids=["lists", "objects", "many", "digits", "large", "utf-16"],
)
def test_a_manifest_that_would_hurt_is_refused_within_limits(data: bytes) -> None:
    with bounded(seconds=5, memory=200 << 20):
        with pytest.raises(DataError, match="manifest"):
            Manifest.from_bytes(data)


def test_a_manifest_that_no_reader_takes_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifests, "LONGEST", 1000)
    objects = [ManifestObject(f"{i:03}", 1, "AAAAAAAAAAA=") for i in range(20)]
    with pytest.raises(DataError, match="files"):
        Manifest.of("code", objects).to_bytes()


@pytest.fixture
def slept() -> list[float]:
    return []


@pytest.fixture
def patience(slept: list[float]) -> Patience:
    """Has a clock that moves only while a caller sleeps."""
    return Patience(30, clock=lambda: sum(slept), sleep=slept.append)


def test_patience_ends_and_names_the_last_error(patience: Patience, slept: list[float]) -> None:
    with pytest.raises(StoreUnavailableError, match="30 s.*refused"):
        patience.run("read x", Mock(side_effect=OSError("connection refused")), lambda error: True)
    assert 30 <= sum(slept) < 31


def test_patience_outlasts_failures_and_never_repeats_what_is_final(patience: Patience) -> None:
    call = Mock(side_effect=[OSError("1"), OSError("2"), 7, OSError("final")])
    assert patience.run("x", call, lambda error: True) == 7
    with pytest.raises(OSError, match="final"):
        patience.run("x", call, lambda error: False)


def test_the_secret_is_read_anew_and_may_have_the_names_of_kfp(tmp_path: Path) -> None:
    secret = SecretVolume(tmp_path)
    assert secret.get("AWS_ACCESS_KEY_ID") == ""
    (tmp_path / "accesskey").write_text("one\n")
    assert secret.get("AWS_ACCESS_KEY_ID") == "one"
    (tmp_path / "AWS_ACCESS_KEY_ID").write_text("two")
    assert secret.get("AWS_ACCESS_KEY_ID") == "two"


TIB = 1 << 40


@pytest.mark.parametrize("size", [PART + 1, 9000 * PART, 9000 * PART + 1, TIB, 5 * TIB])
def test_no_object_has_more_parts_than_s3_takes(size: int) -> None:
    length = part_length(size)
    assert -(-size // length) <= 10_000
    assert PART <= length <= 5 << 30 and length % (1 << 20) == 0


class RefusesUnread(Handler):
    """Refuses without reading the body, which is then the next request of the connection."""

    def do_PUT(self) -> None:
        if self.path.endswith("inner"):
            time.sleep(0.5)
            with suppress(ConnectionError):  # who was refused has hung up
                self.answer(b"")
        else:
            self.answer(b"<Error><Code>SlowDown</Code></Error>", 503)


def test_a_reply_to_the_body_of_a_refused_request_is_not_that_to_the_next_one() -> None:
    body = b"PUT /b/inner HTTP/1.1\r\nContent-Length: 0\r\n\r\n"
    keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b", "region_name": "x"}
    with serving(RefusesUnread) as server:
        put = FastPut(boto3.client("s3", endpoint_url=server.url, **keys))
        for key in ("first", "second"):
            with pytest.raises(ClientError, match="SlowDown"):
                put.put(S3Address("b", key), Body(body, len(body)), {})


@pytest.mark.parametrize(
    ("endpoint", "bucket", "suggestion"),
    [
        ("http://127.0.0.1:9000/rows", "rows", "http://127.0.0.1:9000"),
        ("https://rows.s3.eu-west-1.amazonaws.com", "rows", "https://s3.eu-west-1.amazonaws.com"),
        ("https://rows.s3-fips.x.example", "rows", "https://s3-fips.x.example"),
        ("https://a.example/storage/v1/s3", "rows", None),
        ("https://rows.example.com", "rows", None),
        ("http://127.0.0.1:9000", "rows", None),
    ],
)
def test_an_endpoint_with_the_bucket_in_it_is_refused_before_a_request(
    endpoint: str, bucket: str, suggestion: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "k")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    session = Store(endpoint, patience=Patience(0)).session

    def call() -> str:
        return session.call("list", S3Address(bucket), lambda: "sent")

    if suggestion is None:
        assert call() == "sent"
    else:
        problem = problem_of(call)
        assert (problem.path, problem.suggestion) == ("storage_endpoint", suggestion)


@pytest.mark.parametrize(
    "reason",
    [
        "[SSL: WRONG_VERSION_NUMBER] wrong version number",
        "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed certificate",
        "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: Hostname mismatch",
        "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: certificate has expired",
    ],
)
def test_tls_that_cannot_work_is_no_outage(reason: str) -> None:
    error = SSLError(endpoint_url="https://a.example", error=f"{reason} (_ssl.c:1006)")
    assert not transient(error)
    (problem,) = explain(error, "list", S3Address("rows"), "https://a.example").problems
    assert isinstance(problem, Problem) and problem.fix
    assert ("AWS_CA_BUNDLE" in problem.fix) is ("self-signed" in reason)


@pytest.mark.parametrize(
    ("operation", "kind"), [("ListObjectsV2", ConfigurationError), ("HeadObject", StepError)]
)
def test_an_answer_without_a_code_of_s3_is_not_from_its_api(operation: str, kind: type) -> None:
    """As HTTP gets on a port for HTTPS; a HEAD never has a body with a code."""
    said = {"Error": {"Code": "400", "Message": "Client sent an HTTP request to an HTTPS server."}}
    error = ClientError({**said, "ResponseMetadata": {"HTTPStatusCode": 400}}, operation)
    assert type(explain(error, "list", S3Address("rows"), "http://a.example")) is kind


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (
            ClientError(
                {
                    "Error": {"Code": "InternalError", "Message": "We failed."},
                    "ResponseMetadata": {
                        "HTTPStatusCode": 500,
                        "RetryAttempts": 0,
                        "MaxAttemptsReached": True,
                    },
                },
                "PutObject",
            ),
            "HTTP 500 InternalError: We failed.",
        ),
        (
            ClientError(
                {
                    "Error": {"Code": "500", "Message": "Internal Server Error"},
                    "ResponseMetadata": {"HTTPStatusCode": 500},
                },
                "HeadBucket",
            ),
            "HTTP 500: Internal Server Error",
        ),
        (ApiError(503, "Unavailable", '{"message": "wait"}'), "HTTP 503 Unavailable: wait"),
        (OSError("refused"), ""),
    ],
)
def test_what_was_answered_is_quoted(error: Exception, answer: str, patience: Patience) -> None:
    assert answer_of(error) == answer
    problem = problem_of(
        patience.run, "read x", Mock(side_effect=error), lambda it: True, kind=StepError
    )
    assert problem.received == (answer or "OSError: refused")
    assert ("did not respond" in problem.what) is not bool(answer)


@pytest.mark.parametrize(
    ("key", "is_given"),
    [
        ("train/00000.parquet", True),
        ("validation/00003.parquet", True),
        ("test/00000.parquet", False),
        ("train-00000.tfrecord", True),  # of an earlier version
        ("test-00000.tfrecord", False),
        ("schema.json", True),
    ],
)
def test_test_rows_stay_where_they_are(key: str, is_given: bool) -> None:
    assert is_for_training(key) is is_given
