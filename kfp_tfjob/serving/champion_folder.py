"""Keeps a local folder at the champion, for a server that follows a folder: TensorFlow Serving.

TensorFlow Serving reads no S3. It loads the highest number below its base path, so the folder gets
`<number>/saved_model.pb`, with the numbers of the servable folder in the store. The files are
proven first and appear in one rename. Whatever happens, the current files stay until their
successor is complete.
"""

from __future__ import annotations

import fcntl
import logging
import shutil
import threading
from pathlib import Path

from kfp_tfjob.registry.chain import Proven, fetch, prove
from kfp_tfjob.storage.champion import no_champion
from kfp_tfjob.storage.checksum import file_crc64nvme
from kfp_tfjob.storage.errors import ConfigurationError, DataError, Problem, StepError
from kfp_tfjob.storage.formatting import listed
from kfp_tfjob.storage.layout import MODEL, Layout
from kfp_tfjob.storage.manifest import Manifest
from kfp_tfjob.storage.names import check_model_name
from kfp_tfjob.storage.store import Store

_INCOMING = ".incoming"  # servers read folders with a number as their name
_WRONG = ".wrong"
_LOCK = ".lock"
_KEPT = 2  # a server may still load the one before

log = logging.getLogger(__name__)


class ChampionFolder:
    """A folder with a model's champion.

    Args:
        store: The store.
        layout: Everything below output_uri.
        model_name: The model.
        folder: The base path of the server for this model; this class alone writes there.

    Raises:
        ConfigurationError: The name is not valid.
    """

    def __init__(self, store: Store, layout: Layout, model_name: str, folder: Path) -> None:
        ConfigurationError.raise_if(check_model_name(model_name))
        self._store, self._layout = store, layout
        self._model_name, self._folder = model_name, folder
        self._right: tuple[int, str] | None = None  # number and manifest of what was compared

    def update(self) -> int:
        """Fetch the champion if the folder does not have it.

        A folder that another process has left is compared with the manifest once: it may be of
        another model with the same number, or half written when the node went down.

        Returns:
            The number of its folder.

        Raises:
            DataError: There is no champion, it cannot be verified, or its files are damaged.
            ConfigurationError: The folder cannot be written, has versions of others, or there is no
                space.
            StoreUnavailableError: The store is unreachable.
        """
        proven = prove(self._store, self._layout, self._model_name)
        if proven is None:
            raise DataError(no_champion(self._layout, self._model_name))
        target = self._folder / str(proven.serving)
        is_new, incoming = not target.is_dir(), self._folder / _INCOMING
        right = (proven.serving, proven.manifest.digest)
        if is_new or incoming.exists() or self._right != right:
            try:
                self._fetch(proven, target, incoming)
                self._right = right
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
                proven.champion.number,
                self._model_name,
                proven.champion.version,
            )
        self._remove_others(proven)
        return proven.serving

    def follow(self, seconds: float, ended: threading.Event) -> None:
        """Look for a new champion until `ended` is set; log what hinders it, each once.

        Args:
            seconds: Between two looks.
            ended: Set to end.
        """
        told = ""
        while not ended.wait(seconds):
            try:
                self.update()
            except StepError as error:
                if str(error) != told:
                    log.error("the folder is left unchanged: %s", error)
                told = str(error)
            else:
                told = ""

    def _fetch(self, proven: Proven, target: Path, incoming: Path) -> None:
        """Fetch a champion into a folder that appears in one rename.

        A second process that keeps the same folder waits, and finds it done: two that write at the
        same time could mix two versions.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        if (others := self._numbers()) and not (self._folder / _LOCK).exists():
            raise ConfigurationError(
                Problem(
                    f"{self._folder} contains versions that this command did not write, and it"
                    " would delete them",
                    received=listed(map(str, sorted(others)), 5),
                    expected="an empty folder, or one that this command keeps",
                    fix="choose another folder",
                )
            )
        with open(self._folder / _LOCK, "ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not _is_right(target, proven.manifest):
                _keep_only(incoming, proven.manifest)
                fetch(self._store, proven, incoming)
                if target.exists():
                    log.warning("%s differs from the champion and is replaced", target)
                    target.rename(incoming / _WRONG)
                (incoming / MODEL).rename(target)
            shutil.rmtree(incoming, ignore_errors=True)

    def _numbers(self) -> set[int]:
        return {int(path.name) for path in self._folder.iterdir() if path.name.isdecimal()}

    def _remove_others(self, proven: Proven) -> None:
        """Remove the folders below the current one but the last, and those of removed records."""
        current = proven.serving
        there = self._numbers()
        outdated = sorted((number for number in there if number < current), reverse=True)
        outdated = outdated[_KEPT - 1 :] + [number for number in there if number > current]
        following = self._layout.model(self._model_name).champion(proven.champion.number + 1)
        if max(there) > current and self._store.has(following):  # the listing was late
            return
        for number in outdated:
            shutil.rmtree(self._folder / str(number), ignore_errors=True)


def _is_right(folder: Path, manifest: Manifest) -> bool:
    """Return whether a folder has the files of a SavedModel of a manifest; others may be beside."""
    wanted = [it for it in manifest.objects if it.key.startswith(f"{MODEL}/")]
    try:
        return folder.is_dir() and all(
            file_crc64nvme(folder / it.key.removeprefix(f"{MODEL}/")) == it.crc64nvme
            for it in wanted
        )
    except FileNotFoundError:
        return False


def _keep_only(folder: Path, manifest: Manifest) -> None:
    """Remove what is not of a manifest: a process that was killed may have left another version."""
    wanted = {folder / item.key for item in manifest.objects}
    for path in list(folder.rglob("*")):
        if path not in wanted and (path.is_symlink() or not path.is_dir()):
            path.unlink()
