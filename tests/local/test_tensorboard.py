"""`kfp-tfjob tensorboard`: the curves of a run straight from S3, or a sentence about why not."""

import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from kfp_tfjob.pipelines.local.s3_server import Server
from kfp_tfjob.registry.run_folder import claim
from kfp_tfjob.registry.runs import runs_of
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.credentials import MOUNT_VARIABLE, SecretVolume
from kfp_tfjob.storage.layout import Layout, RunLayout
from kfp_tfjob.storage.store import Store
from tests.local.laptop import kfp_tfjob
from tests.local.published import NAME, VERDICT, publish

SECONDS = 300  # for TensorBoard to read the logs, on a busy machine


def event_file(folder: Path, *values: float) -> bytes:
    """Return what TensorFlow writes for a scalar, one value a step."""
    with tf.summary.create_file_writer(str(folder)).as_default():
        for step, value in enumerate(values):
            tf.summary.scalar("loss", value, step)
    (path,) = folder.iterdir()
    return path.read_bytes()


@contextmanager
def tensorboard(said: Path, *arguments: object, **environment: str) -> Iterator:
    """Run the command as a person does, with nothing but AWS in the environment."""
    known = {name: value for name, value in os.environ.items() if name != MOUNT_VARIABLE}
    with open(said, "wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "kfp_tfjob.pipelines", "tensorboard", *map(str, arguments)],
            env=known | environment,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(SECONDS)


def keys(s3: Server) -> dict[str, str]:
    secret = SecretVolume(s3.secret)
    return {name: secret.get(name) for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}


def test_it_shows_the_curves_of_a_run(store: Store, base: S3Address, s3: Server, tmp_path: Path):
    run = RunLayout(base / "runs/r1")
    data = event_file(tmp_path / "events", 0.5, 0.25)
    store.write(run.logs / "train" / "events.out.tfevents.1.host.1.0.v2", data)
    said = tmp_path / "said"
    arguments = ("--endpoint", s3.endpoint, "--port", "0")
    with tensorboard(said, run.base, *arguments, **keys(s3)) as process:
        (scalars,) = wait_for_scalars(process, said, "train")
    assert [value for _, _, value in scalars] == [0.5, 0.25]
    assert f"TensorBoard shows {run.logs} at http://" in said.read_text()


def test_it_shows_the_runs_of_a_model_side_by_side(
    store: Store, base: S3Address, s3: Server, tmp_path: Path
):
    layout = Layout.parse(f"{base}/runs/{{model_name}}/{{date}}")
    publish(store, layout, "r1")
    runs = {
        "r1": layout.run("r1"),
        "r2": claim(store, layout, "r2", f"{NAME}/2026-11-26"),
        "of-another-model": layout.run("of-another-model"),
        "with-a-task": layout.run("with-a-task").task("eu"),
    }
    for number, (run_id, run) in enumerate(runs.items()):
        name = "m" if run_id == "of-another-model" else NAME
        if run_id == "with-a-task":
            time.sleep(1.1)  # the times of S3 are whole seconds
        store.write(run.verdict, json.dumps(VERDICT | {"model_name": name}).encode())
        data = event_file(tmp_path / run_id, float(number))
        store.write(run.logs / "train" / "events.out.tfevents.1.host.1.0.v2", data)
    store.write(layout.folder_record("damaged"), b"{")
    assert {it.name for it in runs_of(store, layout, NAME)} == {"v1-r1", "r2", "with-a-task-eu"}
    said = tmp_path / "said"
    arguments = ("--model", NAME, "--output", base, "--endpoint", s3.endpoint, "--port", "0")
    with tensorboard(said, *arguments, **keys(s3)) as process:
        shown = ("v1-r1/train", "r2/train", "with-a-task-eu/train")
        scalars = wait_for_scalars(process, said, *shown)
    assert [value for ((_, _, value),) in scalars] == [0.0, 1.0, 3.0]
    newest = runs_of(store, layout, NAME)[0]
    assert (newest.name, newest.run) == ("with-a-task-eu", runs["with-a-task"])


def wait_for_scalars(
    process: subprocess.Popen, said: Path, *runs: str
) -> list[list[tuple[float, int, float]]]:
    """Return the loss of each run as (time, step, value), once TensorBoard shows all of them."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        if port := re.search(r"at http://[^ ]*:(\d+)/", said.read_text()):
            place = f"http://127.0.0.1:{port[1]}/data/plugin/scalars"
            tags = read_json(f"{place}/tags")
            if all("loss" in tags.get(run, {}) for run in runs):
                assert len(tags) == len(runs)
                return [read_json(f"{place}/scalars?run={run}&tag=loss") for run in runs]
        time.sleep(0.1)
    raise AssertionError(said.read_text())


def read_json(url: str) -> Any:
    with urllib.request.urlopen(url) as reply:
        return json.load(reply)


def test_what_cannot_be_shown_is_said(store: Store, base: S3Address, s3: Server):
    def refused(code: int, words: str, *arguments: object) -> None:
        done = kfp_tfjob("tensorboard", *arguments, "--endpoint", s3.endpoint)
        assert done.exit_code == code and words in done.output

    run = RunLayout(base / "runs/r1")
    refused(3, f"no run {run.base}", run.base)
    store.write(run.attempts / "0001.json", b"{}")
    refused(3, "no logs", run.base)
    for wrong in (run.logs, base):
        refused(2, "RUN is not", wrong)
    for both_or_none in ((), (run.base, "--model", NAME)):
        refused(2, "", *both_or_none)
    refused(3, f"model {NAME}", "--model", NAME, "--output", base)
    refused(2, "bucket there-is-none", "s3://there-is-none/runs/r1")


def test_the_folder_of_local_runs_is_named_by_home(tmp_path: Path):
    for what in (["--model", NAME], ["s3://kfp-tfjob/runs/r1"]):
        done = kfp_tfjob("tensorboard", *what, "--home", tmp_path)
        assert done.exit_code == 2 and str(tmp_path) in done.output


def test_missing_and_wrong_keys_are_said(
    base: S3Address, s3: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", MOUNT_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    command = ("tensorboard", base / "runs/r1", "--endpoint", s3.endpoint)
    done = kfp_tfjob(*command)
    assert done.exit_code == 2 and "no credentials" in done.output
    for name, value in (keys(s3) | {"AWS_SECRET_ACCESS_KEY": "wrong"}).items():
        monkeypatch.setenv(name, value)
    done = kfp_tfjob(*command)
    assert done.exit_code == 2 and "secret key" in done.output
    assert "wrong" not in done.output.replace("wrong key", "")
