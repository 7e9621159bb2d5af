"""The names of botocore and boto3 that this project uses though nobody promises to keep them.

The pin in pyproject.toml keeps their minor version. To raise it, run these tests and those of the
uploader, `tests/local/test_store.py` and `test_uploader_faults.py`; each line here says what would
break.
"""

import inspect
import tomllib
from collections.abc import Callable
from datetime import UTC, datetime
from http.client import HTTPResponse
from importlib.metadata import version
from pathlib import Path
from typing import Any

import boto3.session
import botocore.session
import pytest
from botocore import awsrequest, httpsession, loaders, utils
from botocore.credentials import Credentials, ReadOnlyCredentials, RefreshableCredentials

from kfp_tfjob.storage import reply_deadline
from kfp_tfjob.storage.credentials import SecretVolume
from kfp_tfjob.storage.retry import Patience
from kfp_tfjob.storage.s3_session import S3Session


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> S3Session:
    """A session with keys from a Secret; nothing is sent."""
    folder = tmp_path_factory.mktemp("secret")
    (folder / "AWS_ACCESS_KEY_ID").write_text("key")
    (folder / "AWS_SECRET_ACCESS_KEY").write_text("secret")
    return S3Session("http://127.0.0.1:1", "us-east-1", SecretVolume(folder), Patience(1))


def _pools(session: S3Session) -> bool:
    http = session.client._endpoint.http_session
    return http._manager.pool_classes_by_scheme["https"] is reply_deadline._HttpsPool


def _response(session: S3Session) -> bool:
    # urllib3 and http.client: a connection makes its replies with this class, from `fp`.
    assert awsrequest.AWSHTTPConnection.response_class is HTTPResponse
    assert "self.fp = sock.makefile" in inspect.getsource(HTTPResponse.__init__)
    pools = (awsrequest.AWSHTTPConnectionPool, awsrequest.AWSHTTPSConnectionPool)
    return [it.ConnectionCls for it in pools] == [
        awsrequest.AWSHTTPConnection,
        awsrequest.AWSHTTPSConnection,
    ]


def _keys(session: S3Session) -> bool:
    found = session.client._get_credentials()
    return found.get_frozen_credentials() == ReadOnlyCredentials("key", "secret", "", None)


def _set_keys(session: S3Session) -> bool:
    session = botocore.session.get_session()
    session._credentials = mine = Credentials("a", "b")
    return (
        boto3.session.Session(botocore_session=session).client("s3", "us-east-1")._get_credentials()
        is mine
    )


def _renewal(session: S3Session) -> bool:
    keys = session.client._get_credentials()
    asked = []
    refresh, keys._refresh_using = keys._refresh_using, lambda: asked.append(1) or refresh()
    keys._expiry_time = datetime.now(UTC)
    keys.get_frozen_credentials()
    keys._refresh_using = refresh
    assert isinstance(keys, RefreshableCredentials)
    return asked == [1]


def _cached_renewal(session: S3Session) -> bool:
    from botocore.credentials import CachedCredentialFetcher

    return "self._cache = cache" in inspect.getsource(CachedCredentialFetcher.__init__)


def _redirects(session: S3Session) -> bool:
    source = inspect.getsource(utils.S3RegionRedirectorv2.redirect_from_error)
    return "'s3_redirect'" in source and "redirect_ctx.get('redirected')" in source


def _before_send(session: S3Session) -> bool:
    seen: list[Any] = []

    def stop(request: Any, **_: Any) -> None:
        seen.append(request)
        raise RuntimeError("enough")

    events = session.client.meta.events
    events.register("before-send.s3", stop)
    try:
        with pytest.raises(RuntimeError, match="enough"):
            session.client.delete_object(Bucket="b", Key="a b")
    finally:
        events.unregister("before-send.s3", stop)
    (request,) = seen
    names = {"Authorization", "X-Amz-Date"}
    return request.url.endswith("/b/a%20b") and names <= set(request.headers)


def _descriptions(session: S3Session) -> bool:
    session = botocore.session.get_session()
    loader, asked = loaders.create_loader(), []
    load = loader.load_service_model
    loader.load_service_model = lambda *words, **named: (
        asked.append(words[0]) or load(*words, **named)
    )
    made = boto3.session.Session(botocore_session=session)
    session.register_component("data_loader", loader)
    made.client("s3", "us-east-1")
    return "s3" in asked


def _route(session: S3Session) -> bool:
    url = session.client.generate_presigned_url("put_object", {"Bucket": "b", "Key": "k"})
    return url.startswith("http://127.0.0.1:1/b/k?")


def _functions(session: S3Session) -> bool:
    assert Path(httpsession.where()).is_file()
    assert utils.get_environ_proxies("http://127.0.0.1:1") is not None
    return utils.is_valid_endpoint_url("http://host:1") and not utils.is_valid_ipv6_endpoint_url(
        "http://host:1"
    )


RELIED_ON: dict[str, tuple[Callable[[S3Session], bool], str]] = {
    "client._endpoint.http_session._pool_classes_by_scheme": (
        _pools,
        "storage/reply_deadline.py: replies have no deadline, so a store that sends single bytes"
        " holds a step indefinitely",
    ),
    "AWSHTTP(S)Connection(Pool), response_class, ConnectionCls, HTTPResponse.fp": (
        _response,
        "storage/reply_deadline.py: the same deadline",
    ),
    "client._get_credentials()": (
        _keys,
        "storage/fast_put.py: a PUT is signed with no keys; storage/s3_session.py: keys are not"
        " renewed",
    ),
    "Session._credentials": (
        _set_keys,
        "storage/credentials.py: the mounted Secret is not used, and a rotation is not noticed",
    ),
    "RefreshableCredentials._expiry_time and _refresh_using": (
        _renewal,
        "storage/s3_session.py: keys that the store has refused are used until they expire",
    ),
    "CachedCredentialFetcher._cache": (
        _cached_renewal,
        "storage/s3_session.py: the refused keys of an assumed role come back from the cache",
    ),
    "request_dict['context']['s3_redirect']['redirected']": (
        _redirects,
        "storage/s3_session.py: a redirect of HeadBucket recurses until the stack overflows",
    ),
    "the event before-send.s3, with the request's url and headers": (
        _before_send,
        "storage/fast_put.py: requests are not signed again if the clock is wrong",
    ),
    "the component data_loader, replaced after boto3 has extended it": (
        _descriptions,
        "storage/s3_session.py: every store reads boto3's description of S3 again (0.2 s)",
    ),
    "generate_presigned_url as the address of a bucket": (
        _route,
        "storage/fast_put.py: a PUT is sent to the wrong host",
    ),
    "httpsession.where, utils.get_environ_proxies, utils.is_valid_endpoint_url": (
        _functions,
        "storage/fast_put.py and store.py: certificates, proxies, and the check of an address",
    ),
}


@pytest.mark.parametrize("name", RELIED_ON)
def test_botocore_still_has_what_the_store_relies_on(session: S3Session, name: str) -> None:
    holds, breaks = RELIED_ON[name]
    try:
        found = holds(session)
    except Exception as error:
        pytest.fail(f"botocore {version('botocore')} has changed {name}: {error!r}. {breaks}")
    assert found, f"botocore {version('botocore')} has changed {name}. {breaks}"


def test_the_minor_version_is_pinned(repository: Path) -> None:
    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    for package in ("boto3", "botocore"):
        major, minor = version(package).split(".")[:2]
        assert f"{package}>={major}.{minor},<{major}.{int(minor) + 1}" in project["dependencies"]


def test_boto3_makes_the_client(session: S3Session) -> None:
    # boto3 adds these to the clients that it makes; botocore alone does not.
    assert hasattr(session.client, "upload_fileobj")
    assert "Boto3/" in session.client.meta.config.user_agent
