"""Champions whose chain of records is whole, without training: the files are any bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.champion import Champion
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.store import Store
from kfp_tfjob.uploader import push
from tests.local.published import VERDICT


def champion_of(version: S3Address, run_id: str, done: Any) -> Champion:
    """Return the first record of a model, a version of a run with the dataset `done`."""
    return Champion(
        number=1,
        version=int(version.name),
        version_uri=str(version),
        run_id=run_id,
        exported_weights_sha256="0" * 64,
        schema_digest=done.schema.schema_digest,
        dataset_digest=done.dataset_digest,
        metrics={},
        verdict_uri="s3://x/y",
    )


def publish(
    store: Store,
    layout: Layout,
    model_name: str,
    number: int,
    files: dict[str, bytes],
    scratch: Path,
) -> Champion:
    """Publish files as the SavedModel of version `number`, which champion record `number` names."""
    place, folder = layout.model(model_name), scratch / f"version-{number}"
    about = {"schema_digest": "s", "dataset_digest": "d", "exported_weights_sha256": "w"}
    run_id = f"r{number}"
    for name, data in files.items():
        path = folder / "model" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    verdict = VERDICT | {"model_name": model_name, "run_id": run_id} | about
    verdict["dataset_uri"] = str(layout.dataset("d"))
    (folder / "verdict.json").write_text(json.dumps(verdict))
    version = place.version(number)
    details = about | {"metrics": {}}
    manifest = push(store, folder, version, "model", run_id, details=details, sha256=True)
    champion = Champion(
        number=number,
        version=number,
        version_uri=str(version),
        run_id=run_id,
        metrics={},
        verdict_uri="s3://x/y",
        manifest_sha256=manifest.digest,
        **about,
    )
    store.create(place.champion(number), champion.to_bytes())
    return champion
