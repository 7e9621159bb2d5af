"""The champion of a model: the newest record of an append-only list."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from kfp_tfjob.storage.errors import DataError, Problem
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.store import Store

# The name in the record: older versions of this project read the same records.
_STORED_WEIGHTS = "weights_digest"


@dataclass(frozen=True)
class Champion:
    """The content of champions/<number>.json, and its number.

    Attributes:
        number: The record's number, from 1. A challenger is judged against one number, and only one
            successor can be written.
        version: The published version.
        version_uri: Its address.
        run_id: The run that trained it.
        exported_weights_sha256: SHA-256 of the variables in its SavedModel.
        schema_digest: Digest of the schema of its training data.
        dataset_digest: Digest of the dataset for its metrics.
        metrics: Its metrics on that dataset, finite numbers only.
        verdict_uri: The address of the verdict that promoted it.
        task_key: The key of the task that trained it; usually empty.
    """

    number: int
    version: int
    version_uri: str
    run_id: str
    exported_weights_sha256: str
    schema_digest: str
    dataset_digest: str
    metrics: Mapping[str, float]
    verdict_uri: str
    task_key: str = ""

    @property
    def trained_by(self) -> tuple[str, str]:
        """The run and the key of the task that trained it."""
        return self.run_id, self.task_key

    def to_bytes(self) -> bytes:
        """Return the record as JSON; it holds no time, so a retry writes the same bytes."""
        body: dict[str, Any] = asdict(self)
        del body["number"]
        if not self.task_key:
            del body["task_key"]  # the bytes of a record do not depend on the version
        body[_STORED_WEIGHTS] = body.pop("exported_weights_sha256")
        return (json.dumps(body, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()

    @classmethod
    def from_bytes(cls, number: int, data: bytes) -> Champion:
        """Read a record back."""
        body = json.loads(data)
        return cls(number, exported_weights_sha256=body.pop(_STORED_WEIGHTS), **body)


def next_number(verdict: Mapping[str, Any]) -> int:
    """Return the number of the record that makes the model of a verdict the champion.

    It follows the champion that the verdict was judged against, so only one of the models
    judged against the same champion can create it.
    """
    return (verdict["champion"] or {"number": 0})["number"] + 1


def read_champion(store: Store, layout: Layout, model_name: str) -> Champion | None:
    """Return the champion of a model, or None if nothing was promoted yet.

    Raises:
        DataError: The newest record is not a champion record.
    """
    model = layout.model(model_name)
    numbers = store.numbers(model.champions)
    if not numbers:
        return None
    address = model.champion(numbers[-1])
    try:
        return Champion.from_bytes(numbers[-1], store.read(address))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            Problem(
                f"{address} is not a champion record",
                received=f"{type(error).__name__}: {error}",
                expected="the JSON that publish writes",
                fix="remove it; the previous record then counts again",
            )
        ) from error
