"""Verifies a model's champion: champion record, version, manifest, verdict, and each file.

The record names the version and its manifest's SHA-256. The manifest lists each file's checksum,
including the verdict's. The verdict must bless exactly this model. A broken link is an error, so an
unverified version is never served. Called by the servers, by rollbacks, and by `models show`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from kfp_tfjob.common import names
from kfp_tfjob.common.errors import (
    DataError,
    ObjectNotFoundError,
    Problem,
)
from kfp_tfjob.storage import documents
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.checksum import file_sha256
from kfp_tfjob.storage.layout import MANIFEST, MODEL, SAVED_MODEL, VERDICT, Layout
from kfp_tfjob.storage.manifest import Manifest, ManifestObject
from kfp_tfjob.storage.store import Store
from kfp_tfjob.uploader import pull

from .champion import PROMOTE, ROLLBACK, Champion, read_champion, read_record
from .champion_records import champions
from .verdict_record import ModelVerdict
from .versions import manifest_of


@dataclass(frozen=True)
class VerifiedChampion:
    """A champion whose records agree; its files are checked by `fetch`.

    Attributes:
        model_name: The model.
        champion: The record.
        version: The version's folder.
        manifest: That folder's manifest.
        verdict: The verdict in that folder.
    """

    model_name: str
    champion: Champion
    version: S3Address
    manifest: Manifest
    verdict: ModelVerdict

    @property
    def serving(self) -> int:
        """The number of its folder below `serving/`."""
        return self.champion.served_as

    @property
    def files(self) -> list[ManifestObject]:
        """The SavedModel's files, with keys relative to the version's folder."""
        return [file for file in self.manifest.objects if file.key.startswith(f"{MODEL}/")]


def verify_champion(
    store: Store, layout: Layout, model_name: str, number: int = 0
) -> VerifiedChampion | None:
    """Verify a champion's records; `fetch` verifies its files.

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
    # The bucket may be a copy, under another name; the folder in it must be the recorded one.
    if champion.version_uri.split("/")[-4:] != str(version).split("/")[-4:]:
        raise _broken(model_name, champion, f"its record names {champion.version_uri}")
    manifest = manifest_of(store, version)
    if manifest is None:
        raise _broken(model_name, champion, f"{version} has no {MANIFEST}")
    DataError.raise_if(
        names.problems([file.key for file in manifest.objects], f"the manifest of {version}")
    )
    for problem in _manifest_mismatches(champion, manifest):
        raise _broken(model_name, champion, problem)
    verdict = _read_verdict(store, version, manifest, model_name, champion)
    for problem in _verdict_mismatches(model_name, champion, verdict):
        raise _broken(model_name, champion, problem)
    if not verdict.blessed:
        for problem in _missing_promotion(store, layout, model_name, champion):
            raise _broken(model_name, champion, f"its verdict does not bless it, and {problem}")
    return VerifiedChampion(model_name, champion, version, manifest, verdict)


def fetch(store: Store, verified: VerifiedChampion, folder: Path) -> None:
    """Download a champion's files: `model/`, its schema, its statistics and its verdict.

    Args:
        store: The store.
        verified: The champion.
        folder: The destination; files that already match the manifest are not fetched again.

    Raises:
        DataError: A file is missing or damaged, or the version has changed.
    """
    manifest = pull(store, verified.version, folder)
    if manifest.digest != verified.manifest.digest:
        raise _broken(
            verified.model_name, verified.champion, "its manifest changed while it was read"
        )
    DataError.raise_if(sha256_problems(verified.version, folder, manifest.objects))


def sha256_problems(
    version: S3Address, folder: Path, objects: Iterable[ManifestObject]
) -> Iterator[Problem]:
    """Yield a problem for each fetched file whose SHA-256 differs from its manifest entry.

    The store checks the crc64nvme while it fetches; that does not detect a deliberate change.

    Args:
        version: The version's folder in the store.
        folder: The local folder with the fetched files.
        objects: The files' entries in the manifest; one without a SHA-256 is skipped.
    """
    for file in objects:
        if file.sha256 and file.sha256 != file_sha256(folder / file.key):
            yield Problem(
                f"{version / file.key} does not match its manifest",
                received="a different SHA-256",
                expected=file.sha256,
                fix="do not use it, because it was altered",
                name="checksum-mismatch",
            )


def _manifest_mismatches(champion: Champion, manifest: Manifest) -> Iterator[str]:
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
    if f"{MODEL}/{SAVED_MODEL}" not in {file.key for file in manifest.objects}:
        yield f"its manifest has no {MODEL}/{SAVED_MODEL}"


def _read_verdict(
    store: Store, version: S3Address, manifest: Manifest, model_name: str, champion: Champion
) -> ModelVerdict:
    """Return the verdict in a version's folder, checked against the manifest."""
    entry = next((file for file in manifest.objects if file.key == VERDICT), None)
    if entry is None:
        raise _broken(model_name, champion, f"its manifest has no {VERDICT}")
    try:
        content = store.read(version / VERDICT)
        store.verify(version / VERDICT, entry)
        if entry.sha256 and hashlib.sha256(content).hexdigest() != entry.sha256:
            raise _broken(model_name, champion, f"its {VERDICT} does not match its manifest")
        return documents.read(ModelVerdict, content)
    except (ObjectNotFoundError, documents.InvalidDocumentError) as error:
        raise _broken(model_name, champion, f"its {VERDICT} cannot be read: {error}") from error


def _verdict_mismatches(
    model_name: str, champion: Champion, verdict: ModelVerdict
) -> Iterator[str]:
    """Yield the fields in which a verdict is about another model, run or dataset."""
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


def _missing_promotion(
    store: Store, layout: Layout, model_name: str, champion: Champion
) -> Iterator[str]:
    """Yield a problem unless a person promoted a champion against its verdict.

    A rollback is no such decision. It restores an earlier champion, so an earlier record must show
    that a person promoted this version.
    """
    if champion.action == PROMOTE:
        return
    if champion.action == ROLLBACK:
        for record in champions(store, layout, model_name, below=champion.number):
            if (record.action, record.version, record.trained_by, record.manifest_sha256) == (
                PROMOTE,
                champion.version,
                champion.trained_by,
                champion.manifest_sha256,
            ):
                return
    yield "no earlier record shows that a user did"


def _broken(model_name: str, champion: Champion, mismatch: str) -> DataError:
    return DataError(
        Problem(
            f"champion {champion.version} of {model_name} cannot be verified",
            received=mismatch,
            expected="a champion record, a version, a manifest and a verdict that agree",
            fix="publish a new version, or roll back: kfp-tfjob models rollback; or promote another"
            " run: kfp-tfjob models promote",
        )
    )
