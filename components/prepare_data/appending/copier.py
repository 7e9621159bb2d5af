"""Copies objects of an earlier dataset within the store, and proves each copy."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.errors import ConfigurationError, DataError, StepError
from kfp_tfjob.storage.manifest import ManifestObject
from kfp_tfjob.storage.store import Store

log = logging.getLogger(__name__)


class UnusableError(Exception):
    """The earlier dataset is damaged, or gone."""


class Copier:
    """Copies objects of a dataset to another one.

    Args:
        store: The store of both.
        source: The folder of the earlier dataset.
        base: The folder of the new one.
        folder: A folder on local disk, for a store that cannot copy.
        there: The sizes of the objects that an earlier try has left.
    """

    def __init__(
        self,
        store: Store,
        source: S3Address,
        base: S3Address,
        folder: Path,
        there: Mapping[S3Address, int],
    ) -> None:
        self._store, self._source, self._base = store, source, base
        self._folder, self._there = folder, there
        self._told = False

    def copy(self, pair: tuple[ManifestObject, ManifestObject]) -> None:
        """Copy one object, and prove the copy.

        Raises:
            DataError: It is not the object of the manifest.
        """
        old, new = pair
        source, address = self._source / old.key, self._base / new.key
        if self._there.get(address) == new.size:
            try:
                return self._store.prove(address, new)
            except DataError:
                pass  # not all of it was written
        try:
            self._store.copy(source, address, new)
        except DataError:
            raise
        except StepError as error:
            if not self._told:
                self._told = True
                log.warning("the store does not copy, so objects are read and written: %s", error)
            self._store.fetch(source, self._folder, old)
            path = self._folder / old.key
            self._store.send(path, address, new.key)
            path.unlink()


@contextmanager
def usable() -> Iterator[None]:
    """Turn the faults of an earlier dataset into an UnusableError."""
    try:
        yield
    except (ConfigurationError, DataError, KeyError, TypeError, ValueError) as error:
        raise UnusableError(str(error)) from error
