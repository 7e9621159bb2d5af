"""Puts the champion where model servers look: `serving/<integer>/saved_model.pb`.

Servers such as TensorFlow Serving load the folder with the highest number, as soon as it has a
SavedModel. So a folder appears only for a champion, after its record, with saved_model.pb last, and
its number is always above the ones before: a rollback serves the old bytes under the next number.
The next caller finishes what a killed process left.
"""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path

from kfp_tfjob.registry.chain import Proven, prove, sha256_problems
from kfp_tfjob.registry.promotion import keep_copy
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.errors import DataError, ObjectNotFoundError
from kfp_tfjob.storage.formatting import counted, listed
from kfp_tfjob.storage.layout import MODEL, REQUEST, SAVED_MODEL, Layout
from kfp_tfjob.storage.manifest import ManifestObject
from kfp_tfjob.storage.store import Store
from kfp_tfjob.uploader.parallel import WORKERS, each

log = logging.getLogger(__name__)


def publish_newest(store: Store, layout: Layout, model_name: str) -> S3Address | None:
    """Complete the servable folder of the newest champion; files that are right stay as they are.

    The number of a folder belongs to one champion, so a file that differs was altered. It is
    copied again. The copy of the record, champion.json, is written first.

    Args:
        store: The store.
        layout: Everything below output_uri.
        model_name: The model.

    Returns:
        The folder; None if nothing was promoted yet.

    Raises:
        DataError: The champion cannot be verified.
    """
    keep_copy(store, layout, model_name)
    champion = prove(store, layout, model_name)
    if champion is None:
        return None
    folder = layout.model(model_name).servable(champion.serving)
    wrong = unserved(store, layout, champion)
    if not wrong:
        return folder
    if SAVED_MODEL in wrong.values():
        log.info("copying champion %d to the folder for servers", champion.champion.number)
    else:
        log.warning("%s was altered: %s is copied again", folder, listed(wrong.values(), 3))
    with tempfile.TemporaryDirectory(prefix="servable-") as scratch:

        def copy(item: ManifestObject) -> None:
            store.fetch(champion.version / item.key, Path(scratch), item)
            path = Path(scratch) / item.key
            DataError.raise_if(sha256_problems(champion.version, Path(scratch), [item]))
            store.send(path, folder / wrong[item], item.key)
            path.unlink()

        store.probe(folder)  # before a server could see anything: it learns to check sums
        last = [item for item, name in wrong.items() if name == SAVED_MODEL]
        for part in ([item for item in wrong if item not in last], last):
            for _, copied in each(copy, part, WORKERS):
                copied.result()
    log.info("servers find the champion in %s: %s", folder, counted(len(wrong), "file"))
    return folder


def unserved(store: Store, layout: Layout, champion: Proven) -> dict[ManifestObject, str]:
    """Return the files of a champion that its servable folder lacks or has with other bytes.

    Files beside them, such as requests to warm up TensorFlow Serving, are left alone.

    Returns:
        The name in the folder of each; empty if the folder is complete.
    """
    folder = layout.model(champion.model_name).servable(champion.serving)
    sizes = {it.address: it.size for it in store.list(folder)}
    wanted = {
        item: item.key.removeprefix(f"{MODEL}/")
        for item in champion.manifest.objects
        if item.key == REQUEST or item.key.startswith(f"{MODEL}/")
    }

    def is_right(item: ManifestObject) -> bool:
        address = folder / wanted[item]
        if sizes.get(address) != item.size:
            return False
        try:
            return store.entry(address, item.key).crc64nvme == item.crc64nvme
        except ObjectNotFoundError:  # removed meanwhile
            return False

    found = dict(each(is_right, wanted, WORKERS))
    return {item: name for item, name in wanted.items() if not found[item].result()}


def servers_see(store: Store, layout: Layout, champion: Proven) -> bool:
    """Return whether servers find a champion's folder: whether its saved_model.pb is there."""
    return store.has(layout.model(champion.model_name).servable(champion.serving) / SAVED_MODEL)
