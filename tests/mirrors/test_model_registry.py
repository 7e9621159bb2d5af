"""The mirror in the Kubeflow Model Registry.

The server is a fake that checks what it is sent, once for each version of the API, and a real one
with an empty database where KFP_TFJOB_TEST_MODEL_REGISTRY has its address.
"""

import json
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from kfp_tfjob.registry import mirror
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.store import Store
from tests.cluster.processes import Process
from tests.environments import ROOT, for_mirrors
from tests.local.published import NAME, publish, roll_back
from tests.ports import free_port

pytestmark = pytest.mark.slow


_REAL = "KFP_TFJOB_TEST_MODEL_REGISTRY"
_OF_REAL = "v1alpha3"  # all that a server of release 0.3.8 has


class Registry:
    """A registry as another client sees it."""

    def __init__(self, address: str, version: str) -> None:
        self.address = address
        self._root = f"{address}/api/model_registry/{version}"

    def items(self, kind: str) -> list[dict[str, Any]]:
        with urlopen(f"{self._root}/{kind}", timeout=30) as answer:
            return json.load(answer)["items"]

    def create(self, kind: str, **fields: Any) -> str:
        headers = {"Content-Type": "application/json"}
        asked = Request(f"{self._root}/{kind}", json.dumps(fields).encode(), headers)
        with urlopen(asked, timeout=30) as answer:
            return json.load(answer)["id"]


@pytest.fixture(params=["v1", "v1alpha3", "real"])
def registry(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Registry]:
    if request.param == "real":
        if _REAL not in os.environ:
            pytest.skip(f"{_REAL} names no server")
        yield Registry(os.environ[_REAL], _OF_REAL)
        return
    port = free_port()
    program = Path(__file__).with_name("fake_model_registry.py")
    command = [for_mirrors(), program, str(port), request.param]
    process = Process("registry", command, tmp_path, tmp_path, {"PYTHONPATH": str(ROOT)})
    process.start()
    try:
        process.wait_until(lambda: socket.create_connection(("127.0.0.1", port)).close() is None)
        yield Registry(f"http://127.0.0.1:{port}", request.param)
    finally:
        process.stop()


def test_register_champion_and_rollback(
    store: Store, layout: Layout, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(for_mirrors()))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("MODEL_REGISTRY_URL", registry.address)
    # What a process leaves that was killed between the two requests for a version.
    model = registry.create("registered_models", name=NAME)
    # A person's own property, and facts of an earlier record of the version.
    properties = {
        name: {"metadataType": "MetadataStringValue", "string_value": "x"}
        for name in ("approved_by", "pruned", "metric.of_before")
    }
    fields = {"registeredModelId": model, "customProperties": properties}
    registry.create("model_versions", name="1", **fields)
    first = publish(store, layout, "r1")
    publish(store, layout, "r2")

    def synced(said: str) -> None:
        (outcome,) = mirror.sync(store, layout, NAME, 120)
        assert outcome.done and outcome.message.startswith(said), outcome.message

    synced("1 added, 3 changed; ")
    synced("up ")
    roll_back(store, layout)
    synced("0 added, 2 changed; ")
    (model,) = registry.items("registered_models")
    assert model["name"] == NAME
    assert model["customProperties"]["champion"]["string_value"] == "1"
    facts = {it["name"]: it["customProperties"] for it in registry.items("model_versions")}
    assert facts["1"]["run_id"]["string_value"] == "r1"
    assert facts["1"]["by"]["string_value"] == "eva"
    assert facts["1"]["approved_by"]["string_value"] == "x"
    assert not facts["1"].keys() & {"pruned", "metric.of_before"}
    assert facts["1"]["manifest_sha256"]["string_value"] == first.manifest_sha256
    uris = [it["uri"] for it in registry.items("artifacts")]
    assert uris == [f"{layout.model(NAME).version(n)}/model" for n in (1, 2)]
