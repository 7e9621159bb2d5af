"""AWS without AWS: its host names lead to a proxy that does what S3, STS and EKS are known to do.

Objects are in the S3 server of the session. The names are resolved in this process, so addresses,
certificates, signatures and redirects are those of AWS.
"""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs

import pytest

from tests.cluster.pki import Authority
from tests.faults.proxy import Exchange, Fault, FaultProxy
from tests.faults.world import EVER

HOME, ELSEWHERE = "eu-west-1", "us-east-1"  # the region of all buckets, and another one
ROLE = "arn:aws:iam::123456789012:role/trainer"
AGENT = "169.254.170.23"  # of EKS Pod Identity, on every node
_HOSTS = tuple(
    f"*.{domain}.amazonaws.com"
    for domain in (HOME, ELSEWHERE, "s3", f"s3.{HOME}", f"s3.{ELSEWHERE}")
)
_KEYS = {
    "AccessKeyId": "ASIA1",
    "SecretAccessKey": "secret-1",
    "Expiration": "2999-01-01T00:00:00Z",
}
_STS_NAMESPACE = "https://sts.amazonaws.com/doc/2011-06-15/"

Action = Callable[[Exchange], bool]


def answer_xml(status: int, body: str, **headers: str) -> Action:
    def action(exchange: Exchange) -> bool:
        for _ in exchange.body():
            continue
        names = {"Content-Type": "text/xml"} | {k.replace("_", "-"): v for k, v in headers.items()}
        exchange.reply(status, list(names.items()), body.encode())
        return True

    return action


def s3_error(status: int, code: str, message: str = "", more: str = "", **headers: str) -> Action:
    """An error as S3 sends it."""
    body = (
        f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message>{more}</Error>"
    )
    return answer_xml(status, body, **headers)


def sts_error(status: int, code: str, message: str) -> Action:
    """An error as STS sends it."""
    error = f"<Error><Type>Sender</Type><Code>{code}</Code><Message>{message}</Message></Error>"
    return answer_xml(status, f"<ErrorResponse xmlns='{_STS_NAMESPACE}'>{error}</ErrorResponse>")


def agent_error(status: int, reason: str) -> Action:
    """An error as the agent of EKS Pod Identity sends it."""
    return answer_xml(status, reason)


class Aws:
    """The account: S3 with buckets in HOME, STS with one role, and the agent of a node.

    Attributes:
        s3: Its requests and faults, before it answers as S3.
        agent: The same of the agent.
        sts_faults: Answers of STS in place of keys, one for each request.
        sts_tokens: The tokens that STS was sent.
        token: What the kubelet has mounted into the pod.
        session: The session token that S3 accepts: the newest from STS or the agent.
        issued: How many there were.
        pays: Whether S3 answers only those who pay for the request.
        needs: Headers without which S3 creates no object.
    """

    def __init__(self, upstream: str, secret: Path, folder: Path, authority: Authority) -> None:
        pair = authority.issue("aws", "/CN=aws", hosts=_HOSTS)
        self.bundle, self.token = authority.certificate, folder / "token"
        self.token.write_text("token-of-the-pod")
        self.s3, self.agent = FaultProxy(upstream, secret), FaultProxy()
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(*pair)
        self.s3.socket = tls.wrap_socket(self.s3.socket, server_side=True)
        self.sts_faults: list[Action] = []
        self.sts_tokens: list[str] = []
        self.session, self.issued = "", 0
        self.pays = False
        self.needs: dict[str, str] = {}
        self.s3.faults = [Fault(self._answer, ".*", times=EVER)]
        self.agent.faults = [Fault(self._give, ".*", times=EVER)]

    def refuse(self, action: Action) -> None:
        """S3 does this from now on, with every request."""
        sts = Fault(self._answer, "POST", "^/$", times=EVER)
        self.s3.faults = [sts, Fault(action, "PUT|GET|HEAD|DELETE|POST", "^/.", times=EVER)]

    def expire(self) -> None:
        """The current session ends before its time."""
        self.session = "another"

    def _next(self) -> dict[str, str]:
        self.issued += 1
        self.session = f"session-{self.issued}"
        return _KEYS | {"AccessKeyId": f"ASIA{self.issued}", "Token": self.session}

    def _give(self, exchange: Exchange) -> bool:
        if {**exchange.headers}.get("Authorization") != self.token.read_text():
            return agent_error(400, "InvalidTokenException")(exchange)
        return answer_xml(200, json.dumps(self._next()))(exchange)

    def _answer(self, exchange: Exchange) -> bool:
        sent = exchange.sent = {name.lower(): value for name, value in exchange.sent.items()}
        if sent["host"].startswith("sts."):
            return self._assume(exchange)
        bucket, _, place = sent["host"].partition(".s3.")
        if place != f"{HOME}.amazonaws.com":
            where = (
                f"<Bucket>{bucket}</Bucket><Endpoint>{bucket}.s3.{HOME}.amazonaws.com</Endpoint>"
            )
            moved = s3_error(301, "PermanentRedirect", "moved", where, x_amz_bucket_region=HOME)
            return moved(exchange)
        if f"/{HOME}/s3/" not in sent["authorization"]:
            region = f"<Region>{HOME}</Region>"
            message = f"The region is wrong; expecting '{HOME}'"
            return s3_error(400, "AuthorizationHeaderMalformed", message, region)(exchange)
        if self.session and sent.get("x-amz-security-token") != self.session:
            return s3_error(400, "ExpiredToken", "The provided token has expired.")(exchange)
        if self.pays and sent.get("x-amz-request-payer") != "requester":
            return s3_error(403, "AccessDenied", "Access Denied")(exchange)
        is_create = exchange.command == "PUT" and "uploadId" not in exchange.target
        is_create = is_create or exchange.target.endswith("?uploads")
        if is_create and not self.needs.items() <= sent.items():
            return s3_error(403, "AccessDenied", "explicit deny")(exchange)
        exchange.target = f"/{bucket}{exchange.target}"
        sent["host"] = exchange.server.upstream
        exchange.sign_again("x-amz-server-side-encryption")  # Swift does not know it
        return False

    def _assume(self, exchange: Exchange) -> bool:
        form = parse_qs(b"".join(exchange.body()).decode())
        self.sts_tokens.append(form["WebIdentityToken"][0])
        if self.sts_faults:
            return self.sts_faults.pop(0)(exchange)
        assert form["Action"] == ["AssumeRoleWithWebIdentity"] and form["RoleArn"] == [ROLE]
        keys = self._next()
        keys["SessionToken"] = keys.pop("Token")
        listed = "".join(f"<{name}>{value}</{name}>" for name, value in keys.items())
        user = f"<Arn>{ROLE}/s</Arn><AssumedRoleId>A:s</AssumedRoleId>"
        result = f"<Credentials>{listed}</Credentials><AssumedRoleUser>{user}</AssumedRoleUser>"
        name = "AssumeRoleWithWebIdentity"
        body = f"<{name}Result>{result}</{name}Result>"
        xml = f"<{name}Response xmlns='{_STS_NAMESPACE}'>{body}</{name}Response>"
        return answer_xml(200, xml)(exchange)


@contextmanager
def running(
    upstream: str,
    secret: Path,
    folder: Path,
    authority: Authority,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Aws]:
    """Start the account, and resolve the names of AWS to it."""
    aws = Aws(upstream, secret, folder, authority)
    resolve = socket.getaddrinfo

    def getaddrinfo(host: str, port: int, *more: int, **options: int) -> object:
        if str(host).endswith(".amazonaws.com"):
            host, port = "127.0.0.1", aws.s3.server_address[1]
        elif host == AGENT:
            host, port = "127.0.0.1", aws.agent.server_address[1]
        return resolve(host, port, *more, **options)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    monkeypatch.setenv("AWS_CA_BUNDLE", str(aws.bundle))
    with aws.s3, aws.agent:
        yield aws
