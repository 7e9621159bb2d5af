"""Puts the champion where model servers look: `serving/<integer>/saved_model.pb`.

Servers such as TensorFlow Serving load the folder with the highest number as soon as it contains a
SavedModel. So a folder is written only for a champion, after its record, with saved_model.pb last.
Its number is always above all earlier ones: a rollback serves the old bytes under the next number.
If a process is killed, the next caller completes the folder. Called by publish, rollbacks, and
`models promote` and `sync`.
"""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path

from kfp_tfjob.common.errors import DataError, ObjectNotFoundError
from kfp_tfjob.common.formatting import counted, listed
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import MODEL, REQUEST, SAVED_MODEL, Layout
from kfp_tfjob.storage.manifest import ManifestObject
from kfp_tfjob.storage.store import Store
from kfp_tfjob.uploader.parallel import WORKERS, each

from .chain import VerifiedChampion, sha256_problems, verify_champion
from .promotion import keep_copy

log = logging.getLogger(__name__)


def publish_newest(store: Store, layout: Layout, model_name: str) -> S3Address | None:
    """Complete the newest champion's servable folder; only missing or altered files are copied.

    A folder's number belongs to one champion, so a file that differs was altered. It is copied
    again. The copy of the record, champion.json, is written first.

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
    champion = verify_champion(store, layout, model_name)
    if champion is None:
        return None
    folder = layout.model(model_name).servable(champion.serving)
    missing = unserved(store, layout, champion)
    if not missing:
        return folder
    if SAVED_MODEL in missing.values():
        log.info("copying champion %d to the folder for servers", champion.champion.number)
    else:
        log.warning("%s was altered: %s is copied again", folder, listed(missing.values(), 3))
    with tempfile.TemporaryDirectory(prefix="servable-") as scratch:

        def copy(file: ManifestObject) -> None:
            store.fetch(champion.version / file.key, Path(scratch), file)
            path = Path(scratch) / file.key
            DataError.raise_if(sha256_problems(champion.version, Path(scratch), [file]))
            store.send(path, folder / missing[file], file.key)
            path.unlink()

        # Finds out whether the store verifies checksums, before a server can see any file.
        store.probe(folder)
        # saved_model.pb makes the folder visible to servers, so it is copied after all others.
        last = [file for file, name in missing.items() if name == SAVED_MODEL]
        for files in ([file for file in missing if file not in last], last):
            for _, copied in each(copy, files, WORKERS):
                copied.result()
    log.info("servers find the champion in %s: %s", folder, counted(len(missing), "file"))
    return folder


def unserved(store: Store, layout: Layout, champion: VerifiedChampion) -> dict[ManifestObject, str]:
    """Return a champion's files that its servable folder does not contain, or not with these bytes.

    Further files there, such as requests to warm up TensorFlow Serving, are ignored.

    Returns:
        Each file's name in the folder; empty if the folder is complete.
    """
    folder = layout.model(champion.model_name).servable(champion.serving)
    sizes = {listing.address: listing.size for listing in store.list(folder)}
    names = {
        file: file.key.removeprefix(f"{MODEL}/")
        for file in champion.manifest.objects
        if file.key == REQUEST or file.key.startswith(f"{MODEL}/")
    }

    def is_served(file: ManifestObject) -> bool:
        address = folder / names[file]
        if sizes.get(address) != file.size:
            return False
        try:
            return store.entry(address, file.key).crc64nvme == file.crc64nvme
        except ObjectNotFoundError:  # removed since it was listed
            return False

    served = dict(each(is_served, names, WORKERS))
    return {file: name for file, name in names.items() if not served[file].result()}


def servers_see(store: Store, layout: Layout, champion: VerifiedChampion) -> bool:
    """Return whether servers can load a champion's folder, which needs its saved_model.pb."""
    return store.has(layout.model(champion.model_name).servable(champion.serving) / SAVED_MODEL)
