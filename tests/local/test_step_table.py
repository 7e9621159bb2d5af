"""What one replica computes, several compute too, feature by feature, or it is refused.

The rows are in step_rows.py; Keras and TensorFlow alone get about half of them wrong (the deadlock
of loss scaling among them). A quick part runs on two CPUs of one process, the whole table (slow) in
one, two and three processes.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from examples import pictures
from kfp_tfjob.components.prepare_data import engine
from kfp_tfjob.components.step import Step
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.credentials import MOUNT_VARIABLE
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.uploader import pull
from tests.local import tiny_dataset
from tests.local.replica import tf_config
from tests.ports import free_ports

ROOT = Path(__file__).parents[2]
SECONDS = 900.0  # for all rows; an idle machine needs a tenth of it
QUICK = (
    "BatchNormalization made so",
    "loss scaling, inf on one replica",
    "micro-batches, inf in one",
    "a loss of all pairs",
)
ALSO_ALONE = {
    "a loss of all pairs": "the loss compares every label with every row",
    "one number, with weights": "the loss ignores which rows have which weights",
    "own loss without weights": "the loss ignores which rows have which weights",
}
REFUSED = ALSO_ALONE | {
    "a root of the mean": "the loss depends on how a batch is divided",
    "own loss": "the loss depends on how a batch is divided.* as the mean of their halves",
    "mean over weights": "the loss depends on how a batch is divided",
    "a mask on the output": "the loss depends on how a batch is divided.*an output with a mask",
    "EMA that overwrites": "Keras cannot overwrite weights.*ema_overwrite_frequency=5",
    "plain BatchNormalization": "BatchNormalization would use different.*remove sync_batch_norm",
    "masked BatchNormalization": "different values of of_words/moving_mean.*no mask",
    "own state": 'different values of local_mean_?[0-9]*/mean. .*aggregation="mean"',
    "accumulation by Keras": "Keras cannot accumulate.*micro_batches",
}
Results = dict[str, Any]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_dataset.write(tmp_path_factory.mktemp("rows"))


@pytest.fixture
def tiles(s3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a dataset of images."""
    pictures.write(tmp_path / "tiles")
    step = Step("prepare_data", "r1", Layout(S3Address("test", "tiles")), s3.store())
    monkeypatch.setenv(MOUNT_VARIABLE, str(s3.secret))
    done = engine.run(step, str(tmp_path / "tiles"), "", {})
    pull(step.store, S3Address.parse(done.dataset_uri), tmp_path / "dataset")
    return tmp_path / "dataset"


def _processes(dataset: Path, names: list[str], size: int, **more: str) -> list[Results]:
    """Run the rows in some processes at once and return what each of them says."""
    said = _outputs("step_rows.py", [str(dataset), *names], size, **more)
    return [json.loads(lines.splitlines()[-1]) for lines in said]


def _outputs(script: str, arguments: list[str], size: int, **more: str) -> list[str]:
    hosts = [f"127.0.0.1:{port}" for port in free_ports(size)]
    started = []
    for at in range(size):
        environment = dict(os.environ) | {"PYTHONPATH": str(ROOT)} | more
        if size > 1:
            environment["TF_CONFIG"] = tf_config(hosts, at)
        command = [sys.executable, str(Path(__file__).with_name(script)), *arguments]
        started.append(
            subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        )
    try:
        said = [process.communicate(timeout=SECONDS)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0] * size
    return said


def _agree(row: str, alone: Results, several: Results, tolerance: float) -> None:
    if row in REFUSED:
        if row in ALSO_ALONE:
            assert re.search(REFUSED[row], alone["refused"]), alone
        else:
            assert "numbers" in alone, alone
        assert re.search(REFUSED[row], several["refused"]), several
        return
    assert several["numbers"] == pytest.approx(alone["numbers"], rel=tolerance), row
    assert (several["updates"], several["scale"]) == (alone["updates"], alone["scale"]), row


def _masks_differ(*everyone: Results) -> None:
    for name in everyone[0]["masks"]:
        drawn = [item for results in everyone for both in results["masks"][name] for item in both]
        assert len(set(drawn)) == len(drawn) > 1, (name, drawn)


def test_two_replicas_in_one_process(dataset: Path) -> None:
    (found,) = _processes(dataset, list(QUICK), 1, LOGICAL="1")
    alone, together = found["alone"], found["together"]
    for row in QUICK:
        _agree(row, alone[row], together[row], 1e-6)
    _parts_are_the_whole(alone)
    assert re.search("-1 .*-0.5", together["another Keras"])
    _masks_differ(together)
    first = {name: drawn[:1] for name, drawn in together["masks"].items()}
    assert alone["masks"] == first


@pytest.mark.slow
def test_the_whole_table_on_one_two_and_three_processes(dataset: Path) -> None:
    from tests.local import step_rows

    names = list(step_rows.ROWS)
    assert set(REFUSED) == {name for name, row in step_rows.ROWS.items() if not row.tolerance}
    (found,) = _processes(dataset, names, 1)
    alone = found["alone"]
    _parts_are_the_whole(alone)
    assert alone["EMA"]["numbers"][:2] == alone["plain"]["numbers"][:2]
    assert alone["EMA"]["numbers"][-1] != alone["plain"]["numbers"][-1]  # the averages are kept
    for size in (2, 3):
        everyone = [found["here"] for found in _processes(dataset, names, size)]
        for results in everyone:
            assert re.search(f"from 0 to -{size / 2:g} instead", results["another Keras"])
            for name, row in step_rows.ROWS.items():
                _agree(name, alone[name], results[name], row.tolerance)
        _masks_differ(*everyone)


def _parts_are_the_whole(alone: Results) -> None:
    """Micro-batches are a matter of memory, not of results."""
    whole, parts = (
        alone[row] for row in ("loss scaling, inf on one replica", "micro-batches, inf in one")
    )
    assert parts["numbers"] == pytest.approx(whole["numbers"], rel=1e-6)
    assert parts["scale"] == whole["scale"] < 2.0**12  # the gradient was infinite now and then
    assert parts["updates"] == whole["updates"] < 24


def test_three_normalizations_on_two_replicas_without_an_option(
    dataset: Path, tmp_path: Path
) -> None:
    _outputs("normalised_weights.py", [str(dataset), "three", str(tmp_path)], 1, LOGICAL="1")
    assert 0 < _change(tmp_path, "together") <= 1e-4


@pytest.mark.slow
def test_mobile_net_on_two_processes_without_an_option(tiles: Path, tmp_path: Path) -> None:
    """52 normalizations amplify rounding, so its measure is that of another order of the rows."""
    for size in (1, 2):
        _outputs("normalised_weights.py", [str(tiles), "mobile_net", str(tmp_path)], size)
    assert _change(tmp_path, "together") <= 3 * _change(tmp_path, "reversed")


def _change(folder: Path, name: str) -> float:
    """Return the largest difference of a weight from one replica's."""
    with np.load(folder / "alone.npz") as alone, np.load(folder / f"{name}.npz") as other:
        return max(float(np.abs(alone[it] - other[it]).max()) for it in alone)
