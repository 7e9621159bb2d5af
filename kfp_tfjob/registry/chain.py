"""Proves a model's champion: champion record, version, manifest, verdict, and each file.

The record names the version and the SHA-256 of its manifest; the manifest has the checksum of each
file, among them the verdict; the verdict must bless exactly this model. Any link that is broken is
an error: an unverified version is never served.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from kfp_tfjob.registry.champion_records import champions
from kfp_tfjob.registry.versions import manifest_of
from kfp_tfjob.storage import documents, names
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.champion import PROMOTE, ROLLBACK, Champion, read_champion, read_record
from kfp_tfjob.storage.checksum import file_sha256
from kfp_tfjob.storage.errors import (
    DataError,
    ObjectNotFoundError,
    Problem,
)
from kfp_tfjob.storage.layout import MANIFEST, MODEL, SAVED_MODEL, VERDICT, Layout
from kfp_tfjob.storage.manifest import Manifest, ManifestObject
from kfp_tfjob.storage.store import Store
from kfp_tfjob.storage.verdict_record import ModelVerdict
from kfp_tfjob.uploader import pull


@dataclass(frozen=True)
class Proven:
    """A champion whose records agree.

    Attributes:
        model_name: The model.
        champion: The record.
        version: The version's folder.
        manifest: The manifest of that folder.
        verdict: The verdict in it.
    """

    model_name: str
    champion: Champion
    version: S3Address
    manifest: Manifest
    verdict: ModelVerdict

    @property
    def serving(self) -> int:
        """Its number in the folder that servers read."""
        return self.champion.served_as

    @property
    def files(self) -> list[ManifestObject]:
        """The files of the SavedModel, with keys below the version's folder."""
        return [item for item in self.manifest.objects if item.key.startswith(f"{MODEL}/")]


def prove(store: Store, layout: Layout, model_name: str, number: int = 0) -> Proven | None:
    """Prove a champion's records; `fetch` proves its files.

    Args:
        store: The store.
        layout: Everything below output_uri.
        model_name: The model.
        number: The number of a champion record; 0 for the newest.

    Returns:
        The champion; None if nothing was promoted yet.

    Raises:
        ObjectNotFoundError: There is no record of this number.
        DataError: A link of the chain is missing, damaged, or about something else.
    """
    champion = (
        read_record(store, layout, model_name, number)
        if number
        else read_champion(store, layout, model_name)
    )
    if champion is None:
        return None
    version = layout.model(model_name).version(champion.version)
    # The bucket may be a copy of the one that the record names; the rest may not differ.
    if champion.version_uri.split("/")[-4:] != str(version).split("/")[-4:]:
        raise _broken(model_name, champion, f"its record names {champion.version_uri}")
    manifest = manifest_of(store, version)
    if manifest is None:
        raise _broken(model_name, champion, f"{version} has no {MANIFEST}")
    DataError.raise_if(
        names.problems([item.key for item in manifest.objects], f"the manifest of {version}")
    )
    for problem in _of_manifest(champion, manifest):
        raise _broken(model_name, champion, problem)
    verdict = _verdict(store, version, manifest, model_name, champion)
    for problem in _of_verdict(model_name, champion, verdict):
        raise _broken(model_name, champion, problem)
    if not verdict.blessed:
        for problem in _of_person(store, layout, model_name, champion):
            raise _broken(model_name, champion, f"its verdict does not bless it, and {problem}")
    return Proven(model_name, champion, version, manifest, verdict)


def fetch(store: Store, proven: Proven, folder: Path) -> None:
    """Fetch a champion's files: `model/`, and schema, statistics and verdict beside it.

    Args:
        store: The store.
        proven: The champion.
        folder: Where to; files that are already right stay.

    Raises:
        DataError: A file is missing or damaged, or the version has changed.
    """
    found = pull(store, proven.version, folder)
    if found.digest != proven.manifest.digest:
        raise _broken(proven.model_name, proven.champion, "its manifest changed while it was read")
    DataError.raise_if(sha256_problems(proven.version, folder, found.objects))


def sha256_problems(
    version: S3Address, folder: Path, objects: Iterable[ManifestObject]
) -> Iterator[Problem]:
    """Yield the fetched files whose SHA-256 is not that of the manifest.

    Args:
        version: Where they are from.
        folder: Where they are.
        objects: Their entries in the manifest.
    """
    for item in objects:
        if item.sha256 and item.sha256 != file_sha256(folder / item.key):
            yield Problem(
                f"{version / item.key} does not match its manifest",
                received="a different SHA-256",
                expected=item.sha256,
                fix="do not use it, because it was altered",
            )


def _of_manifest(champion: Champion, manifest: Manifest) -> Iterator[str]:
    """Yield the ways in which a manifest does not match the champion."""
    if champion.manifest_sha256 != manifest.digest:
        yield (
            f"the record names a manifest with SHA-256 {champion.manifest_sha256[:12]}, but the"
            f" version's has {manifest.digest[:12]}"
        )
    if (manifest.kind, manifest.run_id) != ("model", champion.run_id):
        yield f"its manifest is for a {manifest.kind} of run {manifest.run_id!r}"
    for name in ("exported_weights_sha256", "schema_digest", "dataset_digest"):
        if manifest.details.get(name) != getattr(champion, name):
            yield f"its manifest has a different {name}"
    if manifest.details.get("metrics") != dict(champion.metrics):
        yield "its manifest has different metrics"
    if f"{MODEL}/{SAVED_MODEL}" not in {item.key for item in manifest.objects}:
        yield f"its manifest has no {MODEL}/{SAVED_MODEL}"


def _verdict(
    store: Store, version: S3Address, manifest: Manifest, model_name: str, champion: Champion
) -> ModelVerdict:
    """Return the verdict in a version's folder, as its manifest proves it."""
    item = next((it for it in manifest.objects if it.key == VERDICT), None)
    if item is None:
        raise _broken(model_name, champion, f"its manifest has no {VERDICT}")
    try:
        data = store.read(version / VERDICT)
        store.prove(version / VERDICT, item)
        if item.sha256 and hashlib.sha256(data).hexdigest() != item.sha256:
            raise _broken(model_name, champion, f"its {VERDICT} does not match its manifest")
        return documents.read(ModelVerdict, data)
    except (ObjectNotFoundError, documents.InvalidDocumentError) as error:
        raise _broken(model_name, champion, f"its {VERDICT} cannot be read: {error}") from error


def _of_verdict(model_name: str, champion: Champion, verdict: ModelVerdict) -> Iterator[str]:
    """Yield how a verdict is not one that made this version the champion."""
    expected = {
        "model_name": model_name,
        "run_id": champion.run_id,
        "dataset_digest": champion.dataset_digest,
        "schema_digest": champion.schema_digest,
        "exported_weights_sha256": champion.exported_weights_sha256,
    }
    for name, value in expected.items():
        if getattr(verdict, name) != value:
            yield f"its verdict is about a different {name}"


def _of_person(store: Store, layout: Layout, model_name: str, champion: Champion) -> Iterator[str]:
    """Yield why no person has overruled a champion's verdict.

    A rollback does not overrule it: it brings back what was the champion, so there must be an
    earlier record of the person.
    """
    if champion.action == PROMOTE:
        return
    if champion.action == ROLLBACK:
        for it in champions(store, layout, model_name, below=champion.number):
            if (it.action, it.version, it.trained_by, it.manifest_sha256) == (
                PROMOTE,
                champion.version,
                champion.trained_by,
                champion.manifest_sha256,
            ):
                return
    yield "no earlier record shows that a user did"


def _broken(model_name: str, champion: Champion, what: str) -> DataError:
    return DataError(
        Problem(
            f"champion {champion.version} of {model_name} cannot be verified",
            received=what,
            expected="a champion record, a version, a manifest and a verdict that agree",
            fix="publish a new version, or roll back: kfp-tfjob models rollback",
        )
    )
