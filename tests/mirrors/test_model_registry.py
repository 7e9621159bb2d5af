"""The client of the Kubeflow Model Registry against a fake that checks what it is sent."""

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kfp_tfjob.registry import mirror, rollback
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.store import Store
from tests.environments import ROOT, for_mirrors
from tests.local.published import NAME, publish

pytestmark = pytest.mark.slow


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """The address of the fake, and the file with what it was told."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = Path(__file__).with_name("fake_model_registry.py")
    kept = tmp_path / "kept.json"
    process = subprocess.Popen([str(for_mirrors()), str(program), str(port), str(kept)])
    try:
        until = time.monotonic() + 120
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                assert process.poll() is None and time.monotonic() < until
                time.sleep(0.2)
        yield f"http://127.0.0.1:{port}", kept
    finally:
        process.kill()
        process.wait()


def test_register_champion_and_rollback(
    store: Store, base: S3Address, fake: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = Layout(base)
    address, kept = fake
    monkeypatch.setattr(sys, "executable", str(for_mirrors()))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("MODEL_REGISTRY_URL", address)
    first = publish(store, layout, "r1")
    publish(store, layout, "r2")
    (outcome,) = mirror.sync(store, layout, NAME, 120)
    assert outcome.done, outcome.said
    assert outcome.said == "2 added, 1 changed; the champion is version 2"
    (outcome,) = mirror.sync(store, layout, NAME, 120)
    assert outcome.said == "up to date; the champion is version 2"

    rollback.execute(store, layout, rollback.plan(store, layout, NAME), "eva", "it is slow")
    (outcome,) = mirror.sync(store, layout, NAME, 120)
    assert outcome.said == "0 added, 2 changed; the champion is version 1"
    state = json.loads(kept.read_text())
    (model,) = state["registered_models"]
    assert model["name"] == NAME
    assert model["customProperties"]["champion"]["string_value"] == "1"
    facts = {it["name"]: it["customProperties"] for it in state["model_versions"]}
    assert facts["1"]["run_id"]["string_value"] == "r1"
    assert facts["1"]["by"]["string_value"] == "eva"
    assert facts["1"]["manifest_sha256"]["string_value"] == first.manifest_sha256
    uris = [it["uri"] for it in state["artifacts"]]
    assert uris == [f"{layout.model(NAME).version(n)}/model" for n in (1, 2)]
