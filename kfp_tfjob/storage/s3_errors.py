"""The store's errors: whether they are transient, and what the user can do about them.

boto3 passes on the code of the store, and stores have different codes for one cause. A code that is
misread costs hours: a wrong key that is retried for minutes looks like an outage, and an outage
that is not retried ends a training run. Called by S3Session for each failed call.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from typing import Any

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionError,
    CredentialRetrievalError,
    HTTPClientError,
    NoCredentialsError,
    PartialCredentialsError,
)

from kfp_tfjob.common.errors import (
    ConfigurationError,
    NoRoomError,
    ObjectExistsError,
    ObjectNotFoundError,
    Problem,
    StepError,
    StoreUnavailableError,
)

from .address import S3Address
from .aws_chain_errors import is_aws
from .credentials import SecretVolume

_MISSING = {"NoSuchKey", "404", "NotFound"}
_TAKEN = {"PreconditionFailed", "412"}
_DENIED = {
    "AccessDenied": "the credentials do not allow this",
    "403": "the credentials do not allow this",
    "InvalidAccessKeyId": "the store does not recognize this access key",
    "XAdminUserNotFound": "the store does not recognize this access key",  # versitygw's name for it
    "SignatureDoesNotMatch": "the secret key does not belong to the access key",
    "ExpiredToken": "the session token has expired",
    "ExpiredTokenException": "the session token has expired",
    "TokenRefreshRequired": "the session token has expired",
    "InvalidToken": "the session token is not valid",
}
# New credentials may fix these: the current ones have expired or were rotated.
RENEWABLE = {
    "ExpiredToken",
    "ExpiredTokenException",
    "InvalidAccessKeyId",
    "InvalidToken",
    "RequestExpired",
    "SignatureDoesNotMatch",
    "TokenRefreshRequired",
    "XAdminUserNotFound",
}
# OpenSSL's reasons why a connection fails, and the remedies.
_NO_TLS = "WRONG_VERSION_NUMBER"
_TLS = {
    _NO_TLS: "the server does not use TLS there: write http:// in storage_endpoint,"
    " or the port that uses TLS",
    "Hostname mismatch": "name the server in storage_endpoint as its certificate does",
    "IP address mismatch": "name the server in storage_endpoint as its certificate does",
    "certificate has expired": "renew the server's certificate",
    "CERTIFICATE_VERIFY_FAILED": "set AWS_CA_BUNDLE to a file with the store's CA certificate",
}
# Codes of a rejected HEAD, whose reply lacks a body and so the reason.
WORDLESS = {"400", "403"}
# The store received other bytes than were sent; the second code is MinIO's.
MISMATCH = {"BadDigest", "XAmzContentChecksumMismatch"}
# The reply names another address: AWS does so for a bucket in another region, a proxy for any
# reason.
REDIRECTS = {"PermanentRedirect", "TemporaryRedirect", "301", "302", "303", "307", "308"}
_S3_API = "the URL of an S3 API"
_ENDPOINT = "correct storage_endpoint (http or https; the port of the API, not of the console)"
# A repeated request may succeed. A mismatch is one of these: the network damaged the bytes.
_PASSING = MISMATCH | {
    "ConditionalRequestConflict",  # a concurrent request for the same key may still fail
    "IDPCommunicationError",  # of STS, which could not reach the issuer of the token
    "IncompleteBody",
    "InternalError",
    "OperationAborted",
    "RequestLimitExceeded",
    "RequestThrottled",
    "RequestTimeout",
    "SlowDown",
    "Throttling",
    "ThrottlingException",
    "KMS.ThrottlingException",
}
_PASSING_STATUSES = {408, 425, 429}  # proxies send the first two without a code of S3
_WRITES = {"PutObject", "UploadPart", "CompleteMultipartUpload"}
# A proxy in front of SeaweedFS, such as Istio's, may drop its Server header or set its own.
_MAYBE_SEAWEEDFS = re.compile("^$|seaweedfs|envoy|nginx", re.IGNORECASE)
_ROOM = (
    "if the store is SeaweedFS, it probably has no volume left for the bucket: start weed with"
    " -volume.max=100 (its default is 8, of which a bucket takes 7), or set output_uri to a folder"
    " of a bucket that already stores objects, such as s3://mlpipeline/kfp-tfjob in the store of"
    " Kubeflow Pipelines"
)


def code_of(error: Exception) -> str:
    """Return the code of the store's error, or else its HTTP status; empty for other errors."""
    response = error.response if isinstance(error, ClientError) else {}
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", "")
    # boto3 finds an empty code in a page of XHTML.
    return str(response.get("Error", {}).get("Code") or status)


def is_proxy_page(error: BaseException | None) -> bool:
    """Return whether a 404 is not the store's, but for example of a proxy in front of it.

    A store that does not have an object names a code in the body or its request in a header. The
    reply to HEAD lacks a body, so some stores' replies to HEAD look like a proxy's.
    """
    if not isinstance(error, ClientError):
        return False
    headers = error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    return code_of(error) == "404" and "x-amz-request-id" not in headers


def damaged(etag: str) -> ClientError:
    """Return the error that a store which verifies checksums would send, for one that does not.

    Args:
        etag: The entity tag of the stored object, which differs from the MD5 of the sent bytes.
    """
    message = f"the entity tag {etag} is not the MD5 of the bytes that were sent"
    return ClientError({"Error": {"Code": "BadDigest", "Message": message}}, "PutObject")


def transient(error: Exception) -> bool:
    """Return whether an error of boto3 or of `FastPut` is transient."""
    if isinstance(error, ClientError):
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        passing = status >= 500 and status != 501 or status in _PASSING_STATUSES
        return passing or code_of(error) in _PASSING
    # ConnectionError of botocore covers endpoint, connect timeout and closed connection.
    # A body that breaks off raises a urllib3 error, wrapped as HTTPClientError or OSError.
    if _tls_remedy(error):
        return False
    passing = ConnectionError | HTTPClientError | CredentialRetrievalError
    return isinstance(error, passing) or type(error).__name__ in (
        "ResponseParserError",  # a proxy's page in the place of an answer
        "ResponseStreamingError",
        "IncompleteReadError",
        "ProtocolError",
        "IncompleteRead",
    )


def server_of(response: Any) -> str:
    """Return the Server header of a boto3 response; empty if the header is missing."""
    return str(response.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("server", ""))


def explain_unavailable(
    error: StoreUnavailableError, action: str, endpoint: str
) -> StoreUnavailableError:
    """Return the error of a call after all retries, with another remedy for two causes.

    One is a proxy's page. The other is a write that got status 500: SeaweedFS, the store of
    Kubeflow Pipelines, sends it if it is out of space for the bucket: version 4.48 at once, but
    4.34 after 30 s, when most callers have stopped waiting.

    Args:
        error: The error after all retries.
        action: What the call does, for example `write s3://bucket/key`.
        endpoint: URL of the store; empty for AWS.
    """
    cause = error.__cause__
    if is_proxy_page(cause):
        (problem,) = error.as_problems
        problem = _no_s3(action, endpoint, str(problem.received))
        fix = f"{problem.fix}; if it is correct, find out why the proxy in front of the store does"
        return StoreUnavailableError(replace(problem, fix=f"{fix} not pass requests on"))
    if not isinstance(cause, ClientError) or cause.operation_name not in _WRITES:
        return error
    status = cause.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return without_room(error, server_of(cause.response)) if status == 500 else error


def without_room(
    error: StoreUnavailableError, server: str, note: str = ""
) -> StoreUnavailableError:
    """Return the error of a write; if the store may be SeaweedFS, with the remedy for full volumes.

    Args:
        error: The error after all retries.
        server: The store's Server header; may be empty.
        note: Appended to the received part of the message.
    """
    if not _MAYBE_SEAWEEDFS.search(server):
        return error
    (problem,) = error.as_problems
    header = f"; the Server header is {server!r}" if server else ""
    return NoRoomError(replace(problem, received=f"{problem.received}{note}{header}", fix=_ROOM))


def _no_s3(action: str, endpoint: str, received: str) -> Problem:
    """Return the problem of a server that is not the store."""
    return Problem(
        f"cannot {action}: {endpoint or 'AWS'} does not answer as S3 does",
        received=received,
        expected=_S3_API,
        fix=_ENDPOINT,
        name="wrong-endpoint",
    )


def _tls_remedy(error: Exception) -> str:
    """Return the remedy for an error of TLS; empty for other errors."""
    return next((fix for reason, fix in _TLS.items() if reason in str(error)), "")


def _credentials_remedy() -> str:
    """Return how to give this process credentials, which depends on where it runs."""
    if os.environ.get("KFP_POD_NAME") and not SecretVolume.from_environment().folder.is_dir():
        # A component of KFP cannot bring a volume with it.
        return (
            "mount the store's Secret into this task of your pipeline: load the compiled YAML"
            " of the step, or call kfp_tfjob.pipelines.step_pod.with_store(task)"
        )
    return (
        "create the Secret named by storage_secret, or set the standard AWS credentials in the"
        " environment"
    )


def _explain_redirect(
    error: ClientError, action: str, address: S3Address, endpoint: str, received: str
) -> StepError:
    """Return the error of a request that boto3 could not repeat in the bucket's region."""
    headers = error.response["ResponseMetadata"].get("HTTPHeaders", {})
    target = headers.get("location", "")
    region = headers.get("x-amz-bucket-region") or error.response["Error"].get("Region", "")
    cause = f"{endpoint or 'AWS'} redirects the request to another address"
    fix = f"{_ENDPOINT} or storage_region"
    if region:
        cause = f"the bucket {address.bucket} is in the region {region}"
        place = "leave storage_endpoint empty" if is_aws(endpoint) else _ENDPOINT
        fix = f"set storage_region to {region}, and {place}"
    return ConfigurationError(
        Problem(
            f"cannot {action}: {cause}",
            received=f"{received}, to {target!r}" if target else received,
            expected=f"{_S3_API}, and the region of the bucket",
            fix=fix,
            name="wrong-region",
        )
    )


def _permit(received: str, endpoint: str) -> str:
    """Return the fix for refused credentials."""
    if denied := re.search(r"not authorized to perform: ([\w:]*\w)", received):
        return f"change the policy that the message names, so that it allows {denied[1]}"
    place = "the Secret named by storage_secret or the AWS environment"
    if _DENIED.get(received.partition(":")[0]) == _DENIED["ExpiredToken"]:
        return f"put new keys and their session token into {place}"
    remedy = f"correct {place}"
    if received == "AccessDenied: Access Denied" and is_aws(endpoint):
        remedy += "; if the requester pays for the bucket, set STORAGE_REQUEST_PAYER: requester"
    return remedy


def explain(
    error: ClientError | BotoCoreError, action: str, address: S3Address, endpoint: str
) -> StepError:
    """Return the project's error for an error of boto3 that is not transient.

    Args:
        error: The error.
        action: What the call does, for example `write s3://bucket/key`.
        address: The object or bucket of the call.
        endpoint: URL of the store; empty for AWS.
    """
    if isinstance(error, NoCredentialsError | PartialCredentialsError):
        return ConfigurationError(
            Problem(
                f"there are no credentials to {action}",
                received=str(error),
                expected="AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
                fix=_credentials_remedy(),
                name="no-credentials",
            )
        )
    if not isinstance(error, ClientError):
        plain = endpoint.replace("https:", "http:", 1) if _NO_TLS in str(error) else ""
        return ConfigurationError(
            Problem(
                f"cannot {action}",
                received=str(error),
                expected=f"a store at {endpoint or 'AWS'}, and credentials for it",
                fix=_tls_remedy(error) or "correct storage_endpoint, or the AWS environment",
                path="storage_endpoint" if plain else "",
                suggestion=plain,
            )
        )
    code = code_of(error)
    received = f"{code}: {error.response['Error'].get('Message') or ''}".rstrip(": .")
    if code in _TAKEN:
        return ObjectExistsError(
            Problem(
                f"cannot {action}: it already exists",
                expected="an address without an object, because this one is created only once",
                fix="start a new run; another program has written it",
            )
        )
    if code in _MISSING:
        return ObjectNotFoundError(
            Problem(
                f"cannot {action}: it does not exist",
                expected="an object at this address",
                fix="correct the address; if the object was deleted, start a new run",
                name="object-not-found",
            )
        )
    if code in ("NoSuchBucket", "InvalidBucketName"):
        return ConfigurationError(
            Problem(
                f"cannot {action}: there is no bucket {address.bucket}",
                received=received,
                expected="a bucket that exists",
                fix=f"create the bucket {address.bucket} at {endpoint or 'AWS'}, or name a bucket"
                " that exists",
                name="bucket-not-found",
            )
        )
    if code in REDIRECTS or code == "AuthorizationHeaderMalformed":
        return _explain_redirect(error, action, address, endpoint, received)
    if code == "RequestTimeTooSkewed":
        return ConfigurationError(
            Problem(
                f"cannot {action}: this machine's clock differs too much from the store's",
                received=received,
                expected="a difference of less than 15 minutes",
                fix="set this machine's clock, for example with NTP",
                name="clock-skew",
            )
        )
    if code in _DENIED:
        return ConfigurationError(
            Problem(
                f"cannot {action}: {_DENIED[code]}",
                received=received,
                expected="credentials that may read, write, list and delete there",
                fix=_permit(received, endpoint),
                name="access-denied",
            )
        )
    if code.startswith("KMS."):
        return ConfigurationError(
            Problem(
                f"cannot {action}: the KMS key cannot be used",
                received=received,
                expected="a key that is enabled, in the region of the bucket",
                fix="enable the key, or correct STORAGE_ENCRYPTION or the bucket's default"
                " encryption",
            )
        )
    if code.isdecimal() and not error.operation_name.startswith("Head"):
        # boto3 takes the HTTP status for the code if the body lacks one of S3. A server whose port
        # is for HTTPS answers HTTP in this way.
        return ConfigurationError(_no_s3(action, endpoint, received))
    return StepError(
        Problem(
            f"cannot {action}",
            received=received,
            expected="an answer of the store without an error",
            fix="look this code up in the store's documentation, or ask whoever runs the store",
        )
    )
