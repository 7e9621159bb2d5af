"""A session with one store: its credentials, and calls that are retried and explained.

Everything else in this package calls boto3 through `S3Session.call`, so each call has the same time
limit, fetches rotated keys once they are refused, and fails with an error of this project. Called
by `store.py`, `parts.py` and `probe.py`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import cache
from threading import Lock
from typing import Any, TypeVar
from urllib.parse import urlsplit

import boto3.session
import botocore.session
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    PartialCredentialsError,
    ProfileNotFound,
)
from botocore.loaders import Loader, create_loader

from kfp_tfjob.common.errors import ConfigurationError, Problem, StoreUnavailableError

from .address import S3Address
from .aws_chain_errors import explain_chain, explain_waiting, is_aws
from .body import Body, Digests
from .credentials import SecretVolume
from .fast_put import FastPut, Reply
from .retry import Patience
from .s3_errors import (
    RENEWABLE,
    WORDLESS,
    code_of,
    damaged,
    explain,
    explain_unavailable,
    is_proxy_page,
    transient,
)
from .store_settings import StoreSettings

log = logging.getLogger(__name__)
# It logs a traceback each time that keys cannot be fetched; our own message follows.
logging.getLogger("botocore.credentials").setLevel(logging.ERROR)
Result = TypeVar("Result")

CONNECT_SECONDS = 5  # a store in the same network answers in milliseconds; a retry follows
LANES = 8  # parts of large objects in flight; each holds a connection and a chunk of memory
# A token's file, an agent's reply and a variable are read by botocore without errors of its own.
_CHAIN_ERRORS = (BotoCoreError, ClientError, OSError, ValueError, KeyError)


class S3Session:
    """One endpoint, used with one set of credentials.

    Args:
        endpoint: URL; empty for AWS.
        region: Region.
        secret: The mounted Secret; if it is empty, the AWS chain applies.
        patience: How long a call is retried.

    Attributes:
        client: The boto3 client.
        fast_put: Sends bodies.
        lanes: The threads that move parts of large objects.
        ignores_checksums: Whether the store ignores CRC64NVME, so that bodies need their MD5 too.
        tags_are_md5: Whether the entity tag of an object sent in one request is its MD5.

    Raises:
        ConfigurationError: The profile in AWS_PROFILE does not exist, or half of the credentials is
            missing.
        StoreUnavailableError: The AWS chain could not fetch credentials in time.
    """

    def __init__(
        self, endpoint: str, region: str, secret: SecretVolume, patience: Patience
    ) -> None:
        self.endpoint, self.patience = endpoint, patience
        self.settings = StoreSettings.read(secret)
        self.ignores_checksums = self.tags_are_md5 = False  # until it is probed
        self._renewing = Lock()
        session = botocore.session.get_session()
        session.set_default_client_config(_sts_config(endpoint, patience))
        if not session.get_config_variable("region"):
            # botocore does not read AWS_REGION, and the STS of us-east-1 is not for all regions.
            session.set_config_variable("region", region)
        secret.install(session)
        try:
            session.get_scoped_config()
            # On a new node, the agent that issues them may not answer yet.
            patience.run("fetch AWS credentials", session.get_credentials, transient)
        except ProfileNotFound as error:
            raise ConfigurationError(
                Problem(
                    "the AWS profile cannot be found",
                    received=str(error),
                    expected="a profile of the AWS configuration of this machine",
                    fix="correct AWS_PROFILE, or unset it",
                )
            ) from None
        except PartialCredentialsError as error:
            raise ConfigurationError(
                Problem(
                    "only half of the AWS credentials is set",
                    received=str(error),
                    expected="AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
                    fix="set both of them, or neither",
                    name="no-credentials",
                )
            ) from None
        except StoreUnavailableError as error:
            raise explain_waiting(error) from error.__cause__
        except _CHAIN_ERRORS as error:
            raise explain_chain(error, "fetch AWS credentials") from error
        with_boto3 = boto3.session.Session(botocore_session=session)
        session.register_component("data_loader", _service_loader())  # after boto3 has set its own
        self.client = with_boto3.client(
            "s3",
            endpoint_url=endpoint or None,
            region_name=region,
            verify=self.settings.ca_bundle or None,
            config=Config(
                signature_version="s3v4",
                connect_timeout=CONNECT_SECONDS,
                read_timeout=patience.silence,
                ignore_configured_endpoint_urls=False,
                max_pool_connections=64,
                retries={"total_max_attempts": 1},  # our own retries have a deadline
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
                s3={
                    "addressing_style": self.settings.addressing
                    or ("path" if endpoint else "auto"),
                    "payload_signing_enabled": False,  # bodies have a CRC, and SHA-256 is slow
                },
            ),
        )
        self.client.meta.events.register_first("needs-retry.s3.HeadBucket", _disable_redirects)
        self.client.meta.events.register("before-call.s3", self._add_headers)
        bundle = self.settings.ca_bundle or session.get_config_variable("ca_bundle") or ""
        self.fast_put = FastPut(self.client, bundle, self.settings.headers)
        self.lanes = ThreadPoolExecutor(LANES, "lane")  # its threads start at the first use

    def put(
        self, action: str, address: S3Address, body: Body, parameters: Mapping[str, str | int]
    ) -> tuple[Reply, Digests]:
        """Send a body with its checksum; every try reads the body again.

        Args:
            action: What the call does, for the log and the error, for example `write s3://b/key`.
            address: The destination.
            body: The body to send.
            parameters: As for put_object or upload_part of boto3.

        Returns:
            The store's reply, and the checksums of the sent bytes.

        Raises:
            StepError: The call failed; the class tells what the user can do.
        """

        def attempt() -> tuple[Reply, Digests]:
            digests = body.digests(md5=self.ignores_checksums)
            reply = self.fast_put.put(address, body, {**parameters, **digests.parameters()})
            if digests.md5 and self.tags_are_md5 and reply.etag.strip('"') != digests.md5.hex():
                raise damaged(reply.etag)  # a store that ignores Content-MD5 too
            return reply, digests

        return self.call(action, address, attempt)

    def call(self, action: str, address: S3Address, call: Callable[[], Result]) -> Result:
        """Return the result of a call, which is retried while its errors are transient.

        Args:
            action: What the call does, for the log and the error, for example `list s3://b/p`.
            address: The object or bucket of the call.
            call: The call; it must be safe to repeat.

        Raises:
            StepError: The call failed; the class tells what the user can do.
        """
        _check_bucket(self.client.meta.endpoint_url, address.bucket)
        used_keys, guessed, has_keys = None, False, False

        def attempt() -> Result:
            nonlocal used_keys, has_keys
            has_keys = False
            used_keys = self._keys(action)
            has_keys = True
            return call()

        def is_transient(error: Exception) -> bool:
            nonlocal guessed
            code = code_of(error)
            # An error without a reason may not be about the keys, so new keys are tried once.
            if code in RENEWABLE or (code in WORDLESS and not guessed):
                guessed = True
                if self._renew_keys(used_keys, action):
                    return True
            # While keys are fetched, the error may be of STS, whose replies lack S3's headers.
            return transient(error) or (has_keys and is_proxy_page(error))

        try:
            return self.patience.run(action, attempt, is_transient)
        except StoreUnavailableError as error:
            if not has_keys:
                raise explain_waiting(error) from error.__cause__
            raise explain_unavailable(error, action, self.endpoint) from error.__cause__
        except (ClientError, BotoCoreError) as error:
            raise explain(error, action, address, self.endpoint) from error

    def _add_headers(self, params: dict[str, Any], **_: Any) -> None:
        params["headers"].update(self.settings.headers)

    def _keys(self, action: str) -> Any:
        """Return the current keys; fetch them if they are about to expire."""
        credentials = self.client._get_credentials()
        try:
            return credentials and credentials.get_frozen_credentials()
        except _CHAIN_ERRORS as error:
            if transient(error):
                raise
            raise explain_chain(error, action) from error

    def _renew_keys(self, rejected: Any, action: str) -> bool:
        """Fetch the keys again and return whether they differ from the rejected ones."""
        with self._renewing:  # threads that were rejected together fetch once
            credentials = self.client._get_credentials()
            if self._keys(action) == rejected and hasattr(credentials, "_expiry_time"):
                # By our clock the cached keys have not expired, but the store rejected them.
                fetcher = getattr(credentials._refresh_using, "__self__", None)
                getattr(fetcher, "_cache", {}).clear()
                credentials._expiry_time = datetime.now(UTC)
            return self._keys(action) != rejected


def _check_bucket(endpoint: str, bucket: str) -> None:
    """Reject an endpoint that contains the bucket, below which objects would get other keys."""
    url = urlsplit(endpoint)
    in_path = url.path.strip("/") == bucket
    if not (in_path or url.netloc.startswith((f"{bucket}.s3.", f"{bucket}.s3-"))):
        return
    host = url.netloc if in_path else url.netloc[len(bucket) + 1 :]
    raise ConfigurationError(
        Problem(
            "storage_endpoint contains the bucket",
            received=endpoint,
            expected="http://HOST:PORT or https://HOST",
            fix=f"remove {bucket} from it; output_uri and data_uri name buckets",
            path="storage_endpoint",
            suggestion=f"{url.scheme}://{host}",
            name="wrong-endpoint",
        )
    )


def _sts_config(endpoint: str, patience: Patience) -> Config:
    """Return the configuration of the client that exchanges a service account's token for keys.

    Replicas have storage_endpoint as AWS_ENDPOINT_URL, which botocore would use for STS too. The
    same URL is right for a store that is its own STS, such as MinIO, but not for a host of AWS.
    """
    return Config(
        connect_timeout=CONNECT_SECONDS,
        read_timeout=patience.silence,
        retries={"total_max_attempts": 1},
        ignore_configured_endpoint_urls=is_aws(endpoint)
        and "AWS_ENDPOINT_URL_STS" not in os.environ,
    )


def _disable_redirects(request_dict: dict[str, Any], **_: Any) -> None:
    """Make botocore follow no redirect of HeadBucket, with which it looks for a bucket's region.

    Otherwise, it would repeat the request until the stack overflows.
    """
    request_dict["context"].setdefault("s3_redirect", {})["redirected"] = True


@cache
def _service_loader() -> Loader:
    """Return a shared loader of boto3's description of S3, because reading it takes 0.2 s."""
    return create_loader()


def setting(name: str, secret: SecretVolume, *aliases: str) -> str:
    """Return a setting from the Secret, or else from the environment by its name or an alias.

    It is empty if it is not set.
    """
    settings = (secret.get(name), *(os.environ.get(key, "") for key in (name, *aliases)))
    return next(filter(None, settings), "")
