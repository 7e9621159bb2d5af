"""What the tasks of one dataset have in common, as a document in the exchange."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from kfp_tfjob.components.prepare_data.executors.code_version import code_version
from kfp_tfjob.components.prepare_data.executors.executor import Context
from kfp_tfjob.components.prepare_data.kinds import NO_KINDS, Feature, Kinds, LeftOut
from kfp_tfjob.components.prepare_data.rows import Columns
from kfp_tfjob.components.prepare_data.runs import edges_of, kind_of
from kfp_tfjob.components.prepare_data.source.files import Source, SourceFile
from kfp_tfjob.components.prepare_data.source.readers.own_reader import OwnReader
from kfp_tfjob.components.prepare_data.split_rules import SplitRules
from kfp_tfjob.features.types.base import FIELDS
from kfp_tfjob.options.data import DataOptions, Gaps
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.store import Store

_NAME_LENGTH = 16  # hexadecimal digits


@dataclass(frozen=True)
class Job:
    """A pass over the source.

    Attributes:
        source: The files.
        label: The label column.
        options: The typed `data_options`.
        columns: The columns of the first file.
        kinds: The kinds of the features; none if they are to be found out.
        limits: With data_options.split.time, the times from which rows are in the next split.
        block: Bytes of text to parse at a time.
        assumed: Whether the kinds are those of the first block, and are compared with all values.
    """

    source: Source
    label: str
    options: DataOptions
    columns: Columns
    kinds: Kinds = NO_KINDS
    limits: tuple[float, ...] = ()
    block: int = 0
    assumed: bool = False

    @cached_property
    def fractions(self) -> list[float]:
        """The shares of the splits."""
        return list(self.options.split.fractions.values())

    @cached_property
    def split_rules(self) -> SplitRules:
        """What decides about the split of a row."""
        return SplitRules(self.source, self.options, np.array(self.limits))

    @cached_property
    def edges(self) -> np.ndarray:
        """The bins of the hashes."""
        return edges_of(self.source.size, self.fractions)

    @cached_property
    def row_kind(self) -> np.dtype:
        """The type of a row of the runs."""
        kinds, weighted = self.kinds, self.options.weight is not None
        floats, codes, wholes = (len(kinds.in_field(field)) for field in FIELDS)
        return kind_of(floats, codes, wholes, weighted)

    @cached_property
    def features(self) -> tuple[str, ...]:
        """The names of the features."""
        return tuple(item.name for item in self.kinds.features)

    @cached_property
    def name(self) -> str:
        """A digest of everything that decides about the results, the code among it.

        So a later try takes nothing from one with another version of the image.
        """
        body = {key: value for key, value in self.to_plain().items() if key != "block"}
        text = json.dumps([code_version(), body], sort_keys=True)
        return sha256(text.encode()).hexdigest()[:_NAME_LENGTH]

    def to_plain(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "uri": self.source.uri,
            "files": [
                [file.name, file.size, str(file.location), file.tag, file.split]
                for file in self.source.files
            ],
            "reader": self.source.reader and self.source.reader.to_plain(),
            "label": self.label,
            "options": self.options.model_dump(mode="json"),
            "columns": [list(self.columns.features), list(self.columns.extra)],
            "kinds": _plain_of(self.kinds),
            "limits": list(self.limits),
            "block": self.block,
            "assumed": self.assumed,
        }

    @classmethod
    def from_plain(cls, plain: dict[str, Any], store: Callable[[], Store]) -> Job:
        """Return what `to_plain` has written."""
        files = tuple(
            SourceFile(name, size, _location(where), tag, split)
            for name, size, where, tag, split in plain["files"]
        )
        reader = plain["reader"] and OwnReader.from_plain(plain["reader"])
        features, extra = plain["columns"]
        return cls(
            Source(plain["uri"], files, store(), reader=reader),
            plain["label"],
            DataOptions.model_validate(plain["options"]),
            Columns(tuple(features), plain["label"], extra=tuple(extra)),
            _kinds_of(plain["kinds"]),
            tuple(plain["limits"]),
            plain["block"],
            plain["assumed"],
        )


def _plain_of(kinds: Kinds) -> dict[str, Any]:
    """Return kinds as JSON values."""
    return {
        "features": [
            [
                item.name,
                item.kind,
                item.gaps and item.gaps.model_dump(mode="json"),
                item.missing,
                item.asked,
                item.format,
            ]
            for item in kinds.features
        ],
        "left_out": [[item.name, item.reason] for item in kinds.left_out],
    }


def _kinds_of(plain: dict[str, Any]) -> Kinds:
    """Return what `_plain_of` has written."""
    return Kinds(
        tuple(
            Feature(name, kind, gaps and Gaps.model_validate(gaps), missing, asked, format)
            for name, kind, gaps, missing, asked, format in plain["features"]
        ),
        tuple(LeftOut(*item) for item in plain["left_out"]),
    )


def job_of(context: Context, name: str) -> Job:
    """Return a job that the step has written to the exchange."""
    key = ("job", name)
    if key not in context.cache:
        plain = context.exchange.read_plain(f"{name}/job")
        context.cache[key] = Job.from_plain(plain, lambda: context.store)
    return context.cache[key]


def _location(text: str) -> S3Address | Path:
    return S3Address.parse(text) if text.startswith("s3://") else Path(text)
