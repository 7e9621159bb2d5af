"""What the environment says about writing: encryption, class, tags, rate, addressing, authority."""

import os
import shutil
import ssl
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qs

import pytest

from kfp_tfjob.common.errors import ConfigurationError
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.credentials import SecretVolume
from kfp_tfjob.storage.retry import Patience
from kfp_tfjob.storage.store import PART, Store
from kfp_tfjob.uploader import pull, push
from tests.cluster.pki import Authority
from tests.faults.proxy import Exchange, Fault, FaultProxy, accepts_token
from tests.faults.world import EVER, World

HEADERS = {
    "x-amz-server-side-encryption": "aws:kms",
    "x-amz-server-side-encryption-aws-kms-key-id": "key-1",
}


@pytest.mark.parametrize("way", ["direct", "proxied"])
def test_encryption_goes_with_every_object(
    way: str, proxy: FaultProxy, s3, base: S3Address, tmp_path: Path, monkeypatch
) -> None:
    """No server here has a KMS, so the proxy looks at the headers and keeps them to itself."""
    seen: list[dict[str, str]] = []

    def look(exchange: Exchange) -> bool:
        sent = {name.lower(): value for name, value in exchange.sent.items()}
        if "partNumber" not in exchange.target:
            seen.append({name: sent.get(name, "") for name in HEADERS})
        exchange.sign_again(*HEADERS)
        return False

    proxy.faults = [
        Fault(look, "PUT", times=EVER),
        Fault(look, "POST", r"\?uploads", times=EVER),
    ]
    monkeypatch.setenv("STORAGE_ENCRYPTION", "aws:kms:key-1")
    endpoint = proxy.endpoint
    if way == "proxied":
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("http_proxy", proxy.endpoint)
        endpoint = s3.endpoint
    for name, size in (("small", 10), ("middle", 100_000), ("large", PART + 1)):
        (tmp_path / name).write_bytes(os.urandom(size))
    push(Store(endpoint), tmp_path, base, "code")
    assert len(seen) >= 4
    assert all(headers == HEADERS for headers in seen)
    monkeypatch.delenv("http_proxy", raising=False)
    pull(Store(s3.endpoint), base, tmp_path / "copy")


@pytest.mark.parametrize("world", [("s3", "proxied")], indirect=True)
def test_no_file_is_completely_in_memory_on_the_way_through_a_proxy(world: World) -> None:
    (world.folder / "file").write_bytes(os.urandom(PART))
    store = Store(world.endpoint, secret=SecretVolume(world.secret))
    tracemalloc.start()
    push(store, world.folder, world.base, "code")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < PART / 2
    pull(world.truth, world.base, world.folder / "copy")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("STORAGE_ENCRYPTION", "AES512"),
        ("STORAGE_ADDRESSING", "host"),
        ("STORAGE_REQUEST_PAYER", "me"),
    ],
)
def test_a_wrong_option_is_refused(store, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError, match=name):
        Store("http://127.0.0.1:1")


@pytest.mark.parametrize(
    ("endpoint", "addressing", "host", "prefix"),
    [
        ("", "", "bucket.s3.eu-central-1.amazonaws.com", "/"),
        ("", "path", "s3.eu-central-1.amazonaws.com", "/bucket/"),
        ("https://store.example:8443", "", "store.example:8443", "/bucket/"),
        ("https://store.example/s3", "", "store.example", "/s3/bucket/"),
        ("https://store.example", "virtual", "bucket.store.example", "/"),
        ("http://[::1]:9000", "", "[::1]:9000", "/bucket/"),
    ],
)
def test_where_a_bucket_is(store, monkeypatch, endpoint, addressing, host, prefix):
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    monkeypatch.setenv("STORAGE_ADDRESSING", addressing)
    secret = SecretVolume(Path("/nonexistent"))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    route = Store(endpoint, "eu-central-1", secret).session.fast_put._find_route("bucket")
    assert (route.host, route.prefix) == (host, prefix)
    assert route.secure is not endpoint.startswith("http://")


def test_a_store_with_a_certificate_of_its_own(s3, base, tmp_path, monkeypatch):
    authority = Authority(tmp_path / "pki")
    certificate, key = authority.issue("store", "/CN=localhost", ("127.0.0.1",))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    front = FaultProxy(s3.endpoint)
    front.socket = context.wrap_socket(front.socket, server_side=True)
    with front:
        shutil.copytree(s3.secret, tmp_path / "secret")
        endpoint = front.endpoint.replace("http:", "https:")
        (tmp_path / "secret" / "AWS_ENDPOINT_URL").write_text(endpoint)
        secret = SecretVolume(tmp_path / "secret")
        with pytest.raises(ConfigurationError, match="AWS_CA_BUNDLE"):
            Store(secret=secret, patience=Patience(5)).write(base / "x", b"x")
        monkeypatch.setenv("AWS_CA_BUNDLE", str(authority.certificate))
        store = Store(secret=secret)
        (tmp_path / "folder").mkdir()
        for name, size in (("small", 10), ("large", 2 * PART + 1)):
            (tmp_path / "folder" / name).write_bytes(os.urandom(size))
        push(store, tmp_path / "folder", base, "code")
        pull(store, base, tmp_path / "copy")
        assert (tmp_path / "copy/large").read_bytes() == (tmp_path / "folder/large").read_bytes()


def token_service(keys: dict[str, str]) -> Callable[[Exchange], bool]:
    """STS as far as a pod with a service account needs it: the token of the file becomes keys."""

    def answer(exchange: Exchange) -> bool:
        form = parse_qs(b"".join(exchange.body()).decode())
        name = "AssumeRoleWithWebIdentity"
        until = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 3600))
        data = (
            f"<{name}Response xmlns='https://sts.amazonaws.com/doc/2011-06-15/'><{name}Result>"
            f"<Credentials><AccessKeyId>{keys['AWS_ACCESS_KEY_ID']}</AccessKeyId>"
            f"<SecretAccessKey>{keys['AWS_SECRET_ACCESS_KEY']}</SecretAccessKey>"
            f"<SessionToken>{form['WebIdentityToken'][0]}</SessionToken>"
            f"<Expiration>{until}</Expiration></Credentials>"
            f"</{name}Result></{name}Response>"
        )
        exchange.reply(200, [], data.encode())
        return True

    return answer


def test_a_web_identity_is_renewed(proxy, s3, base, tmp_path, monkeypatch):
    """IRSA: no static keys; the credentials of the role expire while the process runs."""
    token = tmp_path / "token"
    token.write_text("token-one")
    service = FaultProxy()
    keys = {path.name: path.read_text() for path in s3.secret.iterdir()}
    service.faults = [Fault(token_service(keys), "POST", times=EVER)]
    for name, value in {
        "AWS_WEB_IDENTITY_TOKEN_FILE": str(token),
        "AWS_ROLE_ARN": "arn:aws:iam::123456789012:role/training",
        "AWS_ENDPOINT_URL_STS": service.endpoint,
        "STORAGE_SECRET_DIR": str(tmp_path / "none"),
        "AWS_CONFIG_FILE": os.devnull,
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    store = Store(proxy.endpoint, patience=Patience(10))
    with service:
        proxy.faults = [Fault(accepts_token("token-one"), ".*", times=EVER)]
        store.write(base / "a", b"a")
        token.write_text("token-two")
        proxy.faults = [Fault(accepts_token("token-two"), ".*", times=EVER)]
        store.write(base / "b", b"b")
        assert [item.address.name for item in store.list(base)] == ["a", "b"]

        def refuse(exchange: Exchange) -> bool:
            token.write_text(f"token-{len(proxy.seen)}")
            return exchange.answer(403, "AccessDenied")

        # Other keys are always available, and the keys are not the cause. HEAD is tried again after
        # a GET that is not refused, and all of that once more with other keys.
        proxy.faults = [Fault(refuse, "HEAD", times=EVER)]
        with pytest.raises(ConfigurationError):
            store.head(base / "a")
        assert len(proxy.of("HEAD")) == 4
