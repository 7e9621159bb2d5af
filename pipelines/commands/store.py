"""The options that lead to published models: in S3, or in the folder of local runs.

A command works on both in the same way: for a folder, it starts the embedded store until it ends.
Called by `models.py`, `models_changes.py`, `serve.py`, `monitor.py` and `follow.py`, among others.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..local.home import DEFAULT
from .parameters import HERE, VARIABLE

if TYPE_CHECKING:
    from kfp_tfjob.storage.layout import Layout
    from kfp_tfjob.storage.store import Store

    from ..local.home import Home


@dataclass(frozen=True)
class Models:
    """The store and folder of published models.

    Attributes:
        store: The store.
        layout: Everything below output_uri.
        home: The folder of local runs, which may not exist.
        options: The options that lead there, for a command in a message.
    """

    store: Store
    layout: Layout
    home: Home
    options: str = ""


def with_models(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that lead to the models; the command receives them as `place`."""

    @wraps(command)
    def opened(output: str, endpoint: str, region: str, home: Path | None, **arguments: Any) -> Any:
        return command(place=open_models(output, endpoint, region, home), **arguments)

    options = (
        click.option(
            "--output",
            default="",
            metavar="URI",
            help=f"output_uri of the runs, s3://BUCKET/PREFIX [default: {VARIABLE}OUTPUT_URI, else"
            " the models of local runs]",
        ),
        click.option(
            "--endpoint",
            default="",
            metavar="URL",
            help="the S3 store, if it is not AWS [default: AWS_ENDPOINT_URL]; its keys come from"
            " the AWS environment",
        ),
        click.option("--region", default="", metavar="REGION", help="the store's region"),
        click.option(
            "--home",
            type=click.Path(path_type=Path, file_okay=False),
            help=f"the folder of local runs, if there is no --output; overrides"
            f" {VARIABLE}OUTPUT_URI [default: {DEFAULT}]",
        ),
    )
    for option in reversed(options):
        opened = option(opened)
    return opened


def open_models(output: str, endpoint: str, region: str, folder: Path | None) -> Models:
    """Return the models' store and folder; an embedded store runs until the command ends.

    Args:
        output: output_uri of the runs; empty for local runs with `folder`, else for the
            environment's, else for local runs.
        endpoint: URL of the store; empty for the AWS environment's.
        region: The store's region; empty for the environment's.
        folder: The folder of local runs; None for the default.
    """
    from kfp_tfjob.storage.layout import Layout
    from kfp_tfjob.storage.retry import Patience

    from ..local.embedded_store import embedded_store, store_of
    from ..local.home import Home

    patience = Patience(seconds=30, first=0.5, silence=15)  # a person waits
    if folder is None:  # an option takes precedence over the environment
        output = output or os.environ.get(f"{VARIABLE}OUTPUT_URI", "")
    home = Home((folder or DEFAULT).absolute())
    close_with_command = click.get_current_context().with_resource
    addresses = {"output": output, "endpoint": endpoint, "region": region, "home": folder}
    options = "".join(
        f" {shlex.join([f'--{name}', str(argument)])}"
        for name, argument in addresses.items()
        if argument
    )
    if not output and not endpoint:
        store = close_with_command(embedded_store(home, patience))
        return Models(store, Layout.parse(HERE["output_uri"]), home, options)
    layout = Layout.parse(output or HERE["output_uri"])
    store = close_with_command(store_of(layout.root, endpoint, home, patience, region))
    return Models(store, layout, home, options)
