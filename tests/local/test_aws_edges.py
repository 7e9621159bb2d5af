"""AWS's own ways to give keys and to refuse: each ends in success, or in one message.

Every edge is tried with the store of the steps and with the uploader's sidecar.
"""

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from kfp_tfjob.common.errors import StepError
from kfp_tfjob.pipelines.local.s3_server import Server
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.credentials import MOUNT_VARIABLE
from kfp_tfjob.storage.layout import RunLayout
from kfp_tfjob.storage.retry import Patience
from kfp_tfjob.storage.store import PART, Store
from kfp_tfjob.uploader.local_files import scan
from kfp_tfjob.uploader.mirror import Mirror
from kfp_tfjob.uploader.ownership import Ownership
from tests.cluster.pki import Authority
from tests.environments import ROOT
from tests.faults.proxy import Fault, refuse
from tests.local import aws as account
from tests.local.aws import AGENT, ELSEWHERE, HOME, ROLE, Aws, agent_error, s3_error, sts_error

SHORT = Patience(seconds=0.3, first=0.05, longest=0.1, silence=5)
LONG = Patience(seconds=60, first=0.05, longest=0.1, silence=60)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("pki") / "pki")


@pytest.fixture
def aws(
    s3: Server,
    authority: Authority,
    base: S3Address,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Aws]:
    for name in [name for name in os.environ if name.startswith(("AWS_", "STORAGE_"))]:
        monkeypatch.delenv(name)
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(MOUNT_VARIABLE, str(tmp_path / "no-secret"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "no-config"))
    monkeypatch.setenv("AWS_REGION", HOME)
    with account.running(s3.endpoint, s3.secret, tmp_path, authority, monkeypatch) as aws:
        yield aws


def use_store(base: S3Address, folder: Path, patience: Patience) -> str:
    """Read, write and send a folder as steps do; return the message, if that fails."""
    try:
        store = Store(patience=patience)
        store.write(base / "x", b"content")
        store.create(base / "once", b"content")
        assert store.read(base / "x") == b"content"
        assert store.has(base / "x") and not store.has(base / "y")
        assert {item.address.name for item in store.list(base)} == {"x", "once"}
        store.delete(base / "x")
        for file in folder.iterdir():
            store.verify(base / file.name, store.send(file, base / file.name, file.name))
    except StepError as error:
        (problem,) = error.as_problems
        assert problem.received and problem.expected and problem.fix
        return str(error)
    return ""


def use_uploader(base: S3Address, folder: Path, patience: Patience) -> str:
    """Claim a run and store a folder as the sidecar does; return its message, if that fails."""
    run = RunLayout(base / "runs" / "r")
    try:
        store = Store(patience=patience)
        owner = Ownership(store, run, "r", 1, None)
        store.probe(run.base)
        owner.claim()
        mirror = Mirror(store, folder, run, "r", 1, check_owner=owner.check)
        current = scan(folder)
        mirror.store(current, current, everything=True)
    except StepError as error:
        return str(error)
    assert mirror.missing(current) == [] or mirror.trouble
    return "; ".join(mirror.trouble.values())


CLIENTS = {"step": use_store, "uploader": use_uploader}


Arrange = Callable[[Aws, pytest.MonkeyPatch], object]


@dataclass(frozen=True)
class Edge:
    """What AWS does, and what the message says; nothing if it ends in success.

    Attributes:
        arrange: Prepares the account and the environment of the process.
        parts: Parts of the message.
        size: Bytes of the file that is stored.
    """

    arrange: Arrange
    parts: tuple[str, ...] = ()
    size: int = 7


EDGES: dict[str, Edge] = {}


def edge(
    name: str, *parts: str, size: int = 7
) -> Callable[[Callable[..., object]], Callable[..., object]]:
    def add(arrange: Callable[..., object]) -> Callable[..., object]:
        EDGES[name] = Edge(arrange, parts, size)
        return arrange

    return add


def with_keys(patch: pytest.MonkeyPatch, **more: str) -> None:
    keys = {"AWS_ACCESS_KEY_ID": "AKIA", "AWS_SECRET_ACCESS_KEY": "secret"}
    for name, value in (keys | more).items():
        patch.setenv(name, value)


def with_irsa(aws: Aws, patch: pytest.MonkeyPatch) -> None:
    patch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(aws.token))
    patch.setenv("AWS_ROLE_ARN", ROLE)


def with_pod_identity(aws: Aws, patch: pytest.MonkeyPatch) -> None:
    patch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"http://{AGENT}/v1/credentials")
    patch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(aws.token))
    patch.setattr("botocore.utils.ContainerMetadataFetcher.SLEEP_TIME", 0)


def refused(action: account.Action) -> Arrange:
    """S3 answers every request so."""

    def arrange(aws: Aws, patch: pytest.MonkeyPatch) -> None:
        with_keys(patch)
        aws.refuse(action)

    return arrange


def passing(action: account.Action) -> Arrange:
    """S3 answers one of each kind of request so."""

    def arrange(aws: Aws, patch: pytest.MonkeyPatch) -> None:
        with_keys(patch)
        methods = ("PUT", "GET", "HEAD", "DELETE", "POST")
        aws.s3.faults = [*(Fault(action, name) for name in methods), *aws.s3.faults]

    return arrange


# -- the role of the pod's service account ---------------------------------------------------------

edge("IRSA")(with_irsa)


@edge("IRSA; storage_endpoint is a host of AWS")
def irsa_with_endpoint(aws: Aws, patch: pytest.MonkeyPatch) -> None:
    with_irsa(aws, patch)
    patch.setenv("AWS_ENDPOINT_URL", f"https://s3.{HOME}.amazonaws.com")  # as replicas have it
    patch.setenv("STORAGE_ADDRESSING", "virtual")


@edge("IRSA; STS: Throttling, 503 or IDPCommunicationError")
def irsa_throttled(aws: Aws, patch: pytest.MonkeyPatch) -> None:
    with_irsa(aws, patch)
    aws.sts_faults = [
        sts_error(400, "Throttling", "Rate exceeded"),
        sts_error(503, "ServiceUnavailable", "busy"),
        sts_error(400, "IDPCommunicationError", "Couldn't retrieve verification key"),
    ]


def sts_refuses(status: int, code: str, message: str) -> Arrange:
    def arrange(aws: Aws, patch: pytest.MonkeyPatch) -> None:
        with_irsa(aws, patch)
        aws.sts_faults = [sts_error(status, code, message)] * 1000

    return arrange


NOT_AUTHORIZED = "Not authorized to perform sts:AssumeRoleWithWebIdentity"
STS = f"AWS STS gives no keys for the role {ROLE}"
edge("IRSA; STS: AccessDenied", STS, NOT_AUTHORIZED, "trust policy")(
    sts_refuses(403, "AccessDenied", NOT_AUTHORIZED)
)
edge("IRSA; STS: InvalidIdentityToken", STS, "No OpenIDConnect provider", "OIDC provider in IAM")(
    sts_refuses(400, "InvalidIdentityToken", "No OpenIDConnect provider found in your account")
)
edge("IRSA; STS: ExpiredTokenException", STS, "Token expired", "delete the pod")(
    sts_refuses(400, "ExpiredTokenException", "Token expired")
)
edge("IRSA; STS: RegionDisabledException", STS, "not activated", "activate STS")(
    sts_refuses(403, "RegionDisabledException", "STS is not activated in this region")
)


@edge("IRSA; STS cannot be reached", "AWS STS gave no keys in time", "127.0.0.1:9", "reached")
def sts_away(aws: Aws, patch: pytest.MonkeyPatch) -> None:
    with_irsa(aws, patch)
    patch.setenv("AWS_ENDPOINT_URL_STS", "http://127.0.0.1:9")


@edge("IRSA; no file with the token", "cannot be read", "AWS_WEB_IDENTITY_TOKEN_FILE", "unset")
def irsa_without_token(aws: Aws, patch: pytest.MonkeyPatch) -> None:
    with_irsa(aws, patch)
    aws.token.unlink()


@edge("IRSA; no AWS_ROLE_ARN", "no role", "AWS_ROLE_ARN", "eks.amazonaws.com/role-arn")
def irsa_without_role(aws: Aws, patch: pytest.MonkeyPatch) -> None:
    with_irsa(aws, patch)
    patch.delenv("AWS_ROLE_ARN")


edge("Pod Identity")(with_pod_identity)


@edge("Pod Identity; the agent answers late")
def agent_late(aws: Aws, patch: pytest.MonkeyPatch) -> None:
    with_pod_identity(aws, patch)
    aws.agent.faults.insert(0, Fault(refuse(500, "Away"), "GET", times=4))


NO_ASSOCIATION = "(ResourceNotFoundException): No association"


@edge(
    "Pod Identity; the agent: 404, no association",
    "the agent of EKS Pod Identity gave no keys in time",
    NO_ASSOCIATION,
    "associate a role",
)
def no_association(aws: Aws, patch: pytest.MonkeyPatch) -> None:
    with_pod_identity(aws, patch)
    aws.agent.faults[0].action = agent_error(404, NO_ASSOCIATION)


@edge(
    "Pod Identity; no file with the token",
    "cannot be read",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
    "unset",
)
def no_agent_token(aws: Aws, patch: pytest.MonkeyPatch) -> None:
    with_pod_identity(aws, patch)
    aws.token.unlink()


# -- expired keys, and a clock ---------------------------------------------------------------------


edge("ExpiredToken; fixed keys", "session token has expired", "ExpiredToken", "new keys")(
    refused(s3_error(400, "ExpiredToken", "The provided token has expired."))
)
edge("RequestTimeTooSkewed", "this machine's clock", "RequestTimeTooSkewed", "NTP")(
    refused(s3_error(403, "RequestTimeTooSkewed", "The difference is too large."))
)

# -- throttling ------------------------------------------------------------------------------------

for _status, _code in (
    (503, "SlowDown"),
    (429, "TooManyRequests"),
    (400, "RequestLimitExceeded"),
    (400, "ThrottlingException"),
):
    _answer = s3_error(_status, _code, "Please reduce your request rate.")
    edge(f"{_status} {_code}", size=PART + 1 if _status == 503 else 7)(passing(_answer))
    _message = f"HTTP {_status} {_code}: Please reduce"
    edge(f"{_status} {_code}, for too long", "answered with an error", _message, "again")(
        refused(_answer)
    )

# -- KMS -------------------------------------------------------------------------------------------


def kms(action: account.Action | None) -> Arrange:
    def arrange(aws: Aws, patch: pytest.MonkeyPatch) -> None:
        with_keys(patch, STORAGE_ENCRYPTION="aws:kms:key-1")
        if action:
            aws.refuse(action)
        else:
            aws.needs = {
                "x-amz-server-side-encryption": "aws:kms",
                "x-amz-server-side-encryption-aws-kms-key-id": "key-1",
            }

    return arrange


NOT_KMS = "User: U is not authorized to perform: kms:GenerateDataKey on resource: K"
edge("STORAGE_ENCRYPTION; a policy that requires it", size=PART + 1)(kms(None))
edge("AccessDenied for kms:GenerateDataKey", "do not allow", NOT_KMS, "allows kms:GenerateDataKey")(
    kms(s3_error(403, "AccessDenied", NOT_KMS))
)
edge("KMS.DisabledException", "KMS key cannot be used", "key-1 is disabled", "STORAGE_ENCRYPTION")(
    kms(s3_error(400, "KMS.DisabledException", "key-1 is disabled"))
)
edge("KMS.NotFoundException", "KMS key cannot be used", "key-1 does not exist", "correct")(
    kms(s3_error(400, "KMS.NotFoundException", "key-1 does not exist"))
)

# -- another region --------------------------------------------------------------------------------


@edge("301 with x-amz-bucket-region", size=PART + 1)
def other_region(aws: Aws, patch: pytest.MonkeyPatch) -> None:
    with_keys(patch, AWS_REGION=ELSEWHERE)


@edge("307 with Location")
def temporarily_elsewhere(aws: Aws, patch: pytest.MonkeyPatch) -> None:
    with_keys(patch)
    where = {"x-amz-bucket-region": HOME, "Location": f"https://s3.{HOME}.amazonaws.com/"}
    passing(s3_error(307, "TemporaryRedirect", "", **where))(aws, patch)


@edge("AuthorizationHeaderMalformed with a region; storage_endpoint is a host of AWS")
def endpoint_without_region(aws: Aws, patch: pytest.MonkeyPatch) -> None:
    with_keys(patch, AWS_REGION=ELSEWHERE, STORAGE_ADDRESSING="virtual")
    patch.setenv("AWS_ENDPOINT_URL", f"https://s3.{HOME}.amazonaws.com")


@edge(
    "301; storage_endpoint is a host of another region",
    f"is in the region {HOME}",
    "PermanentRedirect",
    f"set storage_region to {HOME}, and leave storage_endpoint empty",
)
def endpoint_of_other_region(aws: Aws, patch: pytest.MonkeyPatch) -> None:
    with_keys(patch, AWS_REGION=ELSEWHERE, STORAGE_ADDRESSING="virtual")
    patch.setenv("AWS_ENDPOINT_URL", f"https://s3.{ELSEWHERE}.amazonaws.com")


# -- a bucket whose requester pays -----------------------------------------------------------------


@edge("requester pays; STORAGE_REQUEST_PAYER", size=PART + 1)
def pays(aws: Aws, patch: pytest.MonkeyPatch) -> None:
    with_keys(patch, STORAGE_REQUEST_PAYER="requester")
    aws.pays = True


@edge("requester pays", "do not allow", "AccessDenied: Access Denied", "STORAGE_REQUEST_PAYER")
def does_not_pay(aws: Aws, patch: pytest.MonkeyPatch) -> None:
    with_keys(patch)
    aws.pays = True


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("name", EDGES)
def test_an_edge_ends_in_success_or_in_one_message(
    aws: Aws,
    base: S3Address,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    name: str,
    client: str,
) -> None:
    EDGES[name].arrange(aws, monkeypatch)
    folder = tmp_path / "output"
    folder.mkdir()
    (folder / "weights").write_bytes(os.urandom(EDGES[name].size))
    patience = SHORT if EDGES[name].parts else LONG
    message = CLIENTS[client](base, folder, patience)
    if not EDGES[name].parts:
        assert message == ""
    for part in EDGES[name].parts:
        assert part in message
    assert not [record for record in caplog.records if record.exc_info]  # no traceback in the log
    assert message.count("Fix: ") == bool(EDGES[name].parts)


@pytest.mark.parametrize("give_keys", [with_irsa, with_pod_identity])
def test_keys_that_expire_early_are_fetched_again_with_the_new_token(
    aws: Aws, base: S3Address, monkeypatch: pytest.MonkeyPatch, give_keys: Callable[..., None]
) -> None:
    give_keys(aws, monkeypatch)
    store = Store(patience=LONG)
    store.write(base / "x", b"1")
    assert aws.issued == 1
    aws.token.write_text("token-of-the-next-day")
    for call in (
        lambda: store.write(base / "x", b"2"),
        lambda: store.has(base / "x"),
        lambda: store.read(base / "x"),
    ):
        issued = aws.issued
        aws.expire()
        call()
        assert aws.issued == issued + 1
    assert aws.sts_tokens[1:] == ["token-of-the-next-day"] * len(aws.sts_tokens[1:])


def test_the_table_of_edges_names_what_was_tried() -> None:
    page = (ROOT / "docs" / "support.md").read_text()
    table = page.partition("## AWS")[2].partition("\n## ")[0]
    codes = {
        code for name in EDGES for code in re.findall(r"\b\d{3}\b|[A-Z]\w+[a-z][A-Z]\w+", name)
    }
    assert len(codes) > 10
    assert {code for code in codes if code not in table} == set()
