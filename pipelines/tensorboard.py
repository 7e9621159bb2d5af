"""Runs TensorBoard on this machine for a run, or for the runs of a model, with their logs in S3."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import boto3
import botocore.session
from botocore.config import Config

from kfp_tfjob.pipelines.local.home import Home
from kfp_tfjob.pipelines.local.stored import store_of
from kfp_tfjob.pipelines.stored_run import named_folder, nothing_stored
from kfp_tfjob.registry.runs import runs_of
from kfp_tfjob.storage.errors import ConfigurationError, DataError, Problem
from kfp_tfjob.storage.formatting import counted
from kfp_tfjob.storage.layout import RUNS, Layout, RunLayout
from kfp_tfjob.storage.retry import Patience
from kfp_tfjob.storage.store import Store

_PATIENCE = Patience(seconds=15)  # a user is waiting


def serve(
    run_uri: str,
    endpoint: str,
    home: Path,
    port: int,
    show: Callable[[str], None],
    known: str = "",
) -> None:
    """Run TensorBoard until the process is stopped.

    Args:
        run_uri: s3://BUCKET/PREFIX/runs/ID.
        endpoint: URL of the store; empty to use the environment or AWS.
        home: The folder of local runs.
        port: The port; 0 for any free port.
        show: Prints a line.
        known: The name and the state by which Kubeflow Pipelines knows the run; empty if it was
            not asked.

    Raises:
        ConfigurationError: The address, the endpoint, the keys or the port are wrong.
        DataError: There is no such run, or it has no logs yet.
    """
    run = named_folder(run_uri, "RUN_URI")
    with store_of(run.base, endpoint, Home(home.absolute()), _PATIENCE) as store:
        _require_logs(store, run, known)
        url = _launch(store, f"--logdir={run.logs}", port)
        _wait(str(run.logs), url, show)


def serve_model(
    store: Store, layout: Layout, model: str, most: int, port: int, show: Callable[[str], None]
) -> None:
    """Run TensorBoard with the newest evaluated runs of a model until the process is stopped.

    Args:
        store: The store.
        layout: Everything below output_uri.
        model: The model.
        most: How many runs.
        port: The port; 0 for any free port.
        show: Prints a line.

    Raises:
        ConfigurationError: The port is wrong.
        DataError: No run has evaluated the model.
    """
    runs = runs_of(store, layout, model)[:most]
    if not runs:
        raise DataError(
            Problem(
                f"no run has evaluated the model {model}",
                received=f"no such verdict below {layout.root / RUNS}",
                expected="the name of a model of this project",
                fix="compare the name and --output with `kfp-tfjob models list`; a run without a"
                " verdict is shown by its id",
            )
        )
    places = ",".join(f"{it.name}:{it.run.logs}" for it in runs)
    url = _launch(store, f"--logdir_spec={places}", port)
    _wait(f"{counted(len(runs), 'run')} of {model}", url, show)


def _wait(what: str, url: str, show: Callable[[str], None]) -> None:
    show(f"TensorBoard shows {what} at {url}. Press Ctrl-C to stop.")
    with suppress(KeyboardInterrupt):
        threading.Event().wait()


def _require_logs(store: Store, run: RunLayout, known: str) -> None:
    """Refuse a run that TensorBoard would show as an empty page."""
    if any(store.list(run.logs)):
        return
    if any(store.list(run.base)):
        raise DataError(
            Problem(
                f"the run {run.base} has no logs yet",
                received=f"nothing below {run.logs}",
                expected="the event files of the first epoch",
                fix="try again when the log of launch_tfjob shows the first epoch",
            )
        )
    raise nothing_stored(run, known, "RUN_URI")


def _launch(store: Store, logs: str, port: int) -> str:
    """Start the server in a thread and return its address."""
    # If TensorFlow is installed, TensorBoard reads files through it, and TensorFlow 2.21 cannot
    # read S3. Without TensorFlow it reads S3 through boto3.
    sys.modules["tensorflow"] = None  # type: ignore[assignment]  # from here on, importing it fails
    _as_the_store_does(store)  # before the import, which reads the endpoint
    from tensorboard import default, program

    server = program.TensorBoard(default.get_plugins())
    server.configure(argv=["tensorboard", logs, f"--port={port}"])
    try:
        return server.launch()
    except program.TensorBoardServerException as error:
        raise ConfigurationError(
            Problem(
                "TensorBoard cannot be started",
                received=str(error),
                fix="choose another --port",
            )
        ) from None


def _as_the_store_does(store: Store) -> None:
    """Give boto3 the endpoint, keys and addressing that the store has just used."""
    options = store.session.options
    session = botocore.session.get_session()
    session._credentials = store.session.client._get_credentials()
    session.set_config_variable("region", store.region)
    style = options.addressing or ("path" if store.endpoint else "auto")
    session.set_default_client_config(Config(s3={"addressing_style": style}))
    boto3.setup_default_session(botocore_session=session)
    places = {"S3_ENDPOINT": store.endpoint, "AWS_CA_BUNDLE": options.ca_bundle}
    os.environ.update({name: value for name, value in places.items() if value})
