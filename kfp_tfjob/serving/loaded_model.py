"""A champion in memory: its SavedModel, and the columns that requests must have.

A champion is checked against its record before it answers: schema, weights and signature. The
follower loads a new one while the previous one still answers. Created by the follower; called by
`protocol.py` for each request.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from kfp_tfjob.common.errors import DataError, Problem
from kfp_tfjob.features import signature_columns
from kfp_tfjob.features.schema import Schema
from kfp_tfjob.features.served_model import ServedModel
from kfp_tfjob.judging.model import exported_weights_sha256
from kfp_tfjob.registry.chain import VerifiedChampion, fetch
from kfp_tfjob.registry.champion import Champion
from kfp_tfjob.storage.documents import InvalidDocumentError
from kfp_tfjob.storage.layout import MODEL, SCHEMA
from kfp_tfjob.storage.store import Store

from .request_columns import RequestColumns, Rows

# Rows that a model predicts at once, so that a large request needs little additional memory.
_MOST_ROWS_AT_ONCE = 4096
# Rows of each prediction before the first request. TensorFlow compiles and allocates during these.
_WARM_UP = (1, 1, 2, 8, 32, 1)

log = logging.getLogger(__name__)


class LoadedModel:
    """A champion in memory, ready to predict.

    Args:
        champion: The champion's record.
        folder: The files that `registry.chain.fetch` has written; not needed afterwards.
        model_name: The model's name.

    Attributes:
        champion: The champion's record.
        model_name: The model's name.
        columns: The columns that requests must have.

    Raises:
        DataError: The schema, the weights or the signature do not match the champion's record.
    """

    def __init__(self, champion: Champion, folder: Path, model_name: str) -> None:
        name = f"version {champion.version} of {model_name}"
        schema = _read_schema(folder / SCHEMA, name)
        if schema.schema_digest != champion.schema_digest:
            raise DataError(
                Problem(
                    f"{SCHEMA} of {name} does not match its champion record",
                    received=f"the digest {schema.schema_digest}",
                    expected=f"the record's digest, {champion.schema_digest}",
                    fix="roll back to another version with `kfp-tfjob models rollback`",
                )
            )
        self.champion, self.model_name = champion, model_name
        self.columns = RequestColumns(schema, signature_columns.read(folder / MODEL))
        digest = exported_weights_sha256(folder / MODEL)
        if digest != champion.exported_weights_sha256:
            raise DataError(
                Problem(
                    f"the weights of {name} are not those that were evaluated",
                    received=digest,
                    expected=champion.exported_weights_sha256,
                    fix="roll back to another version with `kfp-tfjob models rollback`",
                )
            )
        self._model = ServedModel(folder / MODEL, schema, name)

    @classmethod
    def of(cls, store: Store, verified: VerifiedChampion) -> LoadedModel:
        """Download a verified champion, load it, and warm it up.

        Raises:
            DataError: The champion is damaged, or it cannot predict.
        """
        began = time.monotonic()
        with _temporary_folder() as folder:
            fetch(store, verified, folder)
            loaded = cls(verified.champion, folder, verified.model_name)
        for rows in _WARM_UP:
            loaded._model.predict(loaded._model.example(rows))
        log.info(
            "champion %d of %s, version %d of run %s, is in use after %.1f s",
            loaded.champion.number,
            loaded.model_name,
            loaded.champion.version,
            loaded.champion.run_id,
            time.monotonic() - began,
        )
        return loaded

    def predict(self, rows: Rows) -> np.ndarray:
        """Predict a request's rows.

        Returns:
            (rows, classes) float32 probabilities, or (rows,) values of a regression.

        Raises:
            DataError: The model failed.
        """
        if rows.count <= _MOST_ROWS_AT_ONCE:
            return self._model.predict(rows.features)
        starts = range(0, rows.count, _MOST_ROWS_AT_ONCE)
        return np.concatenate(
            [
                self._model.predict(rows.part(slice(start, start + _MOST_ROWS_AT_ONCE)))
                for start in starts
            ]
        )


@contextmanager
def _temporary_folder() -> Iterator[Path]:
    """Make an empty folder while a version is loaded, and remove it afterwards.

    A killed server leaves its folder behind, and in a pod the volume outlives the container. The
    name contains the process id, which is the same in the next container, so the next server
    removes the folder.
    """
    folder = Path(tempfile.gettempdir()) / f"kfp-tfjob-serve-{os.getpid()}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _read_schema(path: Path, name: str) -> Schema:
    try:
        return Schema.from_bytes(path.read_bytes())
    except InvalidDocumentError as error:
        raise DataError(
            Problem(
                f"{SCHEMA} of {name} cannot be read",
                received=str(error)[:500],
                expected="a schema that this release of the server can read",
                fix="use the server of the release that published it, or roll back with"
                " `kfp-tfjob models rollback`",
            )
        ) from error
