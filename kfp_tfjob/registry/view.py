"""What is known about the models, versions and differences, for people and programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from kfp_tfjob.registry.chain import prove
from kfp_tfjob.registry.history import Event, history
from kfp_tfjob.registry.records import champions
from kfp_tfjob.registry.servable import unserved
from kfp_tfjob.registry.versions import claimed_by, manifest_of, numbers_of
from kfp_tfjob.storage import documents
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.champion import Champion, read_champion
from kfp_tfjob.storage.errors import ConfigurationError, DataError, ObjectNotFoundError, Problem
from kfp_tfjob.storage.layout import LONGEST_SCHEMA, MODEL, MODELS, SCHEMA, VERDICT, Layout
from kfp_tfjob.storage.manifest import Manifest
from kfp_tfjob.storage.store import Store
from kfp_tfjob.storage.words import did_you_mean, listed, nearest
from kfp_tfjob.uploader.parallel import in_order


@dataclass(frozen=True)
class ModelRow:
    """A model in a list.

    Attributes:
        name: The model.
        version: The version of its champion; 0 without one.
        serving: Its number for servers; 0 without one.
        run_id: The run that trained it.
        at: When it became the champion.
        versions: How many versions there are, pruned ones left out.
        metrics: The metrics of the champion.
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
        run_id: The run that trained it; empty if it is not known.
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
    """A model.

    Attributes:
        name: The model.
        champion: The record of the champion; None without one, or if it is damaged.
        proof: Empty if the records of the champion agree; otherwise what is broken.
        serving_uri: The folder that servers read; empty if it is not complete.
        not_served: The files that the folder lacks, or has with other bytes.
        serving_base: The base path for servers.
        versions: The versions, the newest first.
        history: What happened, the newest first.
    """

    name: str
    champion: Champion | None
    proof: str
    serving_uri: str
    not_served: tuple[str, ...]
    serving_base: str
    versions: tuple[VersionRow, ...]
    history: tuple[Event, ...]


@dataclass(frozen=True)
class Compared:
    """Two versions beside each other.

    Attributes:
        name: The model.
        versions: Their numbers.
        same_model: Whether their exported weights are the same.
        same_data: Whether they were judged on the same test rows, so that metrics compare.
        facts: What differs, by name, for each of them.
        metrics: Each metric of the two, and its intervals as `low to high`.
    """

    name: str
    versions: tuple[int, int]
    same_model: bool
    same_data: bool
    facts: Mapping[str, tuple[Any, Any]]
    metrics: Mapping[str, tuple[Any, Any]]


def names(store: Store, layout: Layout) -> list[str]:
    """Return the names of all models."""
    return store.folders(layout.root / MODELS)


def require(store: Store, layout: Layout, model_name: str) -> None:
    """Refuse the name of a model that does not exist.

    Raises:
        ConfigurationError: There is no such model; the error names one that is similar.
    """
    known = names(store, layout)
    if model_name not in known:
        near = nearest(model_name, known)
        raise ConfigurationError(
            Problem(
                f"there is no model {model_name!r} in {layout.root / MODELS}",
                received=model_name,
                expected=listed(known, 8) or "a model; no run has published one yet",
                fix=did_you_mean(near, "correct the name, or --output and --endpoint"),
                suggestion=near,
            )
        )


def rows(store: Store, layout: Layout) -> Iterator[ModelRow]:
    """Yield all models, sorted by name; one that cannot be read says so."""
    for _, row in in_order(lambda name: _row(store, layout, name), names(store, layout)):
        yield row.result()


def _row(store: Store, layout: Layout, name: str) -> ModelRow:
    place = layout.model(name)
    count = len({*numbers_of(store, place)} - {*store.numbers(place.tombstones)})
    try:
        it = read_champion(store, layout, name)
    except DataError as error:
        return ModelRow(name, versions=count, trouble=str(error))
    if it is None:
        return ModelRow(name, versions=count)
    return ModelRow(name, it.version, it.served_as, it.run_id, it.at, count, it.metrics)


def show(store: Store, layout: Layout, model_name: str, most: int) -> Shown:
    """Return what is known about a model; a record that is damaged or not proven says why.

    Args:
        store: The store.
        layout: Everything below output_uri.
        model_name: The model.
        most: How many versions and events; 0 for all.
    """
    place = layout.model(model_name)
    champion, proof, served, wrong = None, "", "", ()
    try:
        champion = read_champion(store, layout, model_name)
        proven = champion and prove(store, layout, model_name, champion.number)
        if proven:
            wrong = tuple(sorted(unserved(store, layout, proven).values()))
            served = "" if wrong else str(place.servable(proven.serving))
    except DataError as error:
        proof = str(error)
    return Shown(
        model_name,
        champion,
        proof,
        served,
        wrong,
        str(place.serving),
        tuple(_versions(store, layout, model_name, champion, most)),
        tuple(history(store, layout, model_name, most)[: most or None]),
    )


def compare(store: Store, layout: Layout, model_name: str, one: int, other: int) -> Compared:
    """Return how two versions differ.

    Args:
        store: The store.
        layout: Everything below output_uri.
        model_name: The model.
        one: A version.
        other: Another one.

    Raises:
        ConfigurationError: A version is missing, not complete, or was pruned.
        DataError: Its files are damaged.
    """
    first, second = (_read(store, layout, model_name, number) for number in (one, other))
    facts = {
        name: (first[0][name], second[0][name])
        for name in first[0]
        if first[0][name] != second[0][name]
    }
    metrics = {}
    for name in dict.fromkeys((*first[1], *second[1])):
        if name in first[1] or name in second[1]:
            metrics[name] = (first[1].get(name), second[1].get(name))
    same_model = first[0]["exported weights"] == second[0]["exported weights"]
    same_data = first[0]["dataset"] == second[0]["dataset"]
    return Compared(model_name, (one, other), same_model, same_data, facts, metrics)


def _versions(
    store: Store, layout: Layout, model_name: str, champion: Champion | None, most: int
) -> Iterator[VersionRow]:
    place = layout.model(model_name)
    pruned = set(store.numbers(place.tombstones))
    numbers = sorted({*numbers_of(store, place), *pruned}, reverse=True)
    ever = {it.version for it in champions(store, layout, model_name, lambda _: None)}

    def row(number: int) -> VersionRow:
        run_id, _ = claimed_by(store, place, number)
        state, size = "pruned", 0
        if number not in pruned:
            try:
                manifest = manifest_of(store, place.version(number))
                size = manifest.size if manifest else 0
                state = "complete" if manifest else "incomplete"
            except DataError:
                state = "damaged"
            if champion and number == champion.version:
                state = "champion" if state == "complete" else f"champion, {state}"
            elif number in ever:
                state = "earlier champion" if state == "complete" else f"earlier champion, {state}"
        return VersionRow(number, state, run_id, size, str(place.version(number)))

    for _, found in in_order(row, numbers[: most or None]):
        yield found.result()


def _read(
    store: Store, layout: Layout, model_name: str, number: int
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the facts of a version, and its metrics with their intervals."""
    version = layout.model(model_name).version(number)
    manifest = manifest_of(store, version)
    if manifest is None:
        place = layout.model(model_name)
        pruned = set(store.numbers(place.tombstones))
        known = [it for it in reversed(store.numbers(place.versions)) if it not in pruned]
        raise ConfigurationError(
            Problem(
                f"version {number} of {model_name} was pruned"
                if number in pruned
                else f"{model_name} has no complete version {number}",
                received=str(number),
                expected=f"one of {listed(map(str, known), 8)}",
                fix="choose a version that `kfp-tfjob models show` lists",
            )
        )
    verdict = _document(store, version / VERDICT)
    schema = _document(store, version / SCHEMA, LONGEST_SCHEMA)
    try:
        return _facts(verdict, schema, manifest), _metrics(verdict)
    except (ValueError, TypeError, AttributeError) as error:
        raise DataError(
            Problem(
                f"version {number} of {model_name} cannot be compared",
                received=f"{type(error).__name__}: {error}",
                expected=f"{VERDICT} and {SCHEMA} as publish writes them",
                fix="compare another version; this one was altered",
            )
        ) from error


def _metrics(verdict: Mapping[str, Any]) -> dict[str, str]:
    intervals = verdict.get("intervals") or {}
    return {
        name: f"{value:.6g}{_interval(intervals.get(name))}"
        for name, value in (verdict.get("metrics") or {}).items()
        if value is not None
    }


def _facts(
    verdict: Mapping[str, Any], schema: Mapping[str, Any], manifest: Manifest
) -> dict[str, Any]:
    model = [item for item in manifest.objects if item.key.startswith(f"{MODEL}/")]
    return {
        "run": verdict.get("run_id", ""),
        "blessed": "yes" if verdict.get("blessed") else "no",
        "reasons": "; ".join(map(str, verdict.get("reasons") or [])),
        "dataset": verdict.get("dataset_digest", ""),
        "schema": verdict.get("schema_digest", ""),
        "columns": len(schema.get("features") or []),
        "classes": len((schema.get("label") or {}).get("classes") or []) or "",
        "train rows": ((schema.get("splits") or {}).get("train") or {}).get("rows", ""),
        "test rows": verdict.get("rows", ""),
        "exported weights": manifest.details.get("exported_weights_sha256", ""),
        "bytes of the model": sum(item.size for item in model),
    }


def _document(store: Store, address: S3Address, limit: int = documents.LONGEST) -> dict[str, Any]:
    try:
        found = documents.parse(store.read(address, limit), limit)
    except ObjectNotFoundError:
        return {}
    except ValueError as error:
        raise DataError(
            Problem(f"{address} is not JSON", received=error, fix="do not use this version")
        ) from error
    return found if isinstance(found, dict) else {}


def _interval(interval: list[float | None] | None) -> str:
    if not interval or None in interval:
        return ""
    return f" ({interval[0]:.6g} to {interval[1]:.6g})"
