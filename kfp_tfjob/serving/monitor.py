"""Compares sampled requests with the data that the model was trained on."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from itertools import islice

from kfp_tfjob.components.prepare_data import reference
from kfp_tfjob.components.prepare_data.reference import Reference
from kfp_tfjob.options.contract import Contract
from kfp_tfjob.serving import requests_sample
from kfp_tfjob.serving.column_names import check_columns
from kfp_tfjob.serving.request_counts import Monitored, RequestCounts, shown
from kfp_tfjob.serving.requests_sample import RequestsSample
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.champion import Champion, no_champion, read_champion
from kfp_tfjob.storage.errors import ConfigurationError, DataError, Problem
from kfp_tfjob.storage.formatting import counted, listed
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.names import check_model_name
from kfp_tfjob.storage.store import Store

_AT_ONCE, _FILES = 8, 32  # files that are read at once, and that are in memory at once


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
        layout: Where the models are.
        model_name: The model.
        until: The end of the time to look at, UTC.
        days: Its length.
        limits: When a column has moved too far.

    Raises:
        ConfigurationError: The model has no champion, or lacks a column that the limits ignore.
        DataError: There is no sample in that time, or no training data to compare with.
    """
    ConfigurationError.raise_if(check_model_name(model_name))
    champion = read_champion(store, layout, model_name)
    if champion is None:
        raise ConfigurationError(no_champion(layout, model_name))
    trained = _trained_on(store, layout, model_name, champion)
    check_columns("--ignore", limits.ignore if limits else (), trained.schema.names)
    since = until - timedelta(days=days)
    found = RequestCounts(trained, limits or Contract())
    for sample in _samples(store, layout, found, champion, since, until):
        found.add(sample, since, until)
    if not found.rows:
        raise DataError(_no_samples(store, layout, champion, found, model_name, since, until))
    return found.result(model_name, champion, since, until)


def _trained_on(store: Store, layout: Layout, model_name: str, champion: Champion) -> Reference:
    """Return the training data of a champion."""
    found = reference.of_version(store, layout, model_name, champion)
    if found and found.schema.has_columns and found.distributions:
        return found
    obstacle = f"nothing below {layout.model(model_name).version(champion.version)}"
    if found:
        obstacle = "pictures" if not found.schema.has_columns else "no distributions of its columns"
    raise DataError(
        Problem(
            f"the training data of version {champion.version} of {model_name} cannot be compared"
            " with requests",
            received=obstacle,
            expected="distributions of a table's columns",
            fix="train on a table and publish the model with this version of the project",
        )
    )


def _samples(
    store: Store,
    layout: Layout,
    found: RequestCounts,
    champion: Champion,
    since: datetime,
    until: datetime,
) -> Iterator[RequestsSample]:
    """Yield the samples of the days from `since` to `until`; note those that cannot be read."""
    place = layout.model(found.trained.model_name)
    # A file has the day of its first row, and ends within an interval of it.
    first = (since - timedelta(hours=1)).date()
    days = (until.date() - first).days
    files = (
        item
        for day in range(days + 1)
        for item in store.list(place.requests_of_day(champion.version, first + timedelta(days=day)))
    )

    def read(address: S3Address) -> RequestsSample | str:
        try:
            return requests_sample.get(store, address)
        except DataError as error:
            return str(error)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        while some := [it.address for it in islice(files, _FILES)]:
            for item in pool.map(read, some):
                if isinstance(item, str):
                    found.unreadable.append(item)
                else:
                    yield item


def _no_samples(
    store: Store,
    layout: Layout,
    champion: Champion,
    found: RequestCounts,
    model_name: str,
    since: datetime,
    until: datetime,
) -> Problem:
    others = [
        name
        for name in store.folders(layout.model(model_name).requests)
        if name != str(champion.version)
    ]
    received = f"no row from {shown(since)} to {shown(until)}"
    if found.unreadable:
        received += (
            f"; {counted(len(found.unreadable), 'sample')} cannot be read, the first because"
            f" {found.unreadable[0]}"
        )
    if others:
        received += f"; there are samples of version {listed(others, 5)}"
    return Problem(
        f"there is no sample of the requests that version {champion.version} of {model_name}"
        " answered",
        received=received,
        expected=f"files below {layout.model(model_name).requests_of(champion.version)}",
        fix="serve the model with --sample-rows, or look further back with --days",
    )
