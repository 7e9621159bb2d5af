"""Summaries of models and their versions, for people and programs.

A damaged record must not hide the other models. So a summary names the problem of one that cannot
be read. Called by the `models` commands.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from kfp_tfjob.common.errors import ConfigurationError, DataError, Problem
from kfp_tfjob.common.formatting import did_you_mean, listed, nearest
from kfp_tfjob.storage.layout import MODELS, Layout
from kfp_tfjob.storage.store import Store
from kfp_tfjob.uploader.parallel import in_order

from .chain import verify_champion
from .champion import Champion, read_champion
from .champion_records import champions
from .history import Event, history
from .servable import unserved
from .versions import claimed_by, manifest_of, numbers_of


@dataclass(frozen=True)
class ModelRow:
    """A model in a list.

    Attributes:
        name: The model.
        version: Its champion's version; 0 without one.
        serving: Its number for servers; 0 without one.
        run_id: The run that trained it.
        at: When it became the champion.
        versions: The number of versions, without pruned ones.
        metrics: The champion's metrics.
        trouble: Why its records cannot be read; usually empty.
    """

    name: str
    version: int = 0
    serving: int = 0
    run_id: str = ""
    at: str = ""
    versions: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)
    trouble: str = ""


@dataclass(frozen=True)
class VersionRow:
    """A version of a model.

    Attributes:
        version: Its number.
        state: `champion`, `earlier champion`, `complete`, `incomplete` or `pruned`.
        run_id: The run that trained it; empty if unknown.
        size: Bytes; 0 if it is not complete.
        uri: Its folder.
    """

    version: int
    state: str
    run_id: str
    size: int
    uri: str


@dataclass(frozen=True)
class Shown:
    """A model with its champion, versions and history.

    Attributes:
        name: The model.
        champion: The champion's record; None if there is none.
        proof: Empty if the champion's records agree; otherwise the first broken link.
        serving_uri: The folder that servers read; empty if it is not complete.
        not_served: The champion's files that are missing or altered in that folder.
        serving_base: The base path for servers.
        versions: The versions, the newest first.
        history: The model's events, the newest first.
    """

    name: str
    champion: Champion | None
    proof: str
    serving_uri: str
    not_served: tuple[str, ...]
    serving_base: str
    versions: tuple[VersionRow, ...]
    history: tuple[Event, ...]


def names(store: Store, layout: Layout) -> list[str]:
    """Return the names of all models."""
    return store.folders(layout.root / MODELS)


def require(store: Store, layout: Layout, model_name: str) -> None:
    """Reject the name of a model that does not exist.

    Raises:
        ConfigurationError: There is no such model; the error suggests a similar name.
    """
    existing = names(store, layout)
    if model_name not in existing:
        near = nearest(model_name, existing)
        raise ConfigurationError(
            Problem(
                f"there is no model {model_name!r} in {layout.root / MODELS}",
                received=model_name,
                expected=listed(existing, 8) or "a model; no run has published one yet",
                fix=did_you_mean(near, "correct the name, or --output and --endpoint"),
                suggestion=near,
                name="model-not-found",
            )
        )


def rows(store: Store, layout: Layout) -> Iterator[ModelRow]:
    """Yield all models, sorted by name; `trouble` explains why one cannot be read."""
    for _, row in in_order(lambda name: _row(store, layout, name), names(store, layout)):
        yield row.result()


def _row(store: Store, layout: Layout, name: str) -> ModelRow:
    folder = layout.model(name)
    count = len({*numbers_of(store, folder)} - {*store.numbers(folder.tombstones)})
    try:
        champion = read_champion(store, layout, name)
    except DataError as error:
        return ModelRow(name, versions=count, trouble=str(error))
    if champion is None:
        return ModelRow(name, versions=count)
    return ModelRow(
        name,
        champion.version,
        champion.served_as,
        champion.run_id,
        champion.at,
        count,
        champion.metrics,
    )


def show(store: Store, layout: Layout, model_name: str, most: int) -> Shown:
    """Return a model's champion, versions and history; `proof` explains a champion that is damaged.

    Args:
        store: The store.
        layout: Everything below output_uri.
        model_name: The model.
        most: The number of versions and of events; 0 for all.

    Raises:
        DataError: A record is damaged.
    """
    folder = layout.model(model_name)
    champion = read_champion(store, layout, model_name)
    broken_link, serving_uri, not_served = "", "", ()
    try:
        verified = champion and verify_champion(store, layout, model_name, champion.number)
        if verified:
            not_served = tuple(sorted(unserved(store, layout, verified).values()))
            serving_uri = "" if not_served else str(folder.servable(verified.serving))
    except DataError as error:
        broken_link = str(error)
    return Shown(
        model_name,
        champion,
        broken_link,
        serving_uri,
        not_served,
        str(folder.serving),
        tuple(_version_rows(store, layout, model_name, champion, most)),
        tuple(history(store, layout, model_name, most)[: most or None]),
    )


def _version_rows(
    store: Store, layout: Layout, model_name: str, champion: Champion | None, most: int
) -> Iterator[VersionRow]:
    folder = layout.model(model_name)
    pruned = set(store.numbers(folder.tombstones))
    numbers = sorted({*numbers_of(store, folder), *pruned}, reverse=True)
    promoted = {record.version for record in champions(store, layout, model_name)}

    def row(number: int) -> VersionRow:
        run_id, _ = claimed_by(store, folder, number)
        state, size = "pruned", 0
        if number not in pruned:
            try:
                manifest = manifest_of(store, folder.version(number))
                size = manifest.size if manifest else 0
                state = "complete" if manifest else "incomplete"
            except DataError:
                state = "damaged"
            if champion and number == champion.version:
                state = "champion" if state == "complete" else f"champion, {state}"
            elif number in promoted:
                state = "earlier champion" if state == "complete" else f"earlier champion, {state}"
        return VersionRow(number, state, run_id, size, str(folder.version(number)))

    for _, version in in_order(row, numbers[: most or None]):
        yield version.result()
