"""Records of evaluated runs by their inputs, so that a later run with equal inputs skips training.

The records for one digest of inputs are an append-only list. A run that trains although a record
exists, for example because the champion was deleted, appends the next one. Called by evaluate,
which appends a record, and by preflight, which looks for one.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from kfp_tfjob.common.errors import ObjectExistsError
from kfp_tfjob.storage import documents
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.store import Store


@dataclass(frozen=True)
class TrainedRun:
    """A run that was evaluated.

    Attributes:
        run_id: The run.
        run_uri: Its folder.
        verdict_uri: Its verdict.
    """

    run_id: str
    run_uri: str
    verdict_uri: str

    def to_bytes(self) -> bytes:
        """Return the record as JSON."""
        return (json.dumps(asdict(self), indent=1) + "\n").encode()


def newest(store: Store, layout: Layout, model_name: str, digest: str) -> TrainedRun | None:
    """Return a model's newest evaluated run with these inputs; None if there is none.

    Args:
        store: The store.
        layout: Everything below output_uri.
        model_name: The model.
        digest: The digest of the inputs.
    """
    model = layout.model(model_name)
    numbers = store.numbers(model.trained_with(digest))
    if not numbers:
        return None
    try:
        return documents.read(TrainedRun, store.read(model.trained_record(digest, numbers[-1])))
    except documents.InvalidDocumentError:
        return None  # a damaged record costs only a training run


def remember(store: Store, layout: Layout, model_name: str, digest: str, run: TrainedRun) -> None:
    """Record an evaluated run; recording it twice changes nothing.

    Args:
        store: The store.
        layout: Everything below output_uri.
        model_name: The model.
        digest: The digest of the inputs.
        run: The run.
    """
    if newest(store, layout, model_name, digest) == run:
        return
    model = layout.model(model_name)
    number = max(store.numbers(model.trained_with(digest)), default=0) + 1
    while True:
        try:
            store.create(model.trained_record(digest, number), run.to_bytes(), "application/json")
            return
        except ObjectExistsError:
            number += 1  # a run with the same inputs was evaluated at the same time
