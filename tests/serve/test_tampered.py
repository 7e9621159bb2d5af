"""A stored model that was altered is never loaded, even if its manifest and record were, too.

Alterations that the chain of records shows by itself are in tests/local/test_registry.py.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256

import pytest

from kfp_tfjob.common.errors import DataError
from kfp_tfjob.registry.chain import verify_champion
from kfp_tfjob.registry.champion import read_champion
from kfp_tfjob.serving.loaded_model import LoadedModel
from kfp_tfjob.storage.checksum import crc64nvme
from kfp_tfjob.storage.manifest import ManifestObject
from tests.serve.conftest import Start
from tests.serve.published import PETS, Publisher

pytestmark = pytest.mark.slow
GRAPH = "model/saved_model.pb"
WEIGHTS = [f"model/variables/variables.{name}" for name in ("index", "data-00000-of-00001")]


@pytest.fixture
def altered(publisher: Publisher) -> Iterator[Publisher]:
    """A publisher whose champion is restored; version 1 is another one."""
    publisher.pets()
    store = publisher.store
    whole = {
        item.address: store.read(item.address)
        for item in store.list(publisher.layout.model(PETS).base)
    }
    yield publisher
    for address, data in whole.items():
        store.write(address, data)


def forge(publisher: Publisher, key: str, data: bytes) -> None:
    """Replace a file of the champion, and make its manifest and its record fit."""
    store, place = publisher.store, publisher.layout.model(PETS)
    champion = read_champion(store, publisher.layout, PETS)
    assert champion
    folder = place.version(champion.version)
    manifest = store.read_manifest(folder / "manifest.json")
    told = ManifestObject(key, len(data), crc64nvme(data), sha256(data).hexdigest())
    objects = tuple(told if item.key == key else item for item in manifest.objects)
    manifest = replace(manifest, objects=objects)
    store.write(folder / key, data)
    store.write(folder / "manifest.json", manifest.to_bytes())
    record = replace(champion, manifest_sha256=manifest.digest)
    store.write(place.champion(champion.number), record.to_bytes())


def test_forged_weights_and_a_forged_schema_are_not_loaded(altered: Publisher) -> None:
    """Who may write records decides what answers, but the weights must be those it names."""
    store, layout = altered.store, altered.layout
    proven = verify_champion(store, layout, PETS)
    assert proven and LoadedModel.of(store, proven).champion == proven.champion
    place = layout.model(PETS)
    version = place.version(proven.champion.version)
    schema = store.read(version / "schema.json")
    forge(altered, "schema.json", json.dumps(json.loads(schema) | {"schema_digest": "7"}).encode())
    with pytest.raises(DataError, match=r"schema.json of (.|\n)*Fix: "):
        LoadedModel.of(store, verify_champion(store, layout, PETS))
    forge(altered, "schema.json", schema)
    for name in WEIGHTS:
        forge(altered, name, store.read(place.version(1) / name))
    with pytest.raises(DataError, match="weights"):
        LoadedModel.of(store, verify_champion(store, layout, PETS))


def test_the_command_says_which_file_was_altered_and_serves_nothing(
    altered: Publisher, start: Start
) -> None:
    champion = read_champion(altered.store, altered.layout, PETS)
    assert champion
    graph = altered.layout.model(PETS).version(champion.version) / GRAPH
    altered.store.write(graph, altered.store.read(graph) + b"\0")
    server = start(PETS)
    assert server.wait() == 3, server.log
    assert "saved_model.pb" in server.log and "Traceback" not in server.log
