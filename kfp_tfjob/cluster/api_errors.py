"""Translates errors of the Kubernetes API into errors with a remedy.

A status alone does not name the remedy. A 403 has three possible causes: RBAC forbids the call, an
admission webhook rejects the object, or a quota is used up. A 500 with "failed calling webhook"
means that the operator is down. Called by the client of the Kubernetes API and by the back end.
"""

from __future__ import annotations

import json

import urllib3
from kubernetes.client import ApiException

from kfp_tfjob.common.errors import ConfigurationError, Problem, StepError
from kfp_tfjob.jobs.kind import JobKind
from kfp_tfjob.jobs.objects import Object

from .backend import JobExistsError, JobRefusedError

_TRANSIENT_STATUSES = frozenset({401, 408, 410, 429, 500, 502, 503, 504})
# The errors of a response that is not JSON, because it was truncated on the way.
UNREADABLE = (json.JSONDecodeError, UnicodeDecodeError)
_WEBHOOK_UNREACHABLE = "failed calling webhook"


class ApiError(ApiException):
    """An error response on one line; the client's own error would print all headers."""

    def __init__(self, status: int, reason: str = "", body: bytes | str | None = None) -> None:
        super().__init__(status, reason)
        self.body = body

    @classmethod
    def of(cls, error: ApiException) -> Exception:
        """Translate an error of the Kubernetes client; its status 0 means that TLS failed."""
        if not error.status:
            return urllib3.exceptions.SSLError(" ".join(str(error.reason).split()))
        return cls(error.status, str(error.reason), error.body)

    def __str__(self) -> str:
        """Return the status and the server's message."""
        return f"HTTP {self.status} {self.reason}: {self.message}"

    @property
    def message(self) -> str:
        """The API server's message."""
        return str(self._content.get("message") or self.reason or self.status)

    @property
    def code(self) -> str:
        """The API server's code for the kind of error, for example `AlreadyExists`."""
        return str(self._content.get("reason") or "")

    @property
    def _content(self) -> Object:
        try:
            body = json.loads(self.body or "{}")
        except ValueError:
            return {}
        return body if isinstance(body, dict) else {}


class ClusterUnavailableError(StepError):
    """The API server did not respond in time; the job continues."""

    verdict = "cluster_unavailable"


class ForbiddenError(ConfigurationError):
    """RBAC does not allow this service account a call that the step needs."""


class OperatorAbsentError(ConfigurationError):
    """No operator of this kind of job is running."""

    verdict = "operator_absent"


class NotFoundError(StepError):
    """The object does not exist."""


def transient(error: Exception) -> bool:
    """Return whether an error is temporary.

    A 401 is temporary, because the client may still hold an old token. A 409 is temporary if two
    writers collided, but not if the name is taken.
    """
    if isinstance(error, ApiError):
        if error.status == 409:
            return error.code == "Conflict"
        return error.status in _TRANSIENT_STATUSES
    return isinstance(error, (urllib3.exceptions.HTTPError, OSError, *UNREADABLE))


def webhook_is_away(error: BaseException | None) -> bool:
    """Return whether the API server could not reach an admission webhook."""
    return isinstance(error, ApiError) and _WEBHOOK_UNREACHABLE in error.message


def absent(kind: JobKind, received: str) -> Problem:
    """Return the problem that a cluster does not support a kind of job."""
    return Problem(
        f"this cluster does not support {kind.name}s",
        received=received,
        expected=kind.controller,
        fix="ask an administrator to install it",
        name="operator_absent",
    )


def silent(kind: JobKind, received: str) -> Problem:
    """Return the problem that an operator's webhook cannot be reached."""
    return Problem(
        f"{kind.called} is not responding",
        received=received,
        expected=kind.controller,
        fix=f"start it, and check {kind.deployment}",
        name="operator_absent",
    )


def translate(error: ApiError, action: str) -> StepError:
    """Return the project's error for an API error, with the server's message.

    Args:
        error: The API's error.
        action: The call in a message, for example `get pods/x`.
    """
    message, status = error.message, error.status
    if status == 404:
        return NotFoundError(
            Problem(
                f"cannot {action}: the cluster has no such object",
                received=message,
                expected="an object with this name in the namespace",
                fix="check the name and the namespace; something else may have deleted it",
            )
        )
    if status == 409:
        return JobExistsError(
            Problem(
                f"cannot {action}",
                received=message,
                expected="a name that no other job has",
                fix="delete the other job, or start a new run",
            )
        )
    if status == 403 and "admission webhook" in message:
        return JobRefusedError(
            Problem(
                f"the cluster refuses to {action}",
                received=message,
                expected="an object that the cluster's policies allow",
                fix="correct what the message describes; it comes from an admission webhook",
            )
        )
    if status == 403 and "exceeded quota" in message:
        return JobRefusedError(
            Problem(
                f"cannot {action}: the namespace's quota is used up",
                received=message,
                fix="delete finished jobs, or have the ResourceQuota raised",
                name="quota-exceeded",
            )
        )
    if status in (401, 403):
        return ForbiddenError(
            Problem(
                f"this step is not allowed to {action}",
                received=message,
                expected="a service account with the permissions in deploy/, such as"
                " pipeline-runner",
                fix="bind a Role with these permissions to the service account",
                name="missing-permission",
            )
        )
    if status in (400, 422):
        return JobRefusedError(
            Problem(
                f"the cluster refuses to {action}",
                received=message,
                expected="an object that this API server accepts",
                fix="correct what the message names",
            )
        )
    return StepError(
        Problem(
            f"cannot {action}",
            received=f"HTTP {status}: {message}",
            expected="a response of the API server without an error",
            fix="try again; if the error persists, ask an administrator of the cluster",
        )
    )
