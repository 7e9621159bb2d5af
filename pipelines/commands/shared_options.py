"""The options of the commands for Kubeflow Pipelines: the back end, the pipeline, the run.

Each decorator adds the options and gives the command an open client, so a command contains only
what it does. Called by every command that reaches runs, for example `submit.py` and `why.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..local.home import DEFAULT

if TYPE_CHECKING:
    from ..kubeflow.client import Client
    from ..local.runs import HomeRuns

CONNECTION_OPTIONS = ("host", "namespace", "token_file", "ca_file")  # of `with_connection`
_store_endpoint = click.option(
    "--endpoint",
    default="",
    metavar="URL",
    help="the S3 store's address for this machine [default: AWS_ENDPOINT_URL, else the run's];"
    " its keys come from the AWS environment",
)


with_experiment = click.option(
    "--experiment",
    default="",
    metavar="NAME",
    help="the experiment for new runs [default: KF_PIPELINES_DEFAULT_EXPERIMENT_NAME, else"
    " Default]",
)


def with_connection(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a connection; the command receives them as `connection`."""

    @wraps(command)
    def connected(
        host: str,
        namespace: str,
        token_file: str,
        ca_file: str,
        experiment: str = "",
        **arguments: Any,
    ) -> Any:
        from ..kubeflow.connection import Connection

        connection = Connection(host, namespace, experiment, token_file, ca_file)
        return command(connection=connection, **arguments)

    options = (
        click.option(
            "--host",
            default="",
            metavar="URL",
            help="the UI or API of Kubeflow Pipelines [default: KF_PIPELINES_ENDPOINT, else the"
            " service in this cluster, else the kubeconfig]",
        ),
        click.option(
            "--namespace",
            default="",
            metavar="NAME",
            help="your namespace, on a multi-user back end",
        ),
        click.option(
            "--token-file",
            default="",
            metavar="FILE",
            help="a file with a bearer token [default: KF_PIPELINES_SA_TOKEN_PATH]",
        ),
        click.option(
            "--ca-file",
            default="",
            metavar="FILE",
            help="the back end's CA certificates [default: SSL_CERT_FILE]",
        ),
    )
    for option in reversed(options):
        connected = option(connected)
    return connected


def with_pipeline(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that choose a pipeline and the account of its pods."""
    command = click.option(
        "--service-account",
        default="",
        metavar="NAME",
        help="the pods' service account [default: the back end's]",
    )(command)
    return click.option(
        "--pipeline",
        type=click.Path(path_type=Path, exists=True, dir_okay=False),
        metavar="FILE",
        help="YAML that `kfp-tfjob compile` wrote [default: the pipeline of this version]",
    )(command)


def with_client(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that reach the back end and the store; the command receives `client`."""

    @wraps(command)
    def connected(connection: Any, endpoint: str, **arguments: Any) -> Any:
        return command(client=open_client(connection, endpoint), **arguments)

    return with_connection(_store_endpoint(connected))


with_home = click.option(
    "--home",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIRECTORY",
    help=f"look only for local runs, in this folder [default: {DEFAULT}, then the back end]",
)


def with_runs(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that reach runs, also local ones; `client` has the methods for both."""

    @wraps(command)
    def connected(connection: Any, endpoint: str, home: Path | None, **arguments: Any) -> Any:
        client = open_runs(arguments.get("run", ""), home, connection, endpoint)
        return command(client=client, **arguments)

    return with_connection(_store_endpoint(with_home(connected)))


def open_runs(
    run: str, home: Path | None, connection: Any, endpoint: str = ""
) -> Client | HomeRuns:
    """Return the runs of a home if it has `run`, or if only it is asked for; else the back end's.

    Args:
        run: The run that a command names; empty for none.
        home: The folder of local runs, to look only there; None for the default and the back end.
        connection: How to reach Kubeflow Pipelines.
        endpoint: URL of the store as this machine reaches it.

    Raises:
        ConfigurationError: `home` is not a folder of local runs.
    """
    from ..local.home import Home
    from ..stored_run import local_folder, only_here

    runs_home = Home((home or DEFAULT).absolute())
    if home is not None:
        runs_home.check_exists()
    is_local = only_here(runs_home, home is not None, connection)
    if not is_local and not local_folder(runs_home, run, False):
        return open_client(connection, endpoint)
    from ..kubeflow.records import quiet
    from ..local.runs import HomeRuns

    quiet()
    return HomeRuns(runs_home, endpoint)


def open_client(connection: Any, endpoint: str = "") -> Client:
    """Return the client of a connection for a command, without log lines of the libraries.

    Commands report themselves what they cannot read.
    """
    from ..kubeflow.client import Client
    from ..kubeflow.records import quiet

    quiet()
    return Client.of(connection, endpoint)
