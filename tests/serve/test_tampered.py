"""A stored model that was altered is never loaded: 200 of 200 tamperings are refused."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

import pytest

from kfp_tfjob.registry.chain import prove
from kfp_tfjob.serving.loaded import LoadedModel
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.champion import Champion, read_champion
from kfp_tfjob.storage.checksum import crc64nvme
from kfp_tfjob.storage.errors import StepError
from kfp_tfjob.storage.manifest import Manifest, ManifestObject
from kfp_tfjob.storage.store import Store
from tests.serve.conftest import Start
from tests.serve.published import PETS, Publisher

pytestmark = pytest.mark.slow
COUNT = 200
Edit = Callable[[], None]


@dataclass
class Version:
    """The champion of a publisher, whose objects can be altered and restored."""

    store: Store
    publisher: Publisher
    champion: Champion
    folder: S3Address
    record: S3Address

    @classmethod
    def of(cls, publisher: Publisher) -> Version:
        champion = read_champion(publisher.store, publisher.layout, PETS)
        assert champion
        place = publisher.layout.model(PETS)
        folder, record = place.version(champion.version), place.champion(champion.number)
        return cls(publisher.store, publisher, champion, folder, record)

    def read(self, key: str) -> bytes:
        return self.store.read(self.folder / key)

    def write(self, key: str, data: bytes) -> None:
        self.store.write(self.folder / key, data)

    @property
    def manifest(self) -> Manifest:
        return self.store.read_manifest(self.folder / "manifest.json")

    def edit_manifest(self, edit: Callable[[dict[str, Any]], Any]) -> None:
        body = json.loads(self.read("manifest.json"))
        edit(body)
        self.write("manifest.json", json.dumps(body, indent=1, sort_keys=True).encode() + b"\n")

    def edit_record(self, **values: Any) -> None:
        body = json.loads(self.store.read(self.record)) | values
        kept = {name: value for name, value in body.items() if value is not None}
        self.store.write(self.record, json.dumps(kept).encode())

    def forge(self, key: str, data: bytes, record: bool = False) -> None:
        """Replace a file and make the manifest fit; `record`: make the record fit, too."""
        self.write(key, data)
        told = ManifestObject(key, len(data), crc64nvme(data), sha256(data).hexdigest())
        objects = [told if item.key == key else item for item in self.manifest.objects]
        self.write("manifest.json", replace(self.manifest, objects=tuple(objects)).to_bytes())
        if record:
            self.edit_record(manifest_sha256=self.manifest.digest)


def tamperings(it: Version) -> Iterator[tuple[str, Edit]]:
    """Yield what is done, and the function that does it."""
    rng = random.Random(7)
    keys = [item.key for item in it.manifest.objects]
    files = {key: it.read(key) for key in keys}

    def flipped(data: bytes, at: int, bit: int) -> bytes:
        return data[:at] + bytes([data[at] ^ (1 << bit)]) + data[at + 1 :]

    def put(key: str, data: bytes) -> Edit:
        return lambda: it.write(key, data)

    def of_object(at: int, **values: Any) -> Edit:
        return lambda: it.edit_manifest(lambda body: body["objects"][at].update(values))

    for key, data in files.items():
        yield f"{key}: missing", lambda key=key: it.store.delete(it.folder / key)
        yield f"{key}: empty", put(key, b"")
        yield f"{key}: one byte more", put(key, data + b"\0")
        yield f"{key}: cut", put(key, data[: rng.randrange(len(data))])
        other = next(files[one] for one in rng.sample(keys, len(keys)) if files[one] != data)
        yield f"{key}: another file", put(key, other)
        for _ in range(2):
            at, bit = rng.randrange(len(data)), rng.randrange(8)
            yield f"{key}: bit {bit} of byte {at}", put(key, flipped(data, at, bit))
        yield f"{key}: forged with its manifest", lambda k=key, d=data: it.forge(k, d + b" ")
    for at, key in enumerate(keys):
        yield f"manifest: no {key}", lambda at=at: it.edit_manifest(lambda b: b["objects"].pop(at))
        yield f"manifest: size of {key}", of_object(at, size=1)
        yield f"manifest: checksum of {key}", of_object(at, crc64nvme="AAAAAAAAAAA=")
        yield f"manifest: SHA-256 of {key}", of_object(at, sha256="0" * 64)
        yield f"manifest: other name of {key}", of_object(at, key=f"{key}x")
    yield "manifest: a name that leads out", of_object(0, key="../../model")
    yield "manifest: missing", lambda: it.store.delete(it.folder / "manifest.json")
    for name in ("run_id", "exported_weights_sha256", "schema_digest", "dataset_digest"):
        yield (
            f"manifest: {name}",
            lambda name=name: it.edit_manifest(lambda body: body["details"].update({name: "x"})),
        )
    for name, value in {"kind": "dataset", "run_id": "another", "format": "x"}.items():
        yield (
            f"manifest: {name}",
            lambda n=name, v=value: it.edit_manifest(lambda body: body.update({n: v})),
        )
    for name in ("run_id", "weights_digest", "schema_digest", "dataset_digest", "manifest_sha256"):
        yield f"record: {name}", lambda name=name: it.edit_record(**{name: "0" * 64})
    for version in (1, 99, -1, "1"):
        yield f"record: version {version}", lambda v=version: it.edit_record(version=v)
    for name in ("run_id", "version", "weights_digest", "schema_digest", "manifest_sha256"):
        yield f"record: no {name}", lambda name=name: it.edit_record(**{name: None})
    yield "record: cut", lambda: it.store.write(it.record, it.store.read(it.record)[:50])
    # Everyone who may write records decides what answers; the weights still must be those it names.
    weights = "model/variables/variables.data-00000-of-00001"
    theirs = it.store.read(it.publisher.layout.model(PETS).version(1) / weights)
    yield "weights of another version, all forged", lambda: it.forge(weights, theirs, record=True)
    schema = json.loads(files["schema.json"])
    told = json.dumps(schema | {"schema_digest": "7" * 64}).encode()
    yield "another schema, all forged", lambda: it.forge("schema.json", told, record=True)
    while True:
        key = rng.choice([key for key in keys if len(files[key]) > 100])
        at, bit = rng.randrange(len(files[key])), rng.randrange(8)
        yield f"{key}: bit {bit} of byte {at}", put(key, flipped(files[key], at, bit))


def test_no_altered_model_is_loaded(publisher: Publisher, start: Start) -> None:
    publisher.pets()  # version 1 is another one
    it = Version.of(publisher)
    whole = {
        item.address: it.store.read(item.address)
        for item in (
            *it.store.list(it.folder),
            *it.store.list(publisher.layout.model(PETS).champions),
        )
    }
    proven = prove(it.store, publisher.layout, PETS)
    assert proven
    assert LoadedModel.of(it.store, proven).champion == it.champion
    loaded, messages = [], []
    for number, (what, edit) in enumerate(tamperings(it)):
        for address, data in whole.items():
            if not _same(it.store, address, data):
                it.store.write(address, data)
        if number == COUNT:
            break
        edit()
        try:
            proven = prove(it.store, publisher.layout, PETS)
            assert proven
            LoadedModel.of(it.store, proven)
            loaded.append(what)
        except StepError as error:
            messages.append((what, str(error)))
    for what, said in messages:
        print(f"{what}: {said.splitlines()[-1][:150]}")
    assert loaded == []
    assert len(messages) == COUNT
    assert all("Fix: " in said for _, said in messages), [
        it for it in messages if "Fix: " not in it[1]
    ]

    # The same through the command: it says which link is broken, and serves nothing.
    graph = it.folder / "model" / "saved_model.pb"
    it.store.write(graph, whole[graph] + b"\0")
    server = start(PETS)
    assert server.wait() == 3, server.log
    assert "saved_model.pb" in server.log and "Traceback" not in server.log
    it.store.write(graph, whole[graph])


def _same(store: Store, address: S3Address, data: bytes) -> bool:
    try:
        return store.read(address) == data
    except StepError:
        return False
