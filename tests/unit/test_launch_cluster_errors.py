"""What an answer of the Kubernetes API means, and lines of logs as the kubelet sends them."""

import json

import pytest
import urllib3

from kfp_tfjob.cluster.backend import JobExistsError, JobRefusedError
from kfp_tfjob.cluster.client import ClusterClient, _lines
from kfp_tfjob.cluster.errors import (
    ApiError,
    ForbiddenError,
    NotFoundError,
    transient,
    translate,
    webhook_is_away,
)
from kfp_tfjob.storage.errors import StepError

WEBHOOK = 'admission webhook "validator.tfjob..." denied the request: no container tensorflow'
RBAC = 'tfjobs is forbidden: User "x" cannot create resource "tfjobs"'
AWAY = 'Internal error occurred: failed calling webhook "validator.tfjob": connection refused'


def error(status: int, message: str = "", reason: str = "") -> ApiError:
    body = json.dumps({"message": message, "reason": reason})
    return ApiError(status, "what HTTP says", body)


@pytest.mark.parametrize(
    ("status", "message", "kind", "code", "verdict"),
    [
        (403, WEBHOOK, JobRefusedError, 2, "refused"),
        (403, "pods is forbidden: exceeded quota: q", JobRefusedError, 2, "refused"),
        (403, RBAC, ForbiddenError, 2, "user_error"),
        (401, "Unauthorized", ForbiddenError, 2, "user_error"),
        (404, "not found", NotFoundError, 1, "failed"),
        (409, "already exists", JobExistsError, 1, "failed"),
        (422, "is invalid", JobRefusedError, 2, "refused"),
        (400, "strict decoding error", JobRefusedError, 2, "refused"),
        (405, "no such method", StepError, 1, "failed"),
    ],
)
def test_an_answer_is_told_apart_and_shown_verbatim(status, message, kind, code, verdict):
    found = translate(error(status, message), "create TFJob ns/j")
    assert type(found) is kind
    assert (found.code, found.verdict) == (code, verdict)
    assert message in str(found)


@pytest.mark.parametrize(
    ("found", "passes"),
    [
        (error(500, AWAY), True),
        (error(429), True),
        (error(410), True),
        (error(503), True),
        (error(401), True),
        (error(409, reason="Conflict"), True),
        (error(409, reason="AlreadyExists"), False),
        (error(403), False),
        (error(404), False),
        (error(422), False),
        (urllib3.exceptions.ProtocolError("cut"), True),
        (urllib3.exceptions.ReadTimeoutError(None, "", "slow"), True),
        (ConnectionResetError(), True),
        (json.JSONDecodeError("cut", "", 0), True),
        (KeyError("a defect"), False),
    ],
)
def test_what_passes_by_itself(found, passes):
    assert transient(found) is passes


def test_a_webhook_that_is_away_and_a_body_that_is_no_json():
    assert webhook_is_away(error(500, AWAY)) and not webhook_is_away(error(500, "etcd"))
    broken = ApiError(502, "Bad Gateway", b"<html>")
    assert "Bad Gateway" in str(translate(broken, "x"))


def test_the_right_of_a_path():
    kind = ClusterClient._resource
    assert kind("/api/v1/namespaces/n/pods/p/log") == "pods/log"
    assert kind("/apis/kubeflow.org/v1/namespaces/n/tfjobs/j") == "tfjobs"
    assert kind("/apis/kubeflow.org/v1/namespaces/n/tfjobs") == "tfjobs"
    assert kind("/api/v1/nodes") == "/api/v1/nodes"


def test_a_stream_is_cut_into_lines_and_what_is_too_long_is_cut_short():
    class Reply:
        def stream(self, size, decode_content):
            yield from (b"a\nb", b"c\n", b"x" * 40_000, b"x" * 40_000, b"yy\nd\ne")

    lines = list(_lines(Reply()))
    assert lines[:2] == [b"a", b"bc"] and lines[3:] == [b"d", b"e"]
    assert len(lines[2]) == 64 * 1024
