"""A model's champion: the version that servers serve and challengers must beat.

Each promotion appends a record with the next number, created with If-None-Match, and the highest
number is the champion. Overwriting one record would let two runs promote at once without either
noticing; here only one of them can create the next number. Called by evaluate, publish, the server
and the `models` commands.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from pydantic import Field

from kfp_tfjob.common.errors import DataError, Problem
from kfp_tfjob.storage import documents
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.store import Store

# The record's key for `exported_weights_sha256`: stored records have it.
_STORED_WEIGHTS = "weights_digest"
# Omitted from a record if empty, as they are in records of earlier versions.
_OPTIONAL = ("task_key", "serving", "manifest_sha256", "action", "by", "at", "why")
# The actions of a person that make a version the champion without a verdict.
ROLLBACK, PROMOTE = "rollback", "promote"


@dataclass(frozen=True)
class Champion:
    """The content of champions/<number>.json, and its number.

    Attributes:
        number: The record's number, from 1. A challenger is evaluated against one number, and only
            one successor can be written.
        version: The published version.
        version_uri: Its address.
        run_id: The run that trained it.
        exported_weights_sha256: SHA-256 of the variables in its SavedModel.
        schema_digest: Digest of the schema of its training data.
        dataset_digest: Digest of the dataset for its metrics.
        metrics: Its metrics on that dataset, finite numbers only.
        verdict_uri: The address of the verdict that promoted it.
        task_key: The key of the task that trained it; usually empty.
        serving: Its number in the folder that servers read; 0 if that is `version`.
        manifest_sha256: SHA-256 of the version's manifest.
        action: What made it the champion: empty for a verdict, else ROLLBACK or PROMOTE.
        by: The person who did that; empty for a verdict.
        at: When, in UTC.
        why: The person's reason, or the verdict's reasons.
    """

    number: int
    version: int
    version_uri: str
    run_id: str
    exported_weights_sha256: Annotated[str, Field(alias=_STORED_WEIGHTS)]
    schema_digest: str
    dataset_digest: str
    metrics: Mapping[str, float]
    verdict_uri: str
    task_key: str = ""
    serving: int = 0
    manifest_sha256: str = ""
    action: str = ""
    by: str = ""
    at: str = ""
    why: str = ""

    @property
    def served_as(self) -> int:
        """Its number in the folder that servers read."""
        return self.serving or self.version

    @property
    def trained_by(self) -> tuple[str, str]:
        """The run and the key of the task that trained it."""
        return self.run_id, self.task_key

    def to_bytes(self) -> bytes:
        """Return the record as JSON."""
        body: dict[str, Any] = asdict(self)
        del body["number"]
        for name in _OPTIONAL:
            if not body[name]:
                del body[name]
        body[_STORED_WEIGHTS] = body.pop("exported_weights_sha256")
        return (json.dumps(body, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()

    @classmethod
    def from_bytes(cls, number: int, data: bytes) -> Champion:
        """Read a record back; keys of later versions are ignored.

        Raises:
            InvalidDocumentError: It is not a JSON object, a key is missing, or a value has another
                type.
        """
        body = documents.parse_object(data) | {"number": number}
        return documents.read(cls, json.dumps(body).encode())


def read_champion(store: Store, layout: Layout, model_name: str) -> Champion | None:
    """Return a model's champion, or None if nothing was promoted yet.

    Raises:
        DataError: The newest record is not a champion record.
    """
    numbers = store.numbers(layout.model(model_name).champions)
    return read_record(store, layout, model_name, numbers[-1]) if numbers else None


def no_champion(layout: Layout, model_name: str) -> Problem:
    """Return the problem to report for a model without a champion."""
    return Problem(
        f"the model {model_name} has no champion",
        received=f"no record below {layout.model(model_name).champions}",
        expected="a model that a run has published",
        fix="compare the name and the folder with `kfp-tfjob models list`, or start a run",
        name="no-champion",
    )


def read_record(store: Store, layout: Layout, model_name: str, number: int) -> Champion:
    """Return one champion record of a model.

    Raises:
        ObjectNotFoundError: There is no record of this number.
        DataError: It is not a champion record.
    """
    address = layout.model(model_name).champion(number)
    data = store.read(address)
    try:
        return Champion.from_bytes(number, data)
    except documents.InvalidDocumentError as error:
        raise DataError(
            Problem(
                f"{address} is not a champion record",
                received=f"{type(error).__name__}: {error}",
                expected="the JSON that publish writes",
                fix="restore it from a backup, or remove it; if it is the newest, the previous"
                " record then applies again",
            )
        ) from error
