"""Turns the errors of Kubeflow Pipelines into errors with a fix.

The generated client raises one exception for every status, with the reply's body. A wrong address
often answers too: with a login page, a redirect, or HTML. Called by the modules that send requests
to the back end.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from kfp_tfjob.common.errors import ConfigurationError, Problem, StepError
from kfp_tfjob.supervisor import exit_codes

# The SDK of Kubeflow Pipelines reads the back end's address from these variables.
ENDPOINT, UI_ENDPOINT = "KF_PIPELINES_ENDPOINT", "KF_PIPELINES_UI_ENDPOINT"
TOKEN_FILE = "KF_PIPELINES_SA_TOKEN_PATH"
CA_FILE = "SSL_CERT_FILE"
FORWARD = "kubectl -n kubeflow port-forward svc/ml-pipeline-ui 8080:80"
_PASSING = {429, 502, 503, 504}  # statuses of a proxy or a back end that is starting or overloaded
_REPEATED = _PASSING | {500}  # 500 is also the back end's reply while its database is down
# In replies of Kubeflow Pipelines 2.18 or later, which checks a run's account. The name of the
# calling account, as in `system:serviceaccount:team:default`, does not count.
_ACCOUNT = re.compile(r"(?<!system:)service[ _-]?accounts?(?!:)", re.IGNORECASE)
ALLOW_ACCOUNT = (
    "list it in the variable ALLOWEDSERVICEACCOUNTS of the Deployment ml-pipeline; on a multi-user"
    " back end, you also need the permission `use` on the serviceaccount. Or omit --service-account"
)
# The generated client has the status 0 for its own errors, and quotes urllib3 about TLS.
_TLS = "SSLError"
_QUOTED = re.compile(r"^\w+\(host=[^)]*\): ")


class BackEndError(StepError):
    """Kubeflow Pipelines answered with an error."""


class UnknownRunError(ConfigurationError):
    """The run, pipeline or schedule does not exist on Kubeflow Pipelines."""


class BackEndAwayError(StepError):
    """Kubeflow Pipelines does not respond."""

    code = exit_codes.NOT_STORED  # a later attempt may succeed
    verdict = "back_end_unavailable"


def is_passing(error: Exception) -> bool:
    """Return whether a call that failed may succeed when it is repeated."""
    import urllib3
    from kfp_server_api import ApiException

    if isinstance(error, ApiException):
        return error.status in _REPEATED
    if _tls_cause(error):
        return False
    return isinstance(error, urllib3.exceptions.HTTPError | ConnectionError | TimeoutError)


def message_of(error: Any) -> str:
    """Return the message in an error reply of the back end.

    It nests messages from the outermost call to the innermost, so the last sentence is the cause.
    """
    try:
        body = json.loads(error.body or "")
        text = body.get("message") or body.get("error") or "" if isinstance(body, Mapping) else ""
    except (ValueError, TypeError):
        text = str(error.body or "")  # a proxy's reply is not JSON
    return text or str(error.reason or "no message")


def translate(action: str, error: Any, host: str) -> StepError:
    """Return the project's error for an error reply of the back end.

    Args:
        action: What the call does, for example `read the run`.
        error: An ApiException of the generated client.
        host: URL of the back end as the user wrote it; empty if the SDK chose one.
    """
    message = f"{error.status} {message_of(error)}".strip()
    if error.status == 0 and not str(error.reason).startswith(_TLS):
        return no_back_end(host, str(error.reason))  # a value that the generated client cannot read
    if error.status == 0:
        return _tls_failed(action, error.reason)
    if error.status in (301, 302, 303, 307, 308):
        return no_back_end(host, f"{error.status}, a redirect, probably to a login page")
    if error.status in (400, 403) and _ACCOUNT.search(message):
        return ConfigurationError(
            Problem(
                f"Kubeflow Pipelines rejects the run's service account: cannot {action}",
                received=message,
                expected="an account that the back end allows",
                fix=ALLOW_ACCOUNT,
            )
        )
    if error.status in (401, 403):
        return ConfigurationError(
            Problem(
                f"Kubeflow Pipelines does not let you {action}",
                received=message,
                expected="credentials with this right in the run's namespace",
                fix=f"pass a token with --token-file or {TOKEN_FILE}, and check --namespace",
                name="back-end-denied",
            )
        )
    if "</html>" in message.lower() or "<!doctype" in message.lower():
        return no_back_end(host, f"{error.status}, an HTML page")
    if error.status == 404:
        return UnknownRunError(
            Problem(
                f"cannot {action}: Kubeflow Pipelines does not have it",
                received=message,
                expected="an object that exists in this back end and namespace",
                fix="look it up with `kfp-tfjob runs` or `kfp-tfjob schedule list`; check --host"
                " and --namespace",
            )
        )
    if error.status in _PASSING:
        return away(action, message, host)
    if error.status == 400:
        return ConfigurationError(
            Problem(
                f"Kubeflow Pipelines refuses to {action}",
                received=message,
                expected="a request that the back end accepts",
                fix="correct what the message names",
            )
        )
    return BackEndError(
        Problem(
            f"cannot {action}",
            received=message,
            expected="an answer of Kubeflow Pipelines without an error",
            fix="repeat the command; if the error persists, read the log of the Deployment"
            " ml-pipeline",
        )
    )


def away(action: str, error: object, host: str) -> StepError:
    """Return the error of a back end that does not respond; arguments as for `translate`."""
    if cause := _tls_cause(error):
        return _tls_failed(action, cause)
    where = host or "the endpoint that the SDK chose"
    https = "" if not host or "://" in host else "; without http:// the SDK uses https"
    return BackEndAwayError(
        Problem(
            f"Kubeflow Pipelines at {where} does not respond: cannot {action}",
            received=_cause(error),
            expected="the API of Kubeflow Pipelines",
            fix=f"check that it is running, and correct --host or {ENDPOINT}{https}; for a back end"
            f" without an address of its own, run `{FORWARD}`",
            name="back-end-unreachable",
        )
    )


def _tls_cause(error: object) -> object:
    """Return the error of TLS that ended a call of urllib3; None for another error."""
    import urllib3

    cause = getattr(error, "reason", None)
    return cause if isinstance(cause, urllib3.exceptions.SSLError) else None


def _tls_failed(action: str, cause: object) -> StepError:
    """Return the error of a back end with which no TLS connection can be made.

    Args:
        action: What the call does.
        cause: The error of TLS, which says whether a certificate is the reason.
    """
    fix = f"pass the CA certificates with --ca-file or {CA_FILE}, and check the name in --host"
    if "CERTIFICATE" not in str(cause).upper():
        fix = f"if the back end does not use TLS, write http:// in --host or {ENDPOINT}"
    return ConfigurationError(
        Problem(
            f"cannot {action}: TLS with Kubeflow Pipelines failed",
            received=_QUOTED.sub("", str(cause)),
            expected="a valid certificate for this host, signed by one of this machine's CAs",
            fix=fix,
        )
    )


def _cause(error: object) -> str:
    """Return the cause of urllib3's error, without the representation of its connection."""
    return _QUOTED.sub("", str(getattr(error, "reason", None) or error))


def no_back_end(host: str, received: str) -> StepError:
    """Return the error of a server that is not Kubeflow Pipelines."""
    return ConfigurationError(
        Problem(
            f"{host or 'the endpoint'} is not the API of Kubeflow Pipelines",
            received=received,
            expected="the JSON of the API v2beta1",
            fix=f"correct --host or {ENDPOINT}: use the address of the UI or the API. If that"
            " address shows a login page, pass a token with --token-file",
            name="back-end-unreachable",
        )
    )
