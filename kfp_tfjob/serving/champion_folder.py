"""Mirrors the champion into a local folder, for TensorFlow Serving, which does not read S3.

TensorFlow Serving loads the highest number below its base path, so the folder gets
`<number>/saved_model.pb`, with the numbers of the store's serving folder. Files are verified before
they appear, in one rename, and the current version stays until its successor is complete. Otherwise
the server could load half a model. Called by `kfp-tfjob follow`.
"""

from __future__ import annotations

import fcntl
import logging
import shutil
import threading
from pathlib import Path

from kfp_tfjob.common.errors import ConfigurationError, DataError, Problem, StepError
from kfp_tfjob.common.formatting import listed
from kfp_tfjob.common.names import check_model_name
from kfp_tfjob.registry.chain import VerifiedChampion, fetch, verify_champion
from kfp_tfjob.registry.champion import no_champion
from kfp_tfjob.storage.checksum import file_crc64nvme
from kfp_tfjob.storage.layout import MODEL, Layout
from kfp_tfjob.storage.manifest import Manifest
from kfp_tfjob.storage.store import Store

_INCOMING = ".incoming"  # not a number, so servers ignore it
_REPLACED = ".wrong"
_LOCK = ".lock"
_KEPT_VERSIONS = 2  # the current one, and the previous one, which a server may still be loading

log = logging.getLogger(__name__)


class ChampionFolder:
    """A folder with a model's current champion.

    Args:
        store: The store.
        layout: The addresses below output_uri.
        model_name: The model.
        folder: The server's base path for this model; only this class writes there.

    Raises:
        ConfigurationError: The name is not valid.
    """

    def __init__(self, store: Store, layout: Layout, model_name: str, folder: Path) -> None:
        ConfigurationError.raise_if(check_model_name(model_name))
        self._store, self._layout = store, layout
        self._model_name, self._folder = model_name, folder
        # The number and the manifest's digest of the folder that was compared with its manifest.
        self._verified: tuple[int, str] | None = None

    def update(self) -> int:
        """Fetch the champion if the folder does not have it.

        A folder that another process has left is compared with the manifest once. It may contain
        another model with the same number, or be incomplete because the node went down.

        Returns:
            The number of the champion's folder.

        Raises:
            DataError: There is no champion, it cannot be verified, or its files are damaged.
            ConfigurationError: The folder cannot be written, contains versions that this class did
                not write, or there is no space.
            StoreUnavailableError: The store is unreachable.
        """
        verified = verify_champion(self._store, self._layout, self._model_name)
        if verified is None:
            raise DataError(no_champion(self._layout, self._model_name))
        target = self._folder / str(verified.serving)
        is_new, incoming = not target.is_dir(), self._folder / _INCOMING
        identity = (verified.serving, verified.manifest.digest)
        if is_new or incoming.exists() or self._verified != identity:
            try:
                self._fetch(verified, target, incoming)
                self._verified = identity
            except OSError as error:
                raise ConfigurationError(
                    Problem(
                        f"the champion cannot be written to {self._folder}",
                        received=str(error),
                        expected="a folder that this process may write, with space for the model",
                        fix="mount a volume there that is large enough",
                    )
                ) from error
        if is_new:
            log.info(
                "%s has champion %d of %s, version %d",
                target,
                verified.champion.number,
                self._model_name,
                verified.champion.version,
            )
        self._remove_outdated(verified)
        return verified.serving

    def follow(self, seconds: float, ended: threading.Event) -> None:
        """Update the folder until `ended` is set; log each new error once.

        Args:
            seconds: The time between two updates.
            ended: Set by the caller to stop.
        """
        logged = ""
        while not ended.wait(seconds):
            try:
                self.update()
            except StepError as error:
                if str(error) != logged:
                    log.error("the folder is left unchanged: %s", error)
                logged = str(error)
            else:
                logged = ""

    def _fetch(self, verified: VerifiedChampion, target: Path, incoming: Path) -> None:
        """Fetch a champion into a folder that appears in one rename.

        A second process with the same folder waits, and then finds the version complete. If two
        processes wrote at the same time, they could mix two versions.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        if (foreign := self._numbers()) and not (self._folder / _LOCK).exists():
            raise ConfigurationError(
                Problem(
                    f"{self._folder} contains versions that this command did not write, and it"
                    " would delete them",
                    received=listed(map(str, sorted(foreign)), 5),
                    expected="an empty folder, or one that this command keeps",
                    fix="choose another folder",
                )
            )
        with open(self._folder / _LOCK, "ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not _matches_manifest(target, verified.manifest):
                _remove_foreign_files(incoming, verified.manifest)
                fetch(self._store, verified, incoming)
                if target.exists():
                    log.warning("%s differs from the champion and is replaced", target)
                    target.rename(incoming / _REPLACED)
                (incoming / MODEL).rename(target)
            shutil.rmtree(incoming, ignore_errors=True)

    def _numbers(self) -> set[int]:
        return {int(path.name) for path in self._folder.iterdir() if path.name.isdecimal()}

    def _remove_outdated(self, verified: VerifiedChampion) -> None:
        """Remove folders of champions before the previous one, and of removed champion records."""
        current = verified.serving
        numbers = self._numbers()
        outdated = sorted((number for number in numbers if number < current), reverse=True)
        outdated = outdated[_KEPT_VERSIONS - 1 :] + [
            number for number in numbers if number > current
        ]
        next_record = self._layout.model(self._model_name).champion(verified.champion.number + 1)
        # A listing may lag behind: if the next champion's record exists, a higher folder is valid.
        if max(numbers) > current and self._store.has(next_record):
            return
        for number in outdated:
            shutil.rmtree(self._folder / str(number), ignore_errors=True)


def _matches_manifest(folder: Path, manifest: Manifest) -> bool:
    """Return whether a folder contains the manifest's SavedModel files; it may contain more."""
    objects = [stored for stored in manifest.objects if stored.key.startswith(f"{MODEL}/")]
    try:
        return folder.is_dir() and all(
            file_crc64nvme(folder / stored.key.removeprefix(f"{MODEL}/")) == stored.crc64nvme
            for stored in objects
        )
    except FileNotFoundError:
        return False


def _remove_foreign_files(folder: Path, manifest: Manifest) -> None:
    """Remove files that the manifest does not list; a killed process may have left them."""
    expected = {folder / stored.key for stored in manifest.objects}
    for path in list(folder.rglob("*")):
        if path not in expected and (path.is_symlink() or not path.is_dir()):
            path.unlink()
