"""Uses a finished dataset that `data_uri` names, instead of preparing one.

A dataset is recognised by its shards and proven by its manifest. In the store, it stays where it
is. A folder of this machine, in a local run, is copied to the store below the digest of its
manifest: the trainer reads only the store.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kfp_tfjob.components.step import Step
from kfp_tfjob.options.data import DataOptions
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.checksum import crc64nvme
from kfp_tfjob.storage.errors import DataError, ObjectNotFoundError, Problem
from kfp_tfjob.storage.formatting import counted, listed
from kfp_tfjob.storage.layout import MANIFEST, SCHEMA, SCHEMA_FORMAT, STATISTICS
from kfp_tfjob.storage.manifest import FORMAT, Manifest
from kfp_tfjob.storage.names import below
from kfp_tfjob.storage.store import Store
from kfp_tfjob.uploader import verify

log = logging.getLogger(__name__)

_KIND = "dataset"
_SHARD = re.compile(r"(?:(?P<digest>[0-9a-f]{32})/)?(?:train|validation|test)-[0-9]{5,}\.tfrecord")
_LARGEST = 64 << 20  # bytes of schema.json; it grows with the number of columns and classes
# What only decides how files are read and where the work is done; nothing is left to read.
_NOT_NEEDED = frozenset(
    (
        "on_bad_row",
        "max_bad_fraction",
        "delimiter",
        "format",
        "null_values",
        "encoding",
        "reader",
        "tfrecord_features",
        "dask",
    )
)
# What judges a dataset, independent of who prepared it.
_JUDGING = frozenset(("contract",))
_AGAIN = "copy the dataset again with all of its objects, or give the address of its source"


@dataclass(frozen=True)
class FinishedDataset:
    """A complete dataset.

    Attributes:
        location: Its folder.
        manifest: Its manifest.
        schema: The content of schema.json.
    """

    location: S3Address | Path
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
        said = self._said(options)
        if refused := sorted(said - _NOT_NEEDED - _JUDGING):
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

    def ignored(self, options: DataOptions) -> list[str]:
        """Return the keys of `data_options` that say how to read a source, which is not read."""
        return sorted(self._said(options) & _NOT_NEEDED)

    def _said(self, options: DataOptions) -> set[str]:
        """Return the keys that ask for something else than this dataset is."""
        is_so = {
            "task": self.schema["task"],
            "columns": tuple(item["name"] for item in self.schema["features"]),
            "weight": self.schema.get("weight", {}).get("name"),
            "contract": options.contract,  # it judges any dataset
        }
        return {
            name
            for name, declared in DataOptions.model_fields.items()
            if (value := getattr(options, name)) != declared.default and value != is_so.get(name)
        }


def find(store: Store, data_uri: str, names: Iterable[str]) -> FinishedDataset | None:
    """Return the dataset that an address holds, or None for other data.

    Args:
        store: The store.
        data_uri: One address without a pattern.
        names: Of the files that are listed there.

    Raises:
        DataError: It holds several datasets, or one that is not complete.
    """
    shards = [match for name in names if (match := _SHARD.fullmatch(name))]
    if not shards:
        return None
    top = S3Address.parse(data_uri) if "://" in data_uri else Path(data_uri).expanduser()
    if digests := sorted({match["digest"] for match in shards if match["digest"]}):
        if _read(store, top, f"{digests[0]}/{SCHEMA}") is None:
            return None
        raise DataError(
            Problem(
                f"data_uri holds {counted(len(digests), 'prepared dataset')}, not data",
                received=f"{data_uri} with {listed(digests, 3)}",
                expected="the address of one dataset, or of its source",
                fix=f"for instance, set data_uri to {top / digests[0]}",
                path="data_uri",
            )
        )
    manifest, schema = _json(_read(store, top, MANIFEST)), _json(_read(store, top, SCHEMA))
    if schema.get("format") != SCHEMA_FORMAT and manifest.get("format") != FORMAT:
        return None  # records that another program has written
    return _complete(store, top)


def place(step: Step, dataset: FinishedDataset, options: DataOptions) -> S3Address:
    """Return where the trainer finds a dataset, after every object is verified.

    Args:
        step: The run and its store.
        dataset: The dataset.
        options: The typed `data_options`.

    Raises:
        DataError: An object is missing or differs from the manifest.
    """
    if ignored := dataset.ignored(options):
        log.warning(
            "data_uri is a finished dataset: %s of data_options plays no part", listed(ignored, 5)
        )
    if isinstance(dataset.location, S3Address):
        DataError.raise_if(verify(step.store, dataset.location, dataset.manifest))
        log.info("%s is a finished dataset, and is used as it is", dataset.location)
        return dataset.location
    base = step.layout.dataset(dataset.manifest.digest[:32])
    try:
        stored = step.store.read_manifest(base / MANIFEST) == dataset.manifest
    except ObjectNotFoundError:
        stored = False
    if stored:
        DataError.raise_if(verify(step.store, base, dataset.manifest))
    else:
        _copy(step.store, dataset.location, base, dataset.manifest)
    return base


def _copy(store: Store, folder: Path, base: S3Address, manifest: Manifest) -> None:
    store.probe(base)
    wrong = []
    for item in manifest.objects:
        sent = store.send(below(folder, item.key), base / item.key, item.key)
        if (sent.size, sent.crc64nvme) != (item.size, item.crc64nvme):
            wrong.append(
                Problem(
                    f"{folder / item.key} does not match the manifest of its dataset",
                    received=f"{sent.size} bytes, CRC64NVME {sent.crc64nvme}",
                    expected=f"{item.size} bytes, CRC64NVME {item.crc64nvme}",
                    fix=_AGAIN,
                )
            )
    DataError.raise_if(wrong)
    store.write(base / MANIFEST, manifest.to_bytes(), "application/json")
    log.info("the finished dataset %s was copied to %s", folder, base)


def _complete(store: Store, top: S3Address | Path) -> FinishedDataset:
    """Return a dataset after a look at its objects.

    Raises:
        DataError: It has no manifest, or lacks objects.
    """
    data = _read(store, top, MANIFEST)
    if data is None:
        raise DataError(
            Problem(
                "data_uri is a dataset that is not complete",
                received=f"{top} without {MANIFEST}, which is written last",
                expected="all objects of a dataset",
                fix="start the run that writes it again, or " + _AGAIN,
                path="data_uri",
            )
        )
    manifest = Manifest.from_bytes(data, top / MANIFEST)
    if manifest.kind != _KIND:
        raise DataError(
            Problem(
                "data_uri is no dataset",
                received=f"{top} with the manifest of the kind {manifest.kind!r}",
                expected=f"the kind {_KIND!r}",
                fix="correct data_uri",
                path="data_uri",
            )
        )
    sizes = _sizes(store, top, manifest)
    wrong = [
        f"{item.key} is missing"
        if item.key not in sizes
        else f"{item.key} has {sizes[item.key]:,} bytes instead of {item.size:,}"
        for item in manifest.objects
        if sizes.get(item.key) != item.size
    ]
    keys = {item.key for item in manifest.objects}
    wrong += [f"{MANIFEST} does not name {key}" for key in (SCHEMA, STATISTICS) if key not in keys]
    if wrong:
        raise DataError(_damaged(top, listed(wrong, 5)))
    data = _read(store, top, SCHEMA) or b""
    (entry,) = (item for item in manifest.objects if item.key == SCHEMA)
    if crc64nvme(data) != entry.crc64nvme:
        raise DataError(_damaged(top, f"{SCHEMA} differs from the checksum of {MANIFEST}"))
    schema = _json(data)
    if schema.get("format") != SCHEMA_FORMAT:
        raise DataError(
            Problem(
                "data_uri is a dataset of another version",
                received=f"{SCHEMA} of the format {schema.get('format')!r:.100}",
                expected=SCHEMA_FORMAT,
                fix="give the address of the source, so that this version prepares it",
                path="data_uri",
            )
        )
    if isinstance(top, S3Address) and not top.key:
        raise DataError(
            Problem(
                "data_uri is a dataset without a name",
                received=f"the bucket {top}",
                expected="s3://BUCKET/NAME: the name of its folder is the name of the dataset",
                fix="move it into a folder",
                path="data_uri",
            )
        )
    found = FinishedDataset(top, manifest, schema)
    try:
        found.problems(found.label, DataOptions()), found.kinds
    except (KeyError, TypeError) as error:
        raise DataError(_damaged(top, f"{SCHEMA} lacks {error}")) from error
    return found


def _damaged(top: S3Address | Path, received: str) -> Problem:
    return Problem(
        "data_uri is a dataset that is damaged",
        received=f"{top}: {received}",
        expected="the objects of its manifest",
        fix=_AGAIN,
        path="data_uri",
    )


def _read(store: Store, top: S3Address | Path, name: str) -> bytes | None:
    """Return a file of the folder; None if it does not exist."""
    try:
        if isinstance(top, S3Address):
            return store.read(top / name, _LARGEST)
        return (top / name).read_bytes()
    except (ObjectNotFoundError, FileNotFoundError):
        return None


def _json(data: bytes | None) -> dict[str, Any]:
    try:
        found = json.loads(data or b"{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _sizes(store: Store, top: S3Address | Path, manifest: Manifest) -> dict[str, int]:
    """Return the sizes of what is there, by key."""
    if isinstance(top, S3Address):
        start = len(top.key) + 1 if top.key else 0
        return {item.address.key[start:]: item.size for item in store.list(top)}
    files = {item.key: below(top, item.key) for item in manifest.objects}
    return {key: path.stat().st_size for key, path in files.items() if path.is_file()}
