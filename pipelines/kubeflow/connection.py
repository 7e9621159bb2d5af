"""Connects to a Kubeflow Pipelines back end, with the authentication of its SDK.

The SDK's client decides where the back end is and who asks: `KF_PIPELINES_ENDPOINT`, the
`KF_PIPELINES_*` variables of Google's Identity-Aware Proxy, a token in a file, the service account
of a pod, or the kubeconfig. Here its errors become problems with a fix, and nothing waits forever.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kfp_tfjob.pipelines.kubeflow.errors import (
    CA_FILE,
    ENDPOINT,
    FORWARD,
    TOKEN_FILE,
    UI_ENDPOINT,
    BackEndAwayError,
    UnknownRunError,
    away,
    is_passing,
    no_back_end,
    translate,
)
from kfp_tfjob.pipelines.local.home import DEFAULT, Home
from kfp_tfjob.storage.errors import ConfigurationError, Problem, StepError
from kfp_tfjob.storage.formatting import listed
from kfp_tfjob.storage.retry import Patience

if TYPE_CHECKING:
    import kfp

log = logging.getLogger(__name__)

EXPERIMENT = "KF_PIPELINES_DEFAULT_EXPERIMENT_NAME"
OVERRIDE_EXPERIMENT = "KF_PIPELINES_OVERRIDE_EXPERIMENT_NAME"
_DEFAULT_EXPERIMENT = "Default"  # the name that Kubeflow Pipelines itself uses
_SECONDS = (5, 60)  # to connect, and between two bytes
_CONNECT = 3  # seconds; a wrong address is more likely than an absent back end
_PAGE = 100
_ONE_AT_A_TIME = threading.Lock()


@dataclass(frozen=True)
class Connection:
    """Where the back end is, and who asks, as `Client` describes; the SDK chooses what is empty."""

    host: str = ""
    namespace: str = ""
    experiment: str = ""
    token_file: str = ""
    ca_file: str = ""

    def open(self, patience: float = 20) -> BackEnd:
        """Connect, and check that a back end answers.

        Args:
            patience: Seconds for which a call is repeated while the back end does not respond.

        Raises:
            ConfigurationError: There is no endpoint, no namespace, or no permission.
            BackEndAwayError: Nothing answers there.
        """
        known = self._completed()
        user, _, address = known.host.rpartition("@")
        if user:
            raise ConfigurationError(
                Problem(
                    "the URL of Kubeflow Pipelines contains a user name or password",
                    received=f"******@{address.partition('?')[0]}",
                    expected="http://HOST:PORT or https://HOST; the SDK does not send a password"
                    " from the URL",
                    fix="remove the part before the @, and pass a token with --token-file",
                )
            )
        if not self.is_configured:
            raise ConfigurationError(
                Problem(
                    "there is no Kubeflow Pipelines back end to connect to",
                    received=f"no --host, no {ENDPOINT}, no pod of a cluster, no kubeconfig",
                    expected="the URL of the UI or of the API",
                    fix=f"set {ENDPOINT}, for example to http://localhost:8080 with `{FORWARD}`"
                    + _for_local_runs(),
                )
            )
        try:
            return BackEnd(known, patience)
        except StepError as error:
            first, *others = error.problems
            if known.host or not isinstance(first, Problem):
                raise
            # A kubeconfig alone does not say that there is a back end.
            raise type(error)(replace(first, fix=first.fix + _for_local_runs()), *others) from error

    @property
    def is_configured(self) -> bool:
        """Whether anything says where the back end is."""
        in_cluster = os.environ.get("KUBERNETES_SERVICE_HOST")
        return bool(self._completed().host or in_cluster or _has_kubeconfig())

    def _completed(self) -> Connection:
        """Return the connection with the values of the environment."""
        names = {"host": ENDPOINT, "token_file": TOKEN_FILE, "ca_file": CA_FILE}
        found = {key: os.environ.get(name, "") for key, name in names.items()}
        experiment = self.experiment or os.environ.get(EXPERIMENT) or _DEFAULT_EXPERIMENT
        return replace(
            self,
            **{key: getattr(self, key) or value for key, value in found.items()},
            experiment=os.environ.get(OVERRIDE_EXPERIMENT) or experiment,
        )


def _for_local_runs() -> str:
    """Return what to do instead about the runs on this machine; empty if there are none."""
    known = [path.name for path in Home(DEFAULT).runs()]
    if not known:
        return ""
    return (
        f"; for the local runs ({listed(known, 3)}): `kfp-tfjob why {known[0]}` explains one,"
        f" `kfp-tfjob logs {known[0]}` shows what it printed, and `kfp-tfjob models list` shows"
        " their models"
    )


class BackEnd:
    """An open connection.

    Attributes:
        connection: Where it is.
        sdk: The client of the SDK.
        multi_user: Whether runs belong to namespaces of users.
        version: As the back end reports it, for example `2.17.0`; some builds say `unknown`.
        namespace: The namespace of the runs; empty for a back end without users.
    """

    def __init__(self, connection: Connection, patience: float = 20) -> None:
        self.connection = connection
        self.version = "unknown"
        self._patience = Patience(
            patience, first=0.5, longest=5, party="Kubeflow Pipelines", error=BackEndAwayError
        )
        try:
            self.sdk = self._translated(
                "connect",
                lambda: replace(self._patience, seconds=min(patience, _CONNECT)).run(
                    "connect", lambda: _client(connection), is_passing
                ),
            )
            health = self.call("connect", self._health)
        except UnknownRunError as error:
            received = [it.received for it in error.problems if isinstance(it, Problem)]
            raise no_back_end(connection.host, str(received[0])) from error
        self.multi_user = bool(health.multi_user)
        self.namespace = ""
        if self.multi_user:
            self.namespace = connection.namespace or self.sdk.get_user_namespace() or _own()
        if connection.namespace and not self.multi_user:
            log.warning(
                "note: this back end is not multi-user, so --namespace %s is ignored",
                connection.namespace,
            )
        if self.multi_user and not self.namespace:
            raise ConfigurationError(
                Problem(
                    "this Kubeflow Pipelines back end has a namespace for each user, but none was"
                    " given",
                    received="nothing",
                    expected="the namespace of your profile",
                    fix="add --namespace NAME",
                )
            )

    @property
    def host(self) -> str:
        """URL of the back end as the SDK uses it."""
        return str(self.sdk.runs.run_service_get_run.__self__.api_client.configuration.host)

    def page(self, run_id: str) -> str:
        """Return the address of a run in the UI."""
        base = os.environ.get(UI_ENDPOINT) or self.connection.host or self.host
        return f"{base.rstrip('/')}/#/runs/details/{run_id}"

    def call(self, what: str, method: Callable[..., Any], *given: Any, **named: Any) -> Any:
        """Return the answer of a method of the generated API; it is repeated if nothing answers.

        Raises:
            UnknownRunError: There is no such object.
            ConfigurationError: No permission, or not a Kubeflow Pipelines back end.
            BackEndAwayError: Nothing answers.
            BackEndError: Any other error of the back end.
        """
        return self._translated(
            what,
            lambda: self._patience.run(
                what, lambda: method(*given, _request_timeout=_SECONDS, **named), is_passing
            ),
        )

    def once(self, what: str, method: Callable[..., Any], *given: Any, **named: Any) -> Any:
        """Return the answer of a method that must not be repeated; raises as `call` does."""
        return self._translated(what, lambda: method(*given, _request_timeout=_SECONDS, **named))

    def pages(self, what: str, method: Callable[..., Any], items: str, **named: Any) -> Iterator:
        """Yield the items of a list, page by page; raises as `call` does."""
        token = ""
        while True:
            reply = self.call(what, method, page_token=token, page_size=_PAGE, **named)
            yield from getattr(reply, items) or ()
            token = reply.next_page_token
            if not token:
                return

    def experiment_id(self) -> str:
        """Return the id of the experiment of new runs; it is created if it does not exist."""
        name = self.connection.experiment
        if found := self.find_experiment(name):
            return found
        body = self.sdk.api_models.V2beta1Experiment(
            display_name=name, namespace=self.namespace or None
        )
        method = self.sdk.experiments.experiment_service_create_experiment
        return self.once("create the experiment", method, experiment=body).experiment_id

    def find_experiment(self, name: str) -> str:
        """Return the id of an experiment; empty if there is none."""
        found = self.pages(
            "list the experiments",
            self.sdk.experiments.experiment_service_list_experiments,
            "experiments",
            namespace=self.namespace,
            filter=equals("name", name),
        )
        return next((it.experiment_id for it in found), "")

    def _health(self, **named: Any) -> Any:
        """Return what the back end reports about itself; reject what is not JSON."""
        method = self.sdk.healthzs.healthz_service_get_healthz
        found = method(**named)
        try:
            health = json.loads(method.__self__.api_client.last_response.data)
        except ValueError as error:
            raise no_back_end(self.connection.host, f"no JSON: {error}") from error
        if not isinstance(health, dict):
            raise no_back_end(self.connection.host, f"a {type(health).__name__} in JSON")
        self.version = str(health.get("tag_name") or "unknown")
        return found

    def _translated(self, what: str, call: Callable[[], Any]) -> Any:
        import urllib3
        from kfp_server_api import ApiException

        try:
            return call()
        except BackEndAwayError as error:
            cause = error.__cause__
            if isinstance(cause, ApiException):
                raise translate(what, cause, self.connection.host) from error
            raise away(what, cause or error, self.connection.host) from error
        except StepError:
            raise
        except ApiException as error:
            raise translate(what, error, self.connection.host) from error
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise away(what, error, self.connection.host) from error
        except (TypeError, ValueError, AttributeError) as error:
            if not _is_of_reply(error):
                raise
            raise no_back_end(self.connection.host, f"{type(error).__name__}: {error}") from error


def _is_of_reply(error: Exception) -> bool:
    """Return whether the generated client raised an error while it read a reply."""
    from kfp_server_api import ApiClient

    frames = (frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__))
    return isinstance(error, UnicodeDecodeError) or ApiClient.deserialize.__code__ in frames


def equals(key: str, value: str) -> str:
    """Return a filter for lists: the objects whose `key` is `value`."""
    predicate = {"operation": "EQUALS", "key": key, "stringValue": value}
    return json.dumps({"predicates": [predicate]})


def _client(connection: Connection) -> kfp.Client:
    """Return the client of the SDK, without its prints, its warnings and its waiting."""
    import kfp
    import urllib3
    from kfp.client import ServiceAccountTokenVolumeCredentials

    # Each call is repeated, and said, here. The generated client sets the logger above it.
    logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)

    class Client(kfp.Client):
        healthzs: Any  # the SDK adds it when it connects

        def _load_config(self, *given: Any, **named: Any) -> Any:
            """Return the configuration; urllib3 would send every call three more times."""
            found: Any = super()._load_config(*given, **named)
            found.retries = urllib3.Retry(connect=0, read=0)
            return found

        def get_kfp_healthz(self, sleep_duration: int = 5) -> Any:
            """Return what the back end reports about itself, without the SDK's five attempts."""
            return self.healthzs.healthz_service_get_healthz(_request_timeout=_SECONDS)

    credentials = None
    if connection.token_file and connection.host:
        if not _has_token(Path(connection.token_file)):
            raise ConfigurationError(
                Problem(
                    "the token file is empty or cannot be read",
                    received=connection.token_file,
                    expected="a file with a bearer token",
                    fix=f"correct --token-file or {TOKEN_FILE}",
                )
            )
        credentials = ServiceAccountTokenVolumeCredentials(connection.token_file)
    # Filters and standard output belong to all threads, and doctor makes clients in several. What
    # is put back late would stay changed for good; so the filters stay.
    for said in ("This client only works with", "The host .* does not contain"):
        warnings.filterwarnings("ignore", said)
    # Only without a host does the SDK print: what it could not read.
    with contextlib.nullcontext() if connection.host else _silent():
        try:
            return Client(
                host=connection.host or None,
                ssl_ca_cert=connection.ca_file or None,
                credentials=credentials,
            )
        except (TypeError, ValueError, AttributeError) as error:  # it trusts the first reply
            raise no_back_end(connection.host, f"{type(error).__name__}: {error}") from error


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    with _ONE_AT_A_TIME, contextlib.redirect_stdout(io.StringIO()):
        yield


def _has_token(file: Path) -> bool:
    """Return whether a file has a token; the SDK would end in its own error without one."""
    try:
        return bool(file.read_text().strip())
    except (OSError, ValueError):
        return False


def _has_kubeconfig() -> bool:
    paths = os.environ.get("KUBECONFIG", "~/.kube/config").split(os.pathsep)
    return any(Path(path).expanduser().is_file() for path in paths if path)


def _own() -> str:
    """Return the namespace of this pod; empty outside a cluster."""
    path = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
    return path.read_text().strip() if path.is_file() else ""
