"""The example with torch through the whole pipeline, undisturbed and with a killed replica."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from examples import digits
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.store import Store
from tests.environments import ROOT, for_torch
from tests.local.local_run import Run, end_run, stored

pytestmark = pytest.mark.slow
PROGRAM = ROOT / "examples" / "own_train_torch.py"
EPOCHS = 6


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "home"
    end_run(tmp_path / "home")


def start(home: Path, data: Path) -> Run:
    command = json.dumps([str(for_torch()), f"$(JOB_DIR)/code/{PROGRAM.name}"])
    settings = (
        f"train_options.command={command}",
        "train_options.evaluate=false",
        "train_options.checkpoint_seconds=0.01",
        "train_options.backoff_seconds=0",
        f"train_epochs={EPOCHS}",
    )
    arguments = [word for text in settings for word in ("--set", text)]
    where = ("--data", str(data), "--label", "digit", "--model", f"{PROGRAM}:main")
    return Run(home, *where, *arguments)


def is_chief(process: psutil.Process) -> bool:
    return process.environ().get("RANK") == "0" and process.cmdline()[-1].endswith(PROGRAM.name)


def losses(run: Run) -> dict[str, set[str]]:
    """Return what the replicas reported for each epoch."""
    found: dict[str, set[str]] = {}
    for epoch, loss in re.findall(rf"epoch (\d+)/{EPOCHS} loss (\S+)", run.text):
        found.setdefault(epoch, set()).add(loss)
    return found


def test_a_killed_chief_changes_neither_loss_nor_weights(tmp_path: Path, home: Path) -> None:
    data = tmp_path / "digits.csv"
    digits.write(data)
    undisturbed = start(home, data)
    assert undisturbed.wait() == 0, undisturbed.text
    killed = start(home, data)
    killed.read_until("stored checkpoint")
    killed.find(is_chief).kill()
    assert killed.wait() == 0, killed.text
    second = killed.text.partition("attempt 2")[2]
    assert "epoch" in second and f"[chief-0] epoch 1/{EPOCHS} " not in second  # it resumed
    for run in (undisturbed, killed):
        assert f"[worker-0] epoch {EPOCHS}/{EPOCHS} " in run.text
    # One loss for each epoch: of both replicas, and of the attempts that repeated it.
    assert losses(killed) == losses(undisturbed)
    assert all(len(of_epoch) == 1 for of_epoch in losses(killed).values())
    assert float(losses(killed)[str(EPOCHS)].pop()) < float(losses(killed)["1"].pop()) / 2

    def weights(layout: Layout, store: Store) -> list[bytes]:
        runs = [layout.run(run.run_id) for run in (undisturbed, killed)]
        for at in runs:
            keys = {item.key for item in store.read_manifest(at.manifest).objects}
            assert "output/model.pt" in keys
        return [store.read(at.output / "model.pt") for at in runs]

    first, other = stored(home, weights)
    assert first == other
