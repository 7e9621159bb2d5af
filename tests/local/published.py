"""Publishes small models without training: folders with the files of a version, and records."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from kfp_tfjob.registry import rollback, versions
from kfp_tfjob.registry.promotion import promote
from kfp_tfjob.registry.servable import publish_newest
from kfp_tfjob.storage import run_folder
from kfp_tfjob.storage.champion import Champion, read_champion
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.store import Store
from kfp_tfjob.storage.verdict_record import ModelVerdict
from kfp_tfjob.uploader import push
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


def write_version(store: Store, layout: Layout, run_id: str, blessed: bool = True) -> Champion:
    """Write a complete version, and return the record that would make it the champion."""
    place = layout.model(NAME)
    number = versions.claim(store, place, run_id)
    verdict: dict[str, Any] = VERDICT | {
        "blessed": blessed,
        "reasons": [f"{run_id} is better"],
        "model_name": NAME,
        "model_uri": str(layout.run(run_id).model),
        "run_id": run_id,
        "exported_weights_sha256": f"weights of {run_id}",
        "metrics": {"accuracy": 0.5 + number / 100},
        "intervals": {"accuracy": [0.4, 0.9]},
    }
    champion = read_champion(store, layout, NAME)
    record = Champion(
        number=champion.number + 1 if champion else 1,
        version=number,
        version_uri=str(place.version(number)),
        run_id=run_id,
        exported_weights_sha256=verdict["exported_weights_sha256"],
        schema_digest="s",
        dataset_digest="d",
        metrics=verdict["metrics"],
        verdict_uri=str(layout.run(run_id).verdict),
    )
    complete = versions.manifest_of(store, place.version(number))
    if complete is None:
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            files = {
                "model/saved_model.pb": f"graph of {run_id}",
                "model/variables/variables.index": f"index of {run_id}",
                "verdict.json": json.dumps(verdict),
                "request.json": '{"instances": []}\n',
            }
            for name, text in files.items():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_text(text)
            details = {
                "run_id": run_id,
                "exported_weights_sha256": record.exported_weights_sha256,
                "dataset_digest": "d",
                "schema_digest": "s",
                "metrics": dict(record.metrics),
            }
            complete = push(
                store, folder, place.version(number), "model", run_id, details=details, sha256=True
            )
    return Champion(**{**vars(record), "manifest_sha256": complete.digest})


def publish(store: Store, layout: Layout, run_id: str) -> Champion:
    """Publish a model as the step publish does, after its verdict."""
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
    files = {"output/model/saved_model.pb": "a graph", "output/model.keras": "k"}
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    run = run_folder.find(store, layout, run_id)
    manifest = push(store, folder, run.base, "output", run_id, 1)
    data = folder.parent / "data"
    data.mkdir(exist_ok=True)
    (data / "schema.json").write_bytes(typed({}).to_bytes())
    (data / "statistics.json").write_text("{}")
    push(store, data, layout.dataset(DATASET), "dataset")
    newest = read_champion(store, layout, NAME)
    champion = {"number": newest.number, "version": newest.version} if newest else None
    verdict = {
        **{"blessed": blessed, "model_name": NAME, "gate": {}, "champion": champion, "checks": []},
        **{"model_uri": str(run.model), "model_digest": manifest.digest, "run_id": run_id},
        **{"dataset_uri": str(layout.dataset(DATASET)), "dataset_digest": DATASET},
        **{"schema_digest": "s"},
        **{"exported_weights_sha256": "w", "metrics": {"accuracy": 0.4}, "intervals": {}},
        **{"confidence": 0.95, "rows": 10},
        "reasons": ["it beats the champion" if blessed else "it does not beat the champion"],
    }
    store.write(run.verdict, json.dumps(verdict).encode())
    return ModelVerdict.read(store, run.verdict)
