"""Finds the champion's dataset: what later data of the same model is compared with.

Called by the validation of the dataset and by `kfp-tfjob monitor`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from kfp_tfjob.common.errors import ConfigurationError, DataError, ObjectNotFoundError, Problem
from kfp_tfjob.features.schema import Schema
from kfp_tfjob.features.statistics import StatisticsDocument
from kfp_tfjob.registry.champion import Champion, read_champion
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.documents import InvalidDocumentError
from kfp_tfjob.storage.layout import (
    DISTRIBUTIONS,
    MANIFEST,
    SCHEMA,
    STATISTICS,
    Layout,
)
from kfp_tfjob.storage.store import Store

from ..step import Step
from .distributions import DistributionsDocument

T = TypeVar("T")


@dataclass(frozen=True)
class Reference:
    """The champion's dataset; its distributions are None if they are gone."""

    model_name: str
    version: int
    run_id: str
    dataset_digest: str
    schema: Schema
    statistics: StatisticsDocument
    distributions: DistributionsDocument | None = None

    @property
    def name(self) -> str:
        """The champion in a message."""
        return f"champion {self.version} of {self.model_name}"


def find(step: Step, model_name: str) -> Reference | str | Problem:
    """Return the dataset of a model's champion.

    Returns:
        It, or why there is none to compare with: a Problem if it cannot be read.
    """
    if not model_name:
        return "without a model_name, there is no champion to compare the data with"
    subject, received = f"the champion of {model_name}", f"no {SCHEMA} and {STATISTICS}"
    try:
        champion = read_champion(step.store, step.layout, model_name)
        if champion is None:
            return (
                f"{model_name} has no champion yet, so there is nothing to compare this data with"
            )
        subject = f"champion {champion.version} of {model_name}"
        reference = of_version(step.store, step.layout, model_name, champion)
        if reference:
            return reference
    except (DataError, ConfigurationError) as error:
        received = str(error)
    return Problem(
        f"the training data of {subject} cannot be read, so this run's data is not compared with"
        " it",
        received=received,
        fix="return to another champion with `kfp-tfjob models rollback`; to train without a"
        ' comparison instead, set data_options.contract.changes and limits to "warn"',
    )


def of_version(
    store: Store, layout: Layout, model_name: str, champion: Champion
) -> Reference | None:
    """Return the dataset files stored with a champion's version, or None if they are gone.

    Raises:
        DataError, ConfigurationError: They cannot be read.
    """
    version = layout.model(model_name).version(champion.version)
    schema = read(store, version, SCHEMA, Schema.from_bytes)
    statistics = read(store, version, STATISTICS, StatisticsDocument.from_bytes)
    if not schema or not statistics:
        return None
    return Reference(
        model_name=model_name,
        version=champion.version,
        run_id=champion.run_id,
        dataset_digest=champion.dataset_digest,
        schema=schema,
        statistics=statistics,
        distributions=distributions(store, version),
    )


def distributions(store: Store, folder: S3Address) -> DistributionsDocument | None:
    """Return distributions.json of a complete folder; None if there is none; raises like `read`."""
    return read(store, folder, DISTRIBUTIONS, DistributionsDocument.from_bytes)


def read(store: Store, folder: S3Address, name: str, parse: Callable[[bytes], T]) -> T | None:
    """Return the document of a complete folder; None if there is none.

    Raises:
        DataError: The manifest or the document cannot be read.
    """
    try:
        sizes = {item.key: item.size for item in store.read_manifest(folder / MANIFEST).objects}
        return parse(store.read(folder / name, sizes[name])) if name in sizes else None
    except ObjectNotFoundError:
        return None
    except InvalidDocumentError as error:
        summary = f"{folder / name} cannot be read"
        raise DataError(Problem(summary, str(error), fix="publish a model again")) from error
