"""Runs of any age in a store in memory, to prune."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

from kfp_tfjob.common.errors import ObjectExistsError, ObjectNotFoundError
from kfp_tfjob.registry.champion import Champion
from kfp_tfjob.registry.training_cache import TrainedRun
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.store import Listed, Store
from tests.local.published import VERDICT

NOW = datetime(2026, 11, 1, tzinfo=UTC)
MODEL = "pets"


class Memory:
    """As much of a store as a prune uses, with a clock that tests set."""

    def __init__(self) -> None:
        self.objects: dict[S3Address, tuple[bytes, datetime]] = {}
        self.now = NOW

    def list(self, prefix: S3Address) -> Iterator[Listed]:
        start = f"{prefix.key}/"
        for address, (data, at) in sorted(self.objects.items()):
            if address.key.startswith(start):
                yield Listed(address, len(data), "tag", at)

    def folders(self, prefix: S3Address) -> list[str]:
        start = len(prefix.key) + 1
        rest = (it.address.key[start:] for it in self.list(prefix))
        return sorted({key.partition("/")[0] for key in rest if "/" in key})

    numbers = Store.numbers

    def head(self, address: S3Address) -> dict[str, Any]:
        if address not in self.objects:
            raise ObjectNotFoundError(f"no {address}")
        headers = {"date": format_datetime(self.now, usegmt=True)}
        at = self.objects[address][1]
        return {"ResponseMetadata": {"HTTPHeaders": headers}, "LastModified": at}

    has = Store.has

    def read(self, address: S3Address, limit: int = 0) -> bytes:
        self.head(address)
        return self.objects[address][0]

    def write(self, address: S3Address, data: bytes, content_type: str = "") -> str:
        self.objects[address] = data, self.now
        return ""

    def create(self, address: S3Address, data: bytes, content_type: str = "") -> str:
        if address in self.objects and self.objects[address][0] != data:
            raise ObjectExistsError(f"{address} exists")
        return self.write(address, data)

    def delete(self, address: S3Address) -> None:
        self.objects.pop(address, None)


@dataclass(frozen=True)
class Run:
    days: int
    outcome: str  # `published`, `pruned` (its version), `lost`, `failed` or `unended`
    dataset: int = 0
    shaped: bool = False
    remembered: bool = False
    task: str = ""

    @property
    def digest(self) -> str:
        return f"{self.dataset:032x}"


def store_runs(store: Any, layout: Layout, runs: list[Run]) -> None:
    """Store runs, oldest first, and what they published."""
    place, number, digests = layout.model(MODEL), 0, {run.digest: run.days for run in runs}
    digests = {it: max(run.days for run in runs if run.digest == it) for it in digests}
    for digest, days in digests.items():
        store.now = NOW - timedelta(days=days, hours=1)
        for name in ("train-00000.tfrecord", "manifest.json"):
            store.write(layout.dataset(digest) / name, b"d" * 1000)
    for at, run in enumerate(runs):
        run_id = f"run-{at:04d}"
        store.now = NOW - timedelta(days=run.days, minutes=30)
        folder = f"team-{at % 3}" if run.shaped else ""
        if run.shaped:
            body = {"run_id": run_id, "folder": folder}
            store.write(layout.folder_record(run_id), json.dumps(body).encode())
        whole = layout.run(run_id, folder)
        task = whole.task(run.task)
        claim = {"attempt": 1, "inputs": {"data": run.digest}}
        store.write(task.attempt(1), json.dumps(claim).encode())
        for step in (10, 20):
            store.write(task.checkpoints / str(step) / "variables.bin", b"c" * 500)
            store.write(task.checkpoints / str(step) / "manifest.json", b"c" * 50)
        if run.outcome == "unended":
            continue
        if run.outcome == "failed":
            store.write(whole.failure("json"), b"{}")
            continue
        store.write(task.model / "saved_model.pb", b"m" * 300)
        store.write(task.manifest, b"{}")
        blessed = run.outcome in ("published", "pruned")
        champion = None if not number else {"number": number}
        verdict = VERDICT | {"blessed": blessed, "champion": champion, "run_id": run_id}
        verdict |= {"dataset_digest": run.digest}
        store.write(task.verdict, json.dumps(verdict).encode())
        if run.remembered:
            record = TrainedRun(run_id, str(task.base), str(task.verdict))
            digest = f"{at:032x}"
            store.write(place.trained_record(digest, 1), record.to_bytes())
        if blessed:
            number += 1
            version = place.version(number)
            store.write(version / "claim.json", json.dumps({"run_id": run_id}).encode())
            rest = ("s3://b/v", run_id, "w", "s", run.digest, {}, "s3://b/verdict")
            store.write(place.champion(number), Champion(number, number, *rest).to_bytes())
            if run.outcome == "pruned":
                store.write(place.tombstone(number), b"{}")
            else:
                store.write(version / "verdict.json", json.dumps(verdict).encode())
                store.write(version / "manifest.json", b"{}")
    store.now = NOW


def needed(layout: Layout, runs: list[Run], days: int) -> set[str]:
    """Return the keys below the root that a prune must keep, as prefixes; by the words of docs."""
    keep = {"models/"}
    champion: Run | None = None  # of the runs so far
    for at, run in enumerate(runs):
        run_id = f"run-{at:04d}"
        folder = f"runs/team-{at % 3}/{run_id}/" if run.shaped else f"runs/{run_id}/"
        inner = f"{folder}tasks/{run.task}/" if run.task else folder
        record = f"runs/index/{run_id}.json"
        blessed = run.outcome in ("published", "pruned")
        if run.days < days or run.outcome == "unended":
            keep |= {folder, record, f"datasets/{run.digest}/"}
        elif run.outcome == "published":
            parts = ("attempts/", "output/model/", "evaluation/", "manifest.json")
            keep |= {record, f"datasets/{run.digest}/", *(inner + it for it in parts)}
        elif run.outcome == "lost" and run.remembered:
            if champion is None or champion.outcome == "published":
                keep |= {record, f"{inner}evaluation/", f"{inner}attempts/"}
        champion = run if blessed else champion
    return {f"{layout.root.key}/{it}" for it in keep}
