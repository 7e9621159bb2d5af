"""Interprets errors of the store: whether they are transient, and what to tell the user."""

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

from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.aws_chain import is_aws
from kfp_tfjob.storage.credentials import SecretVolume
from kfp_tfjob.storage.errors import (
    ConfigurationError,
    NoRoomError,
    ObjectExistsError,
    ObjectNotFoundError,
    Problem,
    StepError,
    StoreUnavailableError,
)

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
# What OpenSSL says of a server that does not use TLS, or has another certificate, and the remedy.
_NO_TLS = "WRONG_VERSION_NUMBER"
_TLS = {
    _NO_TLS: "the server does not use TLS there: write http:// in storage_endpoint,"
    " or the port that uses TLS",
    "Hostname mismatch": "name the server in storage_endpoint as its certificate does",
    "IP address mismatch": "name the server in storage_endpoint as its certificate does",
    "certificate has expired": "renew the server's certificate",
    "CERTIFICATE_VERIFY_FAILED": "set AWS_CA_BUNDLE to a file with the store's CA certificate",
}
# Codes of a refused HEAD; its reply has no body with a reason.
WORDLESS = {"400", "403"}
# The store received different bytes; the second code is MinIO's.
MISMATCH = {"BadDigest", "XAmzContentChecksumMismatch"}
# The reply names a different address: AWS does so for a bucket in a different region, a proxy for
# any reason.
REDIRECTS = {"PermanentRedirect", "TemporaryRedirect", "301", "302", "303", "307", "308"}
_S3_API = "the URL of an S3 API"
_ENDPOINT = "correct storage_endpoint (http or https; the port of the API, not of the console)"
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
    """Return the code of the store's error, or an empty string."""
    response = error.response if isinstance(error, ClientError) else {}
    return str(response.get("Error", {}).get("Code", ""))


def damaged(etag: str) -> ClientError:
    """Return the error of a checking store, for a store that silently stored different bytes."""
    message = f"the entity tag {etag} is not the MD5 of the bytes that were sent"
    return ClientError({"Error": {"Code": "BadDigest", "Message": message}}, "PutObject")


def transient(error: Exception) -> bool:
    """Return whether an error of boto3 or of `FastPut` is transient."""
    if isinstance(error, ClientError):
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        return status >= 500 and status != 501 or status == 429 or code_of(error) in _PASSING
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
    """Return the Server header of a response of boto3; empty if it has none."""
    return str(response.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("server", ""))


def explain_unavailable(error: StoreUnavailableError) -> StoreUnavailableError:
    """Return the error of a call after all retries, with the remedy of a write answered with 500.

    SeaweedFS, the store of Kubeflow Pipelines, answers so without room for the bucket: version 4.48
    at once, but 4.34 after 30 s, when most callers have stopped waiting.
    """
    answer = error.__cause__
    if not isinstance(answer, ClientError) or answer.operation_name not in _WRITES:
        return error
    status = answer.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return without_room(error, server_of(answer.response)) if status == 500 else error


def without_room(
    error: StoreUnavailableError, server: str, note: str = ""
) -> StoreUnavailableError:
    """Return the error of a write, with another remedy if the store may be SeaweedFS.

    Args:
        error: The error after all retries.
        server: The store's Server header; may be empty.
        note: More that was received.
    """
    if not _MAYBE_SEAWEEDFS.search(server):
        return error
    (problem,) = error.as_problems
    header = f"; the Server header is {server!r}" if server else ""
    return NoRoomError(replace(problem, received=f"{problem.received}{note}{header}", fix=_ROOM))


def _tls_remedy(error: Exception) -> str:
    """Return what to do about a server that cannot be reached with TLS as it is configured."""
    return next((fix for reason, fix in _TLS.items() if reason in str(error)), "")


def _without_a_secret() -> str:
    """Return how a process gets credentials."""
    if os.environ.get("KFP_POD_NAME") and not SecretVolume.from_environment().folder.is_dir():
        # A component of KFP cannot bring a volume with it.
        return (
            "mount the store's Secret into this task of your pipeline: load the compiled YAML"
            " of the step, or call kfp_tfjob.pipelines.task.with_store(task)"
        )
    return (
        "create the Secret named by storage_secret, or set the standard AWS credentials in the"
        " environment"
    )


def _explain_redirect(
    error: ClientError, what: str, address: S3Address, endpoint: str, received: str
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
            f"cannot {what}: {cause}",
            received=f"{received}, to {target!r}" if target else received,
            expected=f"{_S3_API}, and the region of the bucket",
            fix=fix,
        )
    )


def _permit(received: str, endpoint: str) -> str:
    """Return what to do about refused credentials."""
    if action := re.search(r"not authorized to perform: ([\w:]*\w)", received):
        return f"change the policy that the message names, so that it allows {action[1]}"
    place = "the Secret named by storage_secret or the AWS environment"
    if _DENIED.get(received.partition(":")[0]) == _DENIED["ExpiredToken"]:
        return f"put new keys and their session token into {place}"
    remedy = f"correct {place}"
    if received == "AccessDenied: Access Denied" and is_aws(endpoint):
        remedy += "; if the requester pays for the bucket, set STORAGE_REQUEST_PAYER: requester"
    return remedy


def explain(
    error: ClientError | BotoCoreError, what: str, address: S3Address, endpoint: str
) -> StepError:
    """Return the project's error for an error of boto3 that is not transient.

    Args:
        error: The error.
        what: The call as text.
        address: The object or bucket of the call.
        endpoint: URL of the store; empty for AWS.
    """
    if isinstance(error, NoCredentialsError | PartialCredentialsError):
        return ConfigurationError(
            Problem(
                f"there are no credentials to {what}",
                received=str(error),
                expected="AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
                fix=_without_a_secret(),
            )
        )
    if not isinstance(error, ClientError):
        plain = endpoint.replace("https:", "http:", 1) if _NO_TLS in str(error) else ""
        return ConfigurationError(
            Problem(
                f"cannot {what}",
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
                f"cannot {what}: it already exists",
                expected="an address without an object, because this one is created only once",
                fix="start the run again; another program has written it",
            )
        )
    if code in _MISSING:
        return ObjectNotFoundError(
            Problem(
                f"cannot {what}: it does not exist",
                expected="an object at this address",
                fix="correct the address; if the object was deleted, start the run again",
            )
        )
    if code in ("NoSuchBucket", "InvalidBucketName"):
        return ConfigurationError(
            Problem(
                f"cannot {what}: there is no bucket {address.bucket}",
                received=received,
                expected="a bucket that exists",
                fix=f"create the bucket {address.bucket} at {endpoint or 'AWS'}, or name a bucket"
                " that exists",
            )
        )
    if code in REDIRECTS or code == "AuthorizationHeaderMalformed":
        return _explain_redirect(error, what, address, endpoint, received)
    if code == "RequestTimeTooSkewed":
        return ConfigurationError(
            Problem(
                f"cannot {what}: this machine's clock differs too much from the store's",
                received=received,
                expected="a difference of less than 15 minutes",
                fix="set this machine's clock, for example with NTP",
            )
        )
    if code in _DENIED:
        return ConfigurationError(
            Problem(
                f"cannot {what}: {_DENIED[code]}",
                received=received,
                expected="credentials that may read, write, list and delete there",
                fix=_permit(received, endpoint),
            )
        )
    if code.startswith("KMS."):
        return ConfigurationError(
            Problem(
                f"cannot {what}: the KMS key cannot be used",
                received=received,
                expected="a key that is enabled, in the region of the bucket",
                fix="correct STORAGE_ENCRYPTION or the encryption of the bucket, or enable the key",
            )
        )
    if code.isdecimal() and not error.operation_name.startswith("Head"):
        # The HTTP status: the body has no code of S3. HTTP on a port for HTTPS is answered so.
        return ConfigurationError(
            Problem(
                f"cannot {what}: {endpoint or 'AWS'} does not answer as S3 does",
                received=received,
                expected=_S3_API,
                fix=_ENDPOINT,
            )
        )
    return StepError(
        Problem(
            f"cannot {what}",
            received=received,
            expected="an answer of the store without an error",
            fix="look this code up in the store's documentation, or ask whoever runs the store",
        )
    )
