"""Scores the champion for the comparison with a new model.

A champion whose files are damaged, or that was trained on the test rows, cannot be compared, but
this does not fail the step. The reason becomes an obstacle, and `gate.incompatible_champion`
decides whether a new model replaces such a champion. Only an unavailable store fails the step.
Called by `judge` and by the pass that scores both models.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from kfp_tfjob.common.errors import DataError
from kfp_tfjob.common.formatting import listed
from kfp_tfjob.features.served_model import ServedModel
from kfp_tfjob.registry.champion import Champion
from kfp_tfjob.registry.verdict_record import ModelVerdict
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import MODEL, VERDICT, Layout
from kfp_tfjob.storage.store import Store
from kfp_tfjob.uploader import pull

from .gate import ChampionResult
from .metrics import Measures
from .model import predictions_of
from .predictions import Predictions, joined
from .rows import Batch, TestData

log = logging.getLogger(__name__)


class ChampionScorer:
    """Loads the champion if it can be compared, and scores it batch by batch.

    Args:
        store: The store.
        layout: The addresses of datasets and models.
        model_name: The model's name.
        champion: The champion's record.
        exported_weights_sha256: The digest of the challenger's weights.
        data: The test rows.
        folder: The folder for downloads.

    Attributes:
        name: The champion's name in messages, for example `champion 3`.
        same: Whether the champion is the challenger: the weights are equal, and so are the outputs
            for all rows so far, because another graph may serve the same weights.
        on_outputs: Called with the outputs of every batch; None without a callback.
    """

    def __init__(
        self,
        store: Store,
        layout: Layout,
        model_name: str,
        champion: Champion,
        exported_weights_sha256: str,
        data: TestData,
        folder: Path,
    ) -> None:
        self.name = f"champion {champion.version}"
        self.on_outputs: Callable[[np.ndarray], None] | None = None
        self.same = champion.exported_weights_sha256 == exported_weights_sha256
        self._obstacle = ""
        self._model: ServedModel | None = None
        self._parts: list[Predictions] = []
        schema = data.schema
        if champion.schema_digest != schema.schema_digest:
            self._obstacle = (
                "its data had a different schema (columns, types, classes or split):"
                f" {champion.schema_digest[:12]}, not {schema.schema_digest[:12]}"
            )
        elif champion.dataset_digest != data.digest and (
            shards := data.test_shards_used_by(
                store, _champion_dataset(store, layout, model_name, champion)
            )
        ):
            self._obstacle = (
                f"it was trained on these test rows: {listed(shards, 3)} has the same bytes as a"
                f" shard of its dataset {champion.dataset_digest[:12]}"
            )
        else:
            with self._record_obstacle():
                version = layout.model(model_name).version(champion.version)
                pull(store, version, folder, lambda key: key.startswith(f"{MODEL}/"))
                self._model = ServedModel(folder / MODEL, schema, self.name)

    def predict(self, batch: Batch, challenger: np.ndarray) -> None:
        """Score a batch, unless the champion has already failed.

        Args:
            batch: The rows.
            challenger: The challenger's outputs for these rows.
        """
        if self._model:
            with self._record_obstacle():
                outputs = self._model.predict(batch.features)
                self.same = self.same and np.allclose(outputs, challenger, equal_nan=True)
                self._parts.append(predictions_of(self._model.schema, batch, outputs))
                if self.on_outputs:
                    self.on_outputs(outputs)

    def champion_result(self, classes: list[str], confidence: float) -> ChampionResult:
        """Return the champion's metrics or obstacle, once all rows are scored.

        Args:
            classes: The names of the classes.
            confidence: The confidence of its intervals.
        """
        if not self._model or self.same:
            # Equal weights are not enough. A damaged champion cannot be served, and with another
            # schema, the same weights may belong to other columns or classes.
            same = self.same and self._model is not None
            return ChampionResult(self.name, same, self._obstacle)
        predictions = joined(self._parts)
        if not predictions.finite:
            return ChampionResult(self.name, obstacle="it predicts numbers that are not finite")
        return ChampionResult(self.name, measures=Measures(predictions, classes, confidence))

    @contextmanager
    def _record_obstacle(self) -> Iterator[None]:
        """Turn an error in the champion's files into an obstacle; the store's errors propagate."""
        try:
            yield
        except DataError as error:
            self._obstacle, self._model = str(error), None
            log.warning("%s cannot be compared: %s", self.name, error)


def _champion_dataset(
    store: Store, layout: Layout, model_name: str, champion: Champion
) -> S3Address:
    """Return the address of the champion's dataset, from its verdict or else its digest."""
    version = layout.model(model_name).version(champion.version)
    try:
        return S3Address.parse(ModelVerdict.read(store, version / VERDICT).dataset_uri)
    except DataError:
        return layout.dataset(champion.dataset_digest)
