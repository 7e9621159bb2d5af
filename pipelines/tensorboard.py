"""Runs TensorBoard on this machine for a run, or for the runs of a model, with their logs in S3.

TensorBoard reads S3 itself, with boto3's default session, which is given the store's endpoint and
keys first. Called by the command `tensorboard.py`.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

import boto3
import botocore.session
from botocore.config import Config

from kfp_tfjob.common.errors import ConfigurationError, DataError, Problem
from kfp_tfjob.common.formatting import counted
from kfp_tfjob.registry.runs import runs_of
from kfp_tfjob.storage.layout import RUNS, Layout
from kfp_tfjob.storage.store import Store

from .ctrl_c import interruptible
from .stored_run import StoredRun


def serve(stored: StoredRun, port: int, show: Callable[[str], None]) -> None:
    """Run TensorBoard with a run's curves until the process is stopped.

    Args:
        stored: The run.
        port: The port on this machine; 0 for a free one.
        show: Called with a line that contains TensorBoard's address.

    Raises:
        ConfigurationError: The port cannot be used.
        DataError: The run has not stored logs yet.
    """
    if not any(stored.store.list(stored.run.logs)):  # an empty page would not give the reason
        raise stored.lacks(
            Problem(
                f"the run {stored.run.base} has no logs yet",
                received=f"nothing below {stored.run.logs}",
                expected="the event files of the first epoch",
                fix="try again when the log of launch_tfjob shows the first epoch",
            )
        )
    url = _launch(stored.store, f"--logdir={stored.run.logs}", port)
    _wait(str(stored.run.logs), url, show)


def serve_model(
    store: Store, layout: Layout, model: str, most: int, port: int, show: Callable[[str], None]
) -> None:
    """Run TensorBoard with a model's newest evaluated runs until the process is stopped.

    Args:
        store: The store.
        layout: Everything below output_uri.
        model: The model's name.
        most: How many runs to show.
        port: The port on this machine; 0 for a free one.
        show: Called with a line that contains TensorBoard's address.

    Raises:
        ConfigurationError: The port cannot be used.
        DataError: No run has evaluated the model.
    """
    runs = runs_of(store, layout, model)[:most]
    if not runs:
        raise DataError(
            Problem(
                f"no run has evaluated the model {model}",
                received=f"no such verdict below {layout.root / RUNS}",
                expected="the name of a model that a run has evaluated",
                fix="compare the name and --output with `kfp-tfjob models list`; a run without a"
                " verdict is shown by its id",
            )
        )
    folders = ",".join(f"{evaluated.name}:{evaluated.run.logs}" for evaluated in runs)
    url = _launch(store, f"--logdir_spec={folders}", port)
    _wait(f"{counted(len(runs), 'run')} of {model}", url, show)


def _wait(content: str, url: str, show: Callable[[str], None]) -> None:
    show(f"TensorBoard shows {content} at {url}. Press Ctrl-C to stop.")
    with suppress(KeyboardInterrupt), interruptible():
        threading.Event().wait()  # the server runs in a thread until the process ends


def _launch(store: Store, logs: str, port: int) -> str:
    """Start TensorBoard in a thread and return its address.

    Args:
        store: The store of the logs.
        logs: The argument that names the logs' folders.
        port: The port; 0 for a free one.
    """
    # If TensorFlow is installed, TensorBoard reads files through it, and TensorFlow 2.21 cannot
    # read S3. Without TensorFlow it reads S3 through boto3.
    sys.modules["tensorflow"] = None  # type: ignore[assignment]  # from here on, importing it fails
    _configure_boto3(store)  # before the import, which reads the endpoint
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
                expected="a free port",
                fix="choose another --port",
            )
        ) from None


def _configure_boto3(store: Store) -> None:
    """Give boto3's default session the endpoint, keys and addressing of the store."""
    settings = store.session.settings
    session = botocore.session.get_session()
    session._credentials = store.session.client._get_credentials()
    session.set_config_variable("region", store.region)
    style = settings.addressing or ("path" if store.endpoint else "auto")
    session.set_default_client_config(Config(s3={"addressing_style": style}))
    boto3.setup_default_session(botocore_session=session)
    variables = {"S3_ENDPOINT": store.endpoint, "AWS_CA_BUNDLE": settings.ca_bundle}
    os.environ.update({name: setting for name, setting in variables.items() if setting})
