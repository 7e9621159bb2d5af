"""Explains why the AWS chain failed to get credentials: a role of EKS, its token, STS or the agent.

With IRSA, STS exchanges the service account's token for a role's keys. With EKS Pod Identity, an
agent on the node does. Both may refuse, and neither is the store, so their errors have their own
messages. Called by `s3_session.py` and `s3_errors.py`.
"""

from __future__ import annotations

import os
from dataclasses import replace
from urllib.parse import urlsplit

from botocore.exceptions import ClientError, CredentialRetrievalError, InvalidConfigError

from kfp_tfjob.common.errors import ConfigurationError, Problem, StoreUnavailableError

_TOKEN_FILES = ("AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE")
_TRUST = (
    "correct the role's trust policy, or the annotation eks.amazonaws.com/role-arn of the pod's"
    " service account"
)
_STS_FIXES = {
    "InvalidIdentityToken": "create the cluster's OIDC provider in IAM, in the account of the role",
    "ExpiredTokenException": "delete the pod, so that the next one gets a new token",
    "RegionDisabledException": "activate STS in this region in the account settings of IAM",
}
_NO_STS = (
    "set AWS_ENDPOINT_URL_STS to the URL of STS, because requests to it go to AWS_ENDPOINT_URL, too"
)


def is_aws(endpoint: str) -> bool:
    """Return whether an endpoint is a host of AWS; the empty endpoint is."""
    host = urlsplit(endpoint).hostname or ""
    return not endpoint or host.endswith((".amazonaws.com", ".amazonaws.com.cn"))


def explain_chain(error: Exception, action: str) -> ConfigurationError:
    """Return the project's error for an error of the AWS chain that is not transient.

    Args:
        error: The error of botocore; also OSError, ValueError or KeyError, which it lets pass.
        action: What the call does that needs credentials, for example `list s3://b/p`.
    """
    return ConfigurationError(_problem(error, action))


def _problem(error: Exception, action: str) -> Problem:
    received = f"{type(error).__name__}: {error}"
    if isinstance(error, OSError):
        names = [f"{name}={os.environ[name]}" for name in _TOKEN_FILES if os.environ.get(name)]
        return Problem(
            f"cannot {action}: the token for the pod's AWS role cannot be read",
            received=f"{error}{f' ({names[0]})' if names else ''}",
            expected="the token that EKS mounts into pods of a service account with a role",
            fix="start the pod again after the service account has its role, or unset the variable",
            name="aws-role",
        )
    if isinstance(error, InvalidConfigError):
        return Problem(
            f"cannot {action}: there is a token for an AWS role, but no role",
            received=str(error).rstrip("."),
            expected="AWS_ROLE_ARN and AWS_WEB_IDENTITY_TOKEN_FILE",
            fix="annotate the pod's service account with eks.amazonaws.com/role-arn and start the"
            " pod again, or unset AWS_WEB_IDENTITY_TOKEN_FILE",
            name="aws-role",
        )
    if isinstance(error, ClientError):
        answer = error.response.get("Error", {})  # nothing if this is not STS
        code, message = (
            answer.get("Code", ""),
            answer.get("Message") or "an answer without a reason",
        )
        return Problem(
            f"cannot {action}: AWS STS gives no keys for the role {os.environ.get('AWS_ROLE_ARN')}",
            received=f"{code}: {message}".strip(": ."),
            expected="keys of the role of the pod's service account",
            fix=_STS_FIXES.get(code, _TRUST if code else _NO_STS),
            name="aws-role",
        )
    return Problem(
        f"cannot {action}: the AWS environment gives no credentials",
        received=received,
        expected="keys, a profile, or the variables that EKS sets for a role",
        fix="correct the AWS_ variables of this process, or put keys into the Secret named by"
        " storage_secret",
        name="no-credentials",
    )


def explain_waiting(error: StoreUnavailableError) -> StoreUnavailableError:
    """Return the error of a call whose credentials could not be fetched after all retries."""
    cause, (problem,) = error.__cause__, error.as_problems
    party, fix = "AWS STS", "check that STS can be reached from here, then run again"
    if isinstance(cause, CredentialRetrievalError):
        party = f"the provider {cause.kwargs['provider']} of the AWS environment"
        fix = "correct the AWS_ variables of this process, then run again"
        if cause.kwargs["provider"] == "container-role":
            party = "the agent of EKS Pod Identity"
            fix = "associate a role with the pod's service account, and check that the agent runs"
            fix += " on the node, then run again"
    _, _, call = problem.what.partition(": ")
    sentence = f"{party} gave no keys in time: {call}"
    return StoreUnavailableError(
        replace(problem, what=sentence, expected="keys of the pod's role", fix=fix)
    )
