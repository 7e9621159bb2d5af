"""TensorBoard on this machine for a run whose logs lie in S3."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable

import boto3
import botocore.session
from botocore.config import Config

from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.credentials import SecretVolume
from kfp_tfjob.storage.errors import ConfigurationError, DataError, Problem
from kfp_tfjob.storage.layout import RunLayout
from kfp_tfjob.storage.retry import Patience
from kfp_tfjob.storage.store import Store

_PATIENCE = Patience(seconds=15)  # a person waits


def serve(run_uri: str, endpoint: str, port: int, show: Callable[[str], None]) -> None:
    """Run TensorBoard until the process is told to end.

    Args:
        run_uri: s3://BUCKET/PREFIX/runs/ID.
        endpoint: URL of the store; empty for what the environment or AWS says.
        port: To listen on; 0 for any that is free.
        show: Prints a line.

    Raises:
        ConfigurationError: The address, the endpoint, the keys or the port are wrong.
        DataError: There is no such run, or it has no logs yet.
    """
    run = _run(run_uri)
    store = Store(endpoint, patience=_PATIENCE)
    _require_logs(store, run)
    url = _launch(store, run.logs, port)
    show(f"TensorBoard shows {run.logs} at {url}, until Ctrl-C")
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        return


def _run(run_uri: str) -> RunLayout:
    address = S3Address.parse(run_uri, "RUN_URI")
    if address.key.split("/")[-2:-1] != ["runs"]:
        raise ConfigurationError(
            Problem(
                "RUN_URI is not the folder of a run",
                received=run_uri,
                expected="s3://BUCKET/PREFIX/runs/ID",
                fix="copy it from the page of launch_tfjob, or make it of output_uri and the run's"
                " id",
            )
        )
    return RunLayout(address)


def _require_logs(store: Store, run: RunLayout) -> None:
    """Refuse what TensorBoard would show as an empty page."""
    if any(store.list(run.logs)):
        return
    if any(store.list(run.base)):
        raise DataError(
            Problem(
                f"the run {run.base} has no logs yet",
                received=f"nothing below {run.logs}",
                expected="the event files that training writes in its first epoch",
                fix="try again once launch_tfjob says that training has begun",
            )
        )
    raise DataError(
        Problem(
            f"there is no run {run.base}",
            received="nothing lies below that address",
            expected="the folder of a run that has started",
            fix="correct RUN_URI, or name the store that has it with --endpoint",
        )
    )


def _launch(store: Store, logs: S3Address, port: int) -> str:
    """Start the server in a thread and return its address."""
    # TensorBoard reads files through TensorFlow where there is one, and TensorFlow 2.21 cannot
    # read S3. Without TensorFlow it reads S3 by itself, through boto3.
    sys.modules["tensorflow"] = None  # type: ignore[assignment]  # importing it fails from here on
    _as_the_store_does(store)  # before the import, which reads the endpoint
    from tensorboard import default, program

    server = program.TensorBoard(default.get_plugins())
    server.configure(argv=["tensorboard", f"--logdir={logs}", f"--port={port}"])
    try:
        return server.launch()
    except program.TensorBoardServerException as error:
        raise ConfigurationError(
            Problem("TensorBoard cannot be started", received=str(error), fix="name another --port")
        ) from None


def _as_the_store_does(store: Store) -> None:
    """Make boto3 speak to the store with the endpoint, keys and addressing that worked just now."""
    options = store.link.options
    session = botocore.session.get_session()
    SecretVolume.from_environment().install(session)
    session.set_config_variable("region", store.region)
    style = options.addressing or ("path" if store.endpoint else "auto")
    session.set_default_client_config(Config(s3={"addressing_style": style}))
    boto3.setup_default_session(botocore_session=session)
    places = {"S3_ENDPOINT": store.endpoint, "AWS_CA_BUNDLE": options.ca_bundle}
    os.environ.update({name: value for name, value in places.items() if value})
