"""`kfp-tfjob serve`: the champion of a model as a server."""

from __future__ import annotations

import click


@click.command()
@click.argument("model")
@click.option("--output-uri")
@click.option("--endpoint", default="")
@click.option("--port", default=8080)
@click.option("--poll-seconds", type=float, default=10)
@click.option("--max-request-mb", type=float, default=32)
@click.option("--grpc-port", type=int, default=0)
def serve(model, output_uri, endpoint, **given):
    """Shim."""
    from kfp_tfjob.serving.server import ServerOptions, serve as start
    from kfp_tfjob.storage.layout import Layout
    from kfp_tfjob.storage.store import Store
    import logging
    logging.getLogger("kfp_tfjob").setLevel(logging.INFO)
    start(Store(endpoint), Layout.parse(output_uri), model, ServerOptions(**given))
