"""`kfp-tfjob serve`: the champion of a model as a server."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any

import click

from .store import with_models

if TYPE_CHECKING:
    from .store import Models


@click.command()
@click.argument("model", metavar="MODEL")
@with_models
@click.option(
    "--host",
    default="",
    metavar="ADDRESS",
    help="the address to listen on; 0.0.0.0 means all interfaces [default: 127.0.0.1; in a pod, all"
    " interfaces]",
)
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    default=8080,
    show_default=True,
    help="the HTTP port for predictions, health and metrics",
)
@click.option(
    "--poll-seconds",
    type=click.FloatRange(0.1, 3600),
    default=10,
    show_default=True,
    help="how often to look for a new champion",
)
@click.option(
    "--max-request-mb",
    type=click.FloatRange(0.001, 1024),
    default=32,
    show_default=True,
    help="the largest request, in MB; larger ones get status 413",
)
@click.option(
    "--sample-rows",
    type=click.IntRange(0, 100_000),
    default=0,
    metavar="N",
    help="store this many requested rows per minute, for `kfp-tfjob monitor` [default: none]",
)
@click.option(
    "--sample-without",
    multiple=True,
    metavar="COLUMN",
    help="a column to omit from the sample; may be repeated",
)
@click.option(
    "--batch-milliseconds",
    type=click.FloatRange(0, 10_000),
    default=0,
    metavar="MS",
    help="requests that arrive within this time are predicted together [default: no batching]",
)
@click.option(
    "--batch-rows",
    type=click.IntRange(2, 4096),
    default=32,
    show_default=True,
    help="with --batch-milliseconds: predict at once when this many rows are waiting",
)
def serve(model: str, place: Models, sample_without: tuple[str, ...], **arguments: Any) -> None:
    """Serve the predictions of a model's champion.

    The server answers REST at http://HOST:PORT/v1/models/MODEL:predict and, in the Open Inference
    Protocol, /v2/models/MODEL/infer. The server loads only a champion that the records in
    the store verify, and switches to the next one without losing a request. /v2/health/ready shows
    whether it is ready, and /metrics provides metrics for Prometheus.

    Requests do not need a password, so outside a pod the server listens only on this machine.

    It needs the extra `serve`. Press Ctrl-C to stop.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # TensorFlow's remarks about the machine
    from kfp_tfjob.serving.server import ServerOptions
    from kfp_tfjob.serving.server import serve as start

    logging.getLogger("kfp_tfjob.serving").setLevel(logging.INFO)
    options = ServerOptions(sample_without=sample_without, **arguments)
    start(place.store, place.layout, model, options)
