"""Uses a finished dataset in the store that `data_uri` names, instead of preparing one.

A dataset is recognised by its shards and proven by its manifest. It stays where it is.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kfp_tfjob.options.data import DataOptions
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.errors import DataError, ObjectNotFoundError, Problem
from kfp_tfjob.storage.formatting import listed
from kfp_tfjob.storage.layout import MANIFEST, SCHEMA, SCHEMA_FORMAT
from kfp_tfjob.storage.manifest import FORMAT, Manifest
from kfp_tfjob.storage.store import Store
from kfp_tfjob.uploader import verify

log = logging.getLogger(__name__)

_SHARD = re.compile(r"(?:train|validation|test)-[0-9]{5,}\.tfrecord")
_LARGEST = 64 << 20  # bytes of schema.json; it grows with the number of columns and classes
_AGAIN = "copy the dataset again with all of its objects, or give the address of its source"


@dataclass(frozen=True)
class FinishedDataset:
    """A complete dataset.

    Attributes:
        location: Its folder.
        manifest: Its manifest.
        schema: The content of schema.json.
    """

    location: S3Address
    manifest: Manifest
    schema: Mapping[str, Any]

    @property
    def label(self) -> str:
        """The label column."""
        return str(self.schema["label"]["name"])

    @property
    def kinds(self) -> dict[str, str]:
        """The kind of each feature by its name, as in kfp_tfjob/features/coding.py."""
        return {
            str(item["name"]): "number" if item["type"] == "float32" else str(item["type"])
            for item in self.schema["features"]
        }

    def problems(self, data_label: str, options: DataOptions) -> list[Problem]:
        """Return what contradicts the dataset.

        Args:
            data_label: The label column; empty for that of the dataset.
            options: The typed `data_options`.
        """
        found = []
        label = self.label
        if data_label and data_label != label:
            found.append(
                Problem(
                    "data_uri is a finished dataset with another label",
                    received=f"data_label {data_label!r}",
                    expected=f"{label!r}, the label of {self.location}",
                    fix=f"set data_label to {label!r}, or give the address of the source",
                    path="data_label",
                    suggestion=label,
                )
            )
        is_so = {
            "task": self.schema["task"],
            "columns": tuple(item["name"] for item in self.schema["features"]),
            "weight": self.schema.get("weight", {}).get("name"),
            "contract": options.contract,  # it judges any dataset
            "dask": options.dask,
        }
        refused = sorted(
            name
            for name, declared in DataOptions.model_fields.items()
            if (value := getattr(options, name)) != declared.default and value != is_so.get(name)
        )
        if refused:
            found.append(
                Problem(
                    "data_options cannot change a finished dataset",
                    received=", ".join(refused),
                    expected=f"{self.location} as it is",
                    fix=f"remove {listed(refused, 5)} from data_options, or give the address of"
                    " the source",
                    path=f"data_options.{refused[0]}",
                )
            )
        return found

    def verify(self, store: Store) -> None:
        """Compare every object with the manifest.

        Raises:
            DataError: An object is missing or differs.
        """
        DataError.raise_if(verify(store, self.location, self.manifest))
        log.info("%s is a finished dataset, and is used as it is", self.location)


def find(store: Store, address: str, names: Iterable[str]) -> FinishedDataset | None:
    """Return the dataset that an address holds, or None for other data.

    Args:
        store: The store.
        address: An address without a pattern.
        names: Of the files that are listed there.

    Raises:
        DataError: It holds a dataset that is not complete, one of another version, or one on this
            machine.
    """
    if not any(map(_SHARD.fullmatch, names)):
        return None
    if "://" not in address:
        _refuse_local(Path(address).expanduser() / MANIFEST)
        return None
    top = S3Address.parse(address)
    data, schema = _read(store, top / MANIFEST), _json(_read(store, top / SCHEMA))
    if schema.get("format") != SCHEMA_FORMAT and _json(data).get("format") != FORMAT:
        return None  # records that another program has written
    if data is None or schema.get("format") != SCHEMA_FORMAT:
        missing = f"{top} without {MANIFEST}, which is written last"
        version = f"{SCHEMA} of the format {schema.get('format')!r:.100}"
        raise DataError(
            Problem(
                "data_uri is a dataset that is not complete, or of another version",
                received=missing if data is None else version,
                expected=f"all objects of a dataset, and {SCHEMA_FORMAT}",
                fix=_AGAIN,
                path="data_uri",
            )
        )
    found = FinishedDataset(top, Manifest.from_bytes(data, top / MANIFEST), schema)
    try:
        found.problems(found.label, DataOptions()), found.kinds
    except (KeyError, TypeError) as error:
        raise DataError(
            Problem(
                "data_uri is a dataset that is damaged",
                received=f"{top}: {SCHEMA} lacks {error}",
                fix=_AGAIN,
                path="data_uri",
            )
        ) from error
    return found


def _refuse_local(manifest: Path) -> None:
    """Refuse a dataset on this machine: the trainer reads only the store."""
    if manifest.exists() and _json(manifest.read_bytes()).get("format") == FORMAT:
        raise DataError(
            Problem(
                "data_uri is a finished dataset on this machine",
                received=str(manifest.parent),
                expected="its address in the store",
                fix="copy it to the store as it is, or give the address of its source",
                path="data_uri",
            )
        )


def _read(store: Store, address: S3Address) -> bytes | None:
    try:
        return store.read(address, _LARGEST)
    except ObjectNotFoundError:
        return None


def _json(data: bytes | None) -> dict[str, Any]:
    try:
        found = json.loads(data or b"{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
