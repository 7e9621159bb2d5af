"""What an error of the store means: whether it may pass, and what to tell the user."""

from __future__ import annotations

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionError,
    HTTPClientError,
    NoCredentialsError,
    PartialCredentialsError,
)

from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.errors import (
    ConfigurationError,
    ObjectExistsError,
    ObjectNotFoundError,
    Problem,
    StepError,
)

_MISSING = {"NoSuchKey", "404", "NotFound"}
_TAKEN = {"PreconditionFailed", "412"}
_DENIED = {
    "AccessDenied": "the credentials may not do this",
    "403": "the credentials may not do this",
    "InvalidAccessKeyId": "the store does not know this access key",
    "XAdminUserNotFound": "the store does not know this access key",  # versitygw's name for it
    "SignatureDoesNotMatch": "the secret key does not belong to the access key",
    "ExpiredToken": "the session token has expired",
    "InvalidToken": "the session token is not valid",
}
# What other credentials may fix: the ones at hand have expired or were rotated away.
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
SKEWED = "RequestTimeTooSkewed"
# How a refused HEAD ends: its reply has no body that could say why.
WORDLESS = {"400", "403"}
# What arrived is not what was sent; the second is what MinIO calls it.
MISMATCH = {"BadDigest", "XAmzContentChecksumMismatch"}
# Another address is named: by AWS for a bucket in another region, by a proxy for whatever it likes.
REDIRECTS = {"PermanentRedirect", "TemporaryRedirect", "301", "302", "303", "307", "308"}
_PASSING = MISMATCH | {
    "ConditionalRequestConflict",  # another request for the key is on its way; it may yet fail
    "IncompleteBody",
    "InternalError",
    "OperationAborted",
    "RequestTimeout",
    "SlowDown",
    "Throttling",
    "ThrottlingException",
}


def code_of(error: Exception) -> str:
    """Return the code of the store's error, or an empty text."""
    response = error.response if isinstance(error, ClientError) else {}
    return str(response.get("Error", {}).get("Code", ""))


def damaged(etag: str) -> ClientError:
    """Return the error of a store that checks, for one that stored other bytes without a word."""
    message = f"the entity tag {etag} is not the MD5 of what was sent"
    return ClientError({"Error": {"Code": "BadDigest", "Message": message}}, "PutObject")


def transient(error: Exception) -> bool:
    """Tell whether an error of boto3 or the wire may pass by itself."""
    if isinstance(error, ClientError):
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        return status >= 500 and status != 501 or status == 429 or code_of(error) in _PASSING
    # ConnectionError of botocore covers endpoint, connect timeout and closed connection;
    # a body that breaks off raises an error of urllib3 wrapped as HTTPClientError or OSError.
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        return False
    return isinstance(error, ConnectionError | HTTPClientError) or type(error).__name__ in (
        "ResponseStreamingError",
        "IncompleteReadError",
        "ProtocolError",
        "IncompleteRead",
    )


def explain(
    error: ClientError | BotoCoreError, what: str, address: S3Address, endpoint: str
) -> StepError:
    """Return the error of the project for one of boto3 that does not pass.

    Args:
        error: The error.
        what: What was tried, in words.
        address: With what.
        endpoint: URL of the store; empty for AWS.
    """
    if isinstance(error, NoCredentialsError | PartialCredentialsError):
        return ConfigurationError(
            Problem(
                f"there are no credentials to {what}",
                received=str(error),
                expected="AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
                fix="create the Secret named by storage_secret, or give the environment the"
                " standard AWS credentials",
            )
        )
    if not isinstance(error, ClientError):
        fix = "set AWS_CA_BUNDLE to the file with the certificate of the store's authority"
        certificate = "CERTIFICATE_VERIFY_FAILED" in str(error)
        return ConfigurationError(
            Problem(f"cannot {what}", received=str(error), fix=fix if certificate else "")
        )
    code = code_of(error)
    received = f"{code}: {error.response['Error'].get('Message', '')}".rstrip(": .")
    if code in _TAKEN:
        return ObjectExistsError(Problem(f"cannot {what}: it exists already"))
    if code in _MISSING:
        return ObjectNotFoundError(Problem(f"cannot {what}: it is not there"))
    if code in ("NoSuchBucket", "InvalidBucketName"):
        return ConfigurationError(
            Problem(
                f"cannot {what}: there is no bucket {address.bucket}",
                received=received,
                expected="a bucket that exists",
                fix=f"make the bucket {address.bucket} at {endpoint or 'AWS'}, or name another one",
            )
        )
    if code in REDIRECTS:
        headers = error.response["ResponseMetadata"].get("HTTPHeaders", {})
        target = headers.get("location", "an address it does not name")
        return ConfigurationError(
            Problem(
                f"cannot {what}: {endpoint or 'AWS'} sends the request to another address",
                received=f"{received}, to {target!r}",
                expected="the URL of an S3 API, and the region of the bucket",
                fix="correct storage_endpoint (http or https, the port of the API and not of the"
                " console) or storage_region",
            )
        )
    if code in _DENIED:
        return ConfigurationError(
            Problem(
                f"cannot {what}: {_DENIED[code]}",
                received=received,
                expected="credentials that may read, write, list and delete there",
                fix="correct the Secret named by storage_secret or the AWS environment",
            )
        )
    return StepError(Problem(f"cannot {what}", received=received))
