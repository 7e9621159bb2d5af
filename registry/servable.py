"""Puts the champion where model servers look: `serving/<integer>/saved_model.pb`.

Servers such as TensorFlow Serving load the folder with the highest number, as soon as it has a
SavedModel. So a folder appears only for a champion, after its record, with saved_model.pb last, and
its number is always above the ones before: a rollback serves the old bytes under the next number.
Whoever comes next finishes what a killed process left.
"""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path

from kfp_tfjob.registry.chain import Proven, prove, sha256_problems
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.errors import DataError, ObjectNotFoundError, Problem
from kfp_tfjob.storage.layout import MODEL, REQUEST, SAVED_MODEL, Layout
from kfp_tfjob.storage.manifest import ManifestObject
from kfp_tfjob.storage.store import Store
from kfp_tfjob.storage.words import counted, listed
from kfp_tfjob.uploader.parallel import WORKERS, each

log = logging.getLogger(__name__)


def publish_newest(store: Store, layout: Layout, model_name: str) -> S3Address | None:
    """Complete the servable folder of the newest champion; a complete one stays as it is.

    Args:
        store: The store.
        layout: Everything below output_uri.
        model_name: The model.

    Returns:
        The folder; None if nothing was promoted yet.

    Raises:
        DataError: The champion is not proven, or the folder has another model.
    """
    champion = prove(store, layout, model_name)
    if champion is None:
        return None
    folder = layout.model(model_name).servable(champion.serving)
    if is_served(store, layout, champion):
        return folder
    wanted = [item for item in champion.manifest.objects if item.key == REQUEST]
    wanted += [item for item in champion.files if item.key != f"{MODEL}/{SAVED_MODEL}"]
    last = [item for item in champion.files if item.key == f"{MODEL}/{SAVED_MODEL}"]
    with tempfile.TemporaryDirectory(prefix="servable-") as scratch:

        def copy(item: ManifestObject) -> None:
            store.fetch(champion.version / item.key, Path(scratch), item)
            path = Path(scratch) / item.key
            DataError.raise_if(sha256_problems(champion.version, Path(scratch), [item]))
            store.send(path, folder / item.key.removeprefix(f"{MODEL}/"), item.key)
            path.unlink()

        store.probe(folder)  # before a server could see anything: it learns to check sums
        for part in (wanted, last):
            for _, copied in each(copy, part, WORKERS):
                copied.result()
    log.info("servers find the champion in %s: %s", folder, counted(len(wanted) + 1, "file"))
    return folder


def is_served(store: Store, layout: Layout, champion: Proven) -> bool:
    """Tell whether the servable folder of a champion is complete: whether saved_model.pb is there.

    Raises:
        DataError: It is there, and the folder has another model.
    """
    folder = layout.model(champion.model_name).servable(champion.serving)

    def wrong(item: ManifestObject) -> str:
        name = item.key.removeprefix(f"{MODEL}/")
        try:
            found = store.entry(folder / name, item.key)
        except ObjectNotFoundError:
            return f"no {name}"
        same = (found.size, found.crc64nvme) == (item.size, item.crc64nvme)
        return "" if same else f"{name} of {found.size} bytes, CRC64NVME {found.crc64nvme}"

    (last,) = (it for it in champion.files if it.key == f"{MODEL}/{SAVED_MODEL}")
    first = wrong(last)
    if first == f"no {SAVED_MODEL}":
        return False
    others = [it for it in champion.files if it is not last]
    found = [first, *(outcome.result() for _, outcome in each(wrong, others, WORKERS))]
    if any(found):
        raise DataError(
            Problem(
                f"{folder} is not the model of the champion",
                received=listed(list(filter(None, found)), 3),
                expected=f"the files of version {champion.champion.version}",
                fix="remove this folder: it was altered, or written by something else. Then:"
                " kfp-tfjob models sync",
            )
        )
    return True
