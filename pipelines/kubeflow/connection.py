"""Connects to a Kubeflow Pipelines back end, with the authentication of its SDK.

The SDK's client decides where the back end is and who asks: `KF_PIPELINES_ENDPOINT`, the
`KF_PIPELINES_*` variables of Google's Identity-Aware Proxy, a token in a file, the service account
of a pod, or the kubeconfig. Here its errors become problems with a fix, and nothing waits forever.
Called by the Python client and by the commands that need the back end.
"""

from __future__ import annotations

import contextlib
import io
import ipaddress
import json
import logging
import os
import ssl
import threading
import traceback
import urllib.parse
import urllib.request
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kfp_tfjob.common.errors import ConfigurationError, Problem, StepError
from kfp_tfjob.common.formatting import listed
from kfp_tfjob.storage.retry import Patience

from ..local.home import DEFAULT, Home
from .errors import (
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

if TYPE_CHECKING:
    import kfp

log = logging.getLogger(__name__)

EXPERIMENT = "KF_PIPELINES_DEFAULT_EXPERIMENT_NAME"
OVERRIDE_EXPERIMENT = "KF_PIPELINES_OVERRIDE_EXPERIMENT_NAME"
_DEFAULT_EXPERIMENT = "Default"  # the name that Kubeflow Pipelines itself uses
_SECONDS = (5, 60)  # to connect, and between two bytes of a reply
_CONNECT = 3  # seconds; a wrong address is more likely than an absent back end
_PAGE = 100  # objects in a reply: few calls, and no reply that takes too long
_STDOUT_LOCK = threading.Lock()


@dataclass(frozen=True)
class Connection:
    """The address of a back end and the credentials for it, as `Client` describes them.

    The SDK chooses the fields that are empty.
    """

    host: str = ""
    namespace: str = ""
    experiment: str = ""
    token_file: str = ""
    ca_file: str = ""

    def open(self, patience: float = 20) -> BackEnd:
        """Connect, and check that a back end answers.

        Args:
            patience: How long a call is repeated while the back end does not respond, in seconds.

        Raises:
            ConfigurationError: The endpoint, the namespace or the permission is missing.
            BackEndAwayError: The back end does not respond.
        """
        completed = self._completed()
        user, _, address = completed.host.rpartition("@")
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
                    + _local_runs_hint(),
                    name="no-back-end",
                )
            )
        try:
            return BackEnd(completed, patience)
        except StepError as error:
            first, *further = error.problems
            if completed.host or not isinstance(first, Problem):
                raise
            # A kubeconfig alone does not say that there is a back end.
            raise type(error)(
                replace(first, fix=first.fix + _local_runs_hint()), *further
            ) from error

    @property
    def is_configured(self) -> bool:
        """Whether anything says where the back end is."""
        in_cluster = os.environ.get("KUBERNETES_SERVICE_HOST")
        return bool(self._completed().host or in_cluster or _has_kubeconfig())

    def _completed(self) -> Connection:
        """Return the connection with empty fields taken from the environment."""
        names = {"host": ENDPOINT, "token_file": TOKEN_FILE, "ca_file": CA_FILE}
        variables = {key: os.environ.get(name, "") for key, name in names.items()}
        experiment = self.experiment or os.environ.get(EXPERIMENT) or _DEFAULT_EXPERIMENT
        return replace(
            self,
            **{key: getattr(self, key) or setting for key, setting in variables.items()},
            experiment=os.environ.get(OVERRIDE_EXPERIMENT) or experiment,
        )


def _local_runs_hint() -> str:
    """Return a clause with the commands for runs on this machine; empty if there are none."""
    run_ids = [path.name for path in Home(DEFAULT).runs()]
    if not run_ids:
        return ""
    return (
        f"; for the local runs ({listed(run_ids, 3)}): `kfp-tfjob why {run_ids[0]}` explains one,"
        f" `kfp-tfjob logs {run_ids[0]}` shows what it printed, and `kfp-tfjob models list` shows"
        " their models"
    )


class BackEnd:
    """An open connection to a back end.

    Args:
        connection: The address and credentials.
        patience: How long a call is repeated while the back end does not respond, in seconds.

    Attributes:
        connection: The address and credentials.
        sdk: The client of the SDK.
        multi_user: Whether runs belong to namespaces of users.
        version: The version that the back end reports, for example `2.17.0`; some builds report
            `unknown`.
        namespace: The namespace of the runs; empty for a back end without users.
        lists_tasks: False after the back end has refused to list a run's task records.

    Raises:
        ConfigurationError: The back end has a namespace for each user, and the user's is unknown;
            or as `call` raises it.
    """

    def __init__(self, connection: Connection, patience: float = 20) -> None:
        self.connection = connection
        self.version = "unknown"
        self.lists_tasks = True
        self._patience = Patience(
            patience, first=0.5, longest=5, party="Kubeflow Pipelines", error=BackEndAwayError
        )
        try:
            self.sdk = self._translate_errors(
                "connect",
                lambda: replace(self._patience, seconds=min(patience, _CONNECT)).run(
                    "connect", lambda: _client(connection), is_passing
                ),
            )
            health = self.call("connect", self._health)
        except UnknownRunError as error:
            # The API does not have the path of its own health check, so it is another server.
            received = [
                problem.received for problem in error.problems if isinstance(problem, Problem)
            ]
            raise no_back_end(connection.host, str(received[0])) from error
        self.multi_user = bool(health.multi_user)
        self.namespace = ""
        if self.multi_user:
            self.namespace = (
                connection.namespace or self.sdk.get_user_namespace() or _pod_namespace()
            )
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
                    name="namespace-needed",
                )
            )

    @property
    def host(self) -> str:
        """The URL of the back end that the SDK uses."""
        return str(self.sdk.runs.run_service_get_run.__self__.api_client.configuration.host)

    def page(self, run_id: str) -> str:
        """Return the address of a run in the UI."""
        base = os.environ.get(UI_ENDPOINT) or self.connection.host or self.host
        return f"{base.rstrip('/')}/#/runs/details/{run_id}"

    def call(self, action: str, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Return the reply to a call that is repeated while the back end does not respond.

        Args:
            action: What the call does, for messages, for example `read the run`.
            method: A method of the generated API, which is safe to repeat.
            *args: Its arguments.
            **kwargs: Its keyword arguments.

        Raises:
            UnknownRunError: There is no such object.
            ConfigurationError: No permission, or not a Kubeflow Pipelines back end.
            BackEndAwayError: The back end does not respond.
            BackEndError: Any other error of the back end.
        """
        return self._translate_errors(
            action,
            lambda: self._patience.run(
                action, lambda: method(*args, _request_timeout=_SECONDS, **kwargs), is_passing
            ),
        )

    def call_with_body(
        self, action: str, method: Callable[..., Any], **kwargs: Any
    ) -> tuple[Any, Mapping[str, Any]]:
        """Return the reply as `call` does, and its JSON.

        The generated client drops fields that are newer than itself.
        """

        def with_body(**arguments: Any) -> tuple[Any, Mapping[str, Any]]:
            reply = method(**arguments)
            text, body = _last_reply(method), None
            with contextlib.suppress(ValueError):
                body = json.loads(text)
            return reply, body if isinstance(body, Mapping) else {}

        return self.call(action, with_body, **kwargs)

    def once(self, action: str, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Return the reply to a call that must not be repeated; arguments and errors as `call`."""
        return self._translate_errors(
            action, lambda: method(*args, _request_timeout=_SECONDS, **kwargs)
        )

    def pages(self, action: str, method: Callable[..., Any], field: str, **kwargs: Any) -> Iterator:
        """Yield the objects of a list, page by page; raises as `call` does.

        Args:
            action: What the call does, for messages.
            method: A method of the generated API that returns a page of a list.
            field: The attribute of the reply that contains the objects.
            **kwargs: The method's keyword arguments.
        """
        token = ""
        while True:
            reply = self.call(action, method, page_token=token, page_size=_PAGE, **kwargs)
            yield from getattr(reply, field) or ()
            token = reply.next_page_token
            if not token:
                return

    def experiment_id(self) -> str:
        """Return the id of the new runs' experiment, which is created if it does not exist."""
        name = self.connection.experiment
        if existing_id := self.find_experiment(name):
            return existing_id
        body = self.sdk.api_models.V2beta1Experiment(
            display_name=name, namespace=self.namespace or None
        )
        method = self.sdk.experiments.experiment_service_create_experiment
        return self.once("create the experiment", method, experiment=body).experiment_id

    def find_experiment(self, name: str) -> str:
        """Return the id of an experiment by its name; empty if there is none."""
        experiments = self.pages(
            "list the experiments",
            self.sdk.experiments.experiment_service_list_experiments,
            "experiments",
            namespace=self.namespace,
            filter=equals("name", name),
        )
        return next((experiment.experiment_id for experiment in experiments), "")

    def _health(self, **kwargs: Any) -> Any:
        """Return the reply to the health check, and read the version that it contains.

        Raises:
            StepError: The reply is not JSON, so the server is not Kubeflow Pipelines.
        """
        method = self.sdk.healthzs.healthz_service_get_healthz
        reply = method(**kwargs)
        # The generated model lacks the version, so the body is read again.
        text = _last_reply(method)
        try:
            health = json.loads(text)
        except ValueError as error:
            raise no_back_end(self.connection.host, f"no JSON: {error}") from error
        if not isinstance(health, dict):
            raise no_back_end(self.connection.host, f"a {type(health).__name__} in JSON")
        self.version = str(health.get("tag_name") or "unknown")
        return reply

    def _translate_errors(self, action: str, call: Callable[[], Any]) -> Any:
        """Return the result of a call; its errors become errors of this project."""
        import urllib3
        from kfp_server_api import ApiException

        try:
            return call()
        except BackEndAwayError as error:
            cause = error.__cause__
            if isinstance(cause, ApiException):
                raise translate(action, cause, self.connection.host) from error
            raise away(action, cause or error, self.connection.host) from error
        except StepError:
            raise
        except ApiException as error:
            raise translate(action, error, self.connection.host) from error
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise away(action, error, self.connection.host) from error
        except (TypeError, ValueError, AttributeError) as error:
            if not _is_about_reply(error):
                raise
            raise no_back_end(self.connection.host, f"{type(error).__name__}: {error}") from error


def _last_reply(method: Any) -> bytes:
    """Return the body of the last reply to the client whose method this is."""
    return method.__self__.api_client.last_response.data


def _is_about_reply(error: Exception) -> bool:
    """Return whether the generated client raised an error while it was reading a reply."""
    from kfp_server_api import ApiClient

    frames = (frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__))
    return isinstance(error, UnicodeDecodeError) or ApiClient.deserialize.__code__ in frames


def equals(key: str, value: str) -> str:
    """Return the API's filter for objects whose `key` is `value`."""
    predicate = {"operation": "EQUALS", "key": key, "stringValue": value}
    return json.dumps({"predicates": [predicate]})


def _client(connection: Connection) -> kfp.Client:
    """Return the SDK's client, without its output, its warnings and its own retries."""
    import kfp
    import urllib3

    # Calls are repeated and logged here. The generated client configures the parent logger.
    logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)

    class Client(kfp.Client):
        healthzs: Any  # the SDK adds it when it connects

        def _load_config(self, *args: Any, **kwargs: Any) -> Any:
            """Return the configuration, without urllib3's three retries of each call."""
            configuration: Any = super()._load_config(*args, **kwargs)
            configuration.retries = urllib3.Retry(connect=0, read=0, other=0)
            uses_tls = str(configuration.host).startswith("https:")
            if uses_tls and configuration.ssl_ca_cert == connection.ca_file:
                _check_ca_file(connection.ca_file)
            _keep_host(configuration)
            _set_proxy(configuration)
            return configuration

        def _get_config_with_default_credentials(self, config: Any) -> Any:
            """Return the configuration for a pod, with the token file if there is one."""
            if not connection.token_file:
                return super()._get_config_with_default_credentials(config)
            config.api_key["authorization"] = ""  # the hook reads it for every call
            config.api_key_prefix["authorization"] = "Bearer"
            config.refresh_api_key_hook = _token_credentials(connection).refresh_api_key_hook
            return config

        def get_kfp_healthz(self, sleep_duration: int = 5) -> Any:
            """Return the reply to the health check, without the SDK's five attempts."""
            return self.healthzs.healthz_service_get_healthz(_request_timeout=_SECONDS)

    has_credentials = connection.token_file and connection.host
    credentials = _token_credentials(connection) if has_credentials else None
    # All threads share the filters and standard output, and doctor creates clients in several. Two
    # threads that restore filters in the wrong order would change them for good, so they stay.
    for message in ("This client only works with", "The host .* does not contain"):
        warnings.filterwarnings("ignore", message)
    # The SDK prints only without a host, namely that it cannot read some configuration.
    with contextlib.nullcontext() if connection.host else _without_stdout():
        try:
            return Client(
                host=connection.host or None,
                ssl_ca_cert=connection.ca_file or None,
                credentials=credentials,
            )
        except (TypeError, ValueError, AttributeError) as error:  # it trusts the first reply
            raise no_back_end(connection.host, f"{type(error).__name__}: {error}") from error


def _token_credentials(connection: Connection) -> Any:
    """Return the SDK's credentials that read the token file for every call."""
    from kfp.client import ServiceAccountTokenVolumeCredentials

    if not _has_token(Path(connection.token_file)):
        raise ConfigurationError(
            Problem(
                "the token file is empty or cannot be read",
                received=connection.token_file,
                expected="a file with a bearer token",
                fix=f"correct --token-file or {TOKEN_FILE}",
            )
        )
    return ServiceAccountTokenVolumeCredentials(connection.token_file)


def _check_ca_file(file: str) -> None:
    """Raise a ConfigurationError for a file that does not contain CA certificates."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(file)
    except OSError as error:  # SSLError is one
        raise ConfigurationError(
            Problem(
                "the file of CA certificates cannot be used",
                received=f"{file}: {error.strerror or error}",
                expected="a file with CA certificates in PEM format",
                fix=f"correct --ca-file or {CA_FILE}",
            )
        ) from error


def _keep_host(configuration: Any) -> None:
    """Keep the back end's address when the kubeconfig's credentials are read for a call.

    With a token or an exec plugin, the Kubernetes client then sets the address to the cluster's,
    without the path of the back end's service, and replaces the hook by its own.
    """
    host, hook = configuration.host, configuration.refresh_api_key_hook
    if not hook:
        return

    def refresh(refreshed: Any) -> None:
        hook(refreshed)
        refreshed.host, refreshed.refresh_api_key_hook = host, refresh

    configuration.refresh_api_key_hook = refresh


def _set_proxy(configuration: Any) -> None:
    """Use the proxy that the environment names for the back end, as other programs do."""
    from urllib3.util import make_headers, parse_url

    url = parse_url(configuration.host)
    proxies = urllib.request.getproxies()
    proxy = proxies.get(url.scheme or "http") or proxies.get("all") or ""
    proxy = proxy if "://" in proxy or not proxy else f"http://{proxy}"
    # urllib3 supports no other proxies without further packages.
    if _is_near(url.host or "") or not proxy.startswith(("http://", "https://")):
        return
    if urllib.request.proxy_bypass(url.netloc or ""):
        return
    configuration.proxy = proxy
    if credentials := parse_url(proxy).auth:
        plain = urllib.parse.unquote(credentials)
        configuration.proxy_headers = make_headers(proxy_basic_auth=plain)


def _is_near(host: str) -> bool:
    """Return whether a host is this machine or in this cluster, where a proxy cannot reach it."""
    if host == "localhost" or host.endswith((".svc", ".svc.cluster.local")):
        return True
    address = host.strip("[]")
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False  # it is another name


@contextlib.contextmanager
def _without_stdout() -> Iterator[None]:
    with _STDOUT_LOCK, contextlib.redirect_stdout(io.StringIO()):
        yield


def _has_token(file: Path) -> bool:
    """Return whether a file contains a token; without one, the SDK raises an error of its own."""
    try:
        return bool(file.read_text().strip())
    except (OSError, ValueError):
        return False  # the caller names the file


def _has_kubeconfig() -> bool:
    paths = os.environ.get("KUBECONFIG", "~/.kube/config").split(os.pathsep)
    return any(Path(path).expanduser().is_file() for path in paths if path)


def _pod_namespace() -> str:
    """Return the namespace of this pod; empty outside a cluster."""
    path = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
    return path.read_text().strip() if path.is_file() else ""
