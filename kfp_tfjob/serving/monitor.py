"""Compares sampled requests with the data that the model was trained on.

Both are counted over the bins that prepare_data stored for train, so monitoring needs no training
rows. Called by `kfp-tfjob monitor`; the samples come from sampler.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from itertools import islice

from kfp_tfjob.common.errors import ConfigurationError, DataError, Problem
from kfp_tfjob.common.formatting import counted, listed
from kfp_tfjob.common.names import check_model_name
from kfp_tfjob.components.prepare_data import reference
from kfp_tfjob.components.prepare_data.reference import Reference
from kfp_tfjob.options.data_contract import Contract
from kfp_tfjob.registry.champion import Champion, no_champion, read_champion
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.store import Store

from . import requests_sample
from .column_names import check_columns
from .request_counts import Monitored, RequestCounts, iso_utc
from .requests_sample import RequestsSample

# Files that are read in parallel, and files that are in memory at the same time.
_READERS, _FILES_IN_MEMORY = 8, 32


def monitor(
    store: Store,
    layout: Layout,
    model_name: str,
    until: datetime,
    days: float = 7,
    limits: Contract | None = None,
) -> Monitored:
    """Compare the sampled requests of the champion with the data it was trained on.

    Args:
        store: The store.
        layout: The addresses of models.
        model_name: The model.
        until: The end of the monitored period, UTC.
        days: The length of the period.
        limits: The limits beyond which a column has drifted.

    Raises:
        ConfigurationError: There is no champion, or it lacks a column that the limits ignore.
        DataError: There is no sample in that period, or no training data to compare with.
    """
    ConfigurationError.raise_if(check_model_name(model_name))
    champion = read_champion(store, layout, model_name)
    if champion is None:
        raise ConfigurationError(no_champion(layout, model_name))
    training = _training_reference(store, layout, model_name, champion)
    check_columns("--ignore", limits.ignore if limits else (), training.schema.names)
    since = until - timedelta(days=days)
    counts = RequestCounts(training, limits or Contract())
    for sample in _read_samples(store, layout, counts, champion, since, until):
        counts.add(sample, since, until)
    if not counts.rows:
        raise DataError(
            _no_samples_problem(store, layout, champion, counts, model_name, since, until)
        )
    return counts.result(model_name, champion, since, until)


def _training_reference(
    store: Store, layout: Layout, model_name: str, champion: Champion
) -> Reference:
    """Return a champion's training data.

    Raises:
        DataError: The dataset was deleted, consists of images, or lacks distributions.
    """
    training = reference.of_version(store, layout, model_name, champion)
    if training and training.schema.has_columns and training.distributions:
        return training
    obstacle = f"nothing below {layout.model(model_name).version(champion.version)}"
    if training:
        obstacle = (
            "images" if not training.schema.has_columns else "no distributions of its columns"
        )
    raise DataError(
        Problem(
            f"the training data of version {champion.version} of {model_name} cannot be compared"
            " with requests",
            received=obstacle,
            expected="distributions of a table's columns",
            fix="train on a table and publish the model with this version of the project",
        )
    )


def _read_samples(
    store: Store,
    layout: Layout,
    counts: RequestCounts,
    champion: Champion,
    since: datetime,
    until: datetime,
) -> Iterator[RequestsSample]:
    """Yield the samples of the days from `since` to `until`; record unreadable ones in `counts`."""
    model_layout = layout.model(counts.training.model_name)
    # A file is stored under the day of its first row, and may contain rows of the next day.
    first = (since - timedelta(hours=1)).date()
    days = (until.date() - first).days
    files = (
        stored
        for day in range(days + 1)
        for stored in store.list(
            model_layout.requests_of_day(champion.version, first + timedelta(days=day))
        )
    )

    def read(address: S3Address) -> RequestsSample | str:
        try:
            return requests_sample.get(store, address)
        except DataError as error:
            return str(error)

    with ThreadPoolExecutor(_READERS) as pool:
        while addresses := [stored.address for stored in islice(files, _FILES_IN_MEMORY)]:
            for sample in pool.map(read, addresses):
                if isinstance(sample, str):
                    counts.unreadable.append(sample)
                else:
                    yield sample


def _no_samples_problem(
    store: Store,
    layout: Layout,
    champion: Champion,
    counts: RequestCounts,
    model_name: str,
    since: datetime,
    until: datetime,
) -> Problem:
    other_versions = [
        name
        for name in store.folders(layout.model(model_name).requests)
        if name != str(champion.version)
    ]
    received = f"no row from {iso_utc(since)} to {iso_utc(until)}"
    if counts.unreadable:
        received += (
            f"; {counted(len(counts.unreadable), 'sample')} cannot be read, the first because"
            f" {counts.unreadable[0]}"
        )
    if other_versions:
        received += f"; there are samples of version {listed(other_versions, 5)}"
    return Problem(
        f"there is no sample of the requests that version {champion.version} of {model_name}"
        " answered",
        received=received,
        expected=f"files below {layout.model(model_name).requests_of(champion.version)}",
        fix="serve the model with --sample-rows, or look further back with --days",
    )
