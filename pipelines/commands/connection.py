"""The options that name the Kubeflow Pipelines back end, for every command that talks to it."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import click


def with_connection(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a connection; the command receives them as `connection`."""

    @wraps(command)
    def connected(
        host: str, namespace: str, experiment: str, token_file: str, ca_file: str, **given: Any
    ) -> Any:
        from kfp_tfjob.pipelines.kubeflow.connection import Connection

        where = Connection(host, namespace, experiment, token_file, ca_file)
        return command(connection=where, **given)

    options = (
        click.option(
            "--host",
            default="",
            metavar="URL",
            help="the UI or API of Kubeflow Pipelines [default: KF_PIPELINES_ENDPOINT, else the"
            " service in this cluster, else the kubeconfig]",
        ),
        click.option(
            "--namespace", default="", metavar="NAME", help="your namespace, if users have one each"
        ),
        click.option(
            "--experiment",
            default="",
            metavar="NAME",
            help="the experiment of new runs [default: KF_PIPELINES_DEFAULT_EXPERIMENT_NAME, else"
            " Default]",
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
            help="the CA certificates of the back end [default: SSL_CERT_FILE]",
        ),
    )
    for option in reversed(options):
        connected = option(connected)
    return connected
