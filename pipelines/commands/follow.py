"""`kfp-tfjob follow`: the champion as a folder, for servers that read no S3."""

from __future__ import annotations

import logging
import signal
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

import click

from .store import with_models

if TYPE_CHECKING:
    from .store import Models


@click.command()
@click.argument("model")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@with_models
@click.option("--once", is_flag=True, help="fetch the champion and exit")
@click.option(
    "--poll-seconds",
    type=click.FloatRange(min=0.1),
    default=10.0,
    show_default=True,
    help="how often to look for a new champion",
)
def follow(model: str, folder: Path, place: Models, once: bool, poll_seconds: float) -> None:
    """Keep MODEL's champion in FOLDER, for TensorFlow Serving.

    Pass FOLDER to TensorFlow Serving as --model_base_path. Each champion appears there as
    NUMBER/saved_model.pb, in one rename, once all of its files are verified; TensorFlow Serving
    loads the highest number. Without --once, the command runs until SIGTERM or Ctrl-C.
    """
    from kfp_tfjob.serving.champion_folder import ChampionFolder

    logging.getLogger("kfp_tfjob").setLevel(logging.INFO)
    ended = Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    champion = ChampionFolder(place.store, place.layout, model, folder)
    champion.update()
    if not once:
        champion.follow(poll_seconds, ended)
