"""Publishes small models without training: folders with the files of a version, and records."""

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kfp_tfjob.registry import rollback, run_folder, versions
from kfp_tfjob.registry.champion import Champion, read_champion
from kfp_tfjob.registry.promotion import promote
from kfp_tfjob.registry.servable import publish_newest
from kfp_tfjob.registry.verdict_record import ModelVerdict
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import DISTRIBUTIONS, SCHEMA, STATISTICS, Layout
from kfp_tfjob.storage.store import Store
from kfp_tfjob.uploader import push
from tests.faults.world import write_files
from tests.typed_schema import typed

NAME = "pets"
# A verdict, as far as no test is about it.
VERDICT = {
    **{"blessed": True, "reasons": ["the first"], "champion": None, "checks": [], "gate": {}},
    **{"metrics": {}, "intervals": {}, "confidence": 0.95, "rows": 100},
    **{"model_name": "m", "model_uri": "s3://b/m", "run_id": "r", "model_digest": "m"},
    **{"exported_weights_sha256": "w", "dataset_uri": "s3://b/d", "dataset_digest": "d"},
    **{"schema_digest": "s"},
}
DATASET = "d" * 32


def write_version(
    store: Store,
    layout: Layout,
    run_id: str,
    blessed: bool = True,
    name: str = NAME,
    files: Mapping[str, bytes] | None = None,
    dataset_uri: str = "s3://b/d",
    **digests: str,
) -> Champion:
    """Write a complete version, and return the record that would make it the champion.

    Args:
        files: By their path in the version, instead of a model's.
        digests: Of the dataset and its schema.
    """
    place = layout.model(name)
    number = versions.claim(store, place, run_id)
    champion = read_champion(store, layout, name)
    about: dict[str, Any] = {
        "run_id": run_id,
        "exported_weights_sha256": f"weights of {run_id}",
        "metrics": {"accuracy": 0.5 + number / 100},
        **{"dataset_digest": "d", "schema_digest": "s"},
    }
    about |= digests
    verdict = VERDICT | about
    verdict |= {"model_name": name, "model_uri": str(layout.run(run_id).model)}
    verdict |= {"blessed": blessed, "reasons": [f"{run_id} is better"]}
    verdict |= {"intervals": {"accuracy": [0.4, 0.9]}, "dataset_uri": dataset_uri}
    version = place.version(number)
    complete = versions.manifest_of(store, version)
    if complete is None:
        model = {
            "model/saved_model.pb": f"graph of {run_id}".encode(),
            "model/variables/variables.index": f"index of {run_id}".encode(),
            "request.json": b'{"instances": []}\n',
        }
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            written = {"verdict.json": json.dumps(verdict).encode()}
            write_files(folder, written | dict(files or model))
            complete = push(store, folder, version, "model", run_id, details=about, sha256=True)
    return Champion(
        number=champion.number + 1 if champion else 1,
        version=number,
        version_uri=str(version),
        verdict_uri=str(layout.run(run_id).verdict),
        manifest_sha256=complete.digest,
        **about,
    )


def publish_files(
    store: Store, layout: Layout, name: str, number: int, files: Mapping[str, bytes]
) -> Champion:
    """Make a SavedModel the champion; champion record and version have this number."""
    model = {f"model/{path}": data for path, data in files.items()}
    champion = write_version(store, layout, f"r{number}", name=name, files=model)
    return _crown(store, layout, name, champion)


def publish_trained_on(
    store: Store,
    layout: Layout,
    name: str,
    done: Any,
    copies: Sequence[str] = (SCHEMA, STATISTICS, DISTRIBUTIONS),
) -> Champion:
    """Make a model the champion whose version has these files of a prepared dataset."""
    dataset = S3Address.parse(done.dataset_uri)
    files = {it: store.read(dataset / it) for it in copies if store.has(dataset / it)}
    about = {"dataset_uri": done.dataset_uri, "dataset_digest": done.dataset_digest}
    about["schema_digest"] = done.schema.schema_digest
    champion = write_version(store, layout, "r0", name=name, files=files, **about)
    return _crown(store, layout, name, champion)


def _crown(store: Store, layout: Layout, name: str, champion: Champion) -> Champion:
    """Store the record without what promote does besides."""
    store.create(layout.model(name).champion(champion.number), champion.to_bytes())
    return champion


def publish(store: Store, layout: Layout, *run_ids: str) -> Champion:
    """Publish models as the step publish does, after their verdicts; return the champion."""
    for run_id in run_ids:
        champion = promote(store, layout, NAME, write_version(store, layout, run_id))
        publish_newest(store, layout, NAME)
    return champion


def roll_back(store: Store, layout: Layout, version: int = 0, why: str = "it is slow") -> Champion:
    """Roll back to a version, or to the one before; return the new champion."""
    planned = rollback.plan(store, layout, NAME, version)
    return rollback.execute(store, layout, planned, "eva", why)


def judged(
    store: Store, layout: Layout, run_id: str, folder: Path, blessed: bool = False
) -> ModelVerdict:
    """Leave a run that was judged against the present champion; return its verdict."""
    write_files(folder, {"output/model/saved_model.pb": b"a graph", "output/model.keras": b"k"})
    run = run_folder.find(store, layout, run_id)
    manifest = push(store, folder, run.base, "output", run_id, 1)
    data = folder.parent / "data"
    write_files(data, {"schema.json": typed({}).to_bytes(), "statistics.json": b"{}"})
    push(store, data, layout.dataset(DATASET), "dataset")
    newest = read_champion(store, layout, NAME)
    champion = {"number": newest.number, "version": newest.version} if newest else None
    verdict = VERDICT | {
        **{"blessed": blessed, "model_name": NAME, "champion": champion},
        **{"model_uri": str(run.model), "model_digest": manifest.digest, "run_id": run_id},
        **{"dataset_uri": str(layout.dataset(DATASET)), "dataset_digest": DATASET},
        "metrics": {"accuracy": 0.4},
        "reasons": ["it beats the champion" if blessed else "it does not beat the champion"],
    }
    store.write(run.verdict, json.dumps(verdict).encode())
    return ModelVerdict.read(store, run.verdict)
