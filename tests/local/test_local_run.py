"""The whole pipeline as processes: what it publishes, refuses and leaves, whatever is killed."""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner

from kfp_tfjob.pipelines.cli import main
from kfp_tfjob.pipelines.local.s3_server import Server
from kfp_tfjob.registry.run_folder import find
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import Layout, RunLayout
from tests.local.local_run import Run, end_run, stored

# Enough epochs to be interrupted in, few enough to be quick.
SETTINGS = ("--set", "train_epochs=8", "--set", "train_options.checkpoint_seconds=0.2")


def is_server(process: psutil.Process) -> bool:
    return "kfp_tfjob.pipelines.local.s3_server" in process.cmdline()


def is_chief(process: psutil.Process) -> bool:
    """Tell whether it is the supervisor of the chief, or the trainer; there are no workers."""
    return process.cmdline()[-2:] == ["-m", "kfp_tfjob.trainer"]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    end_run(tmp_path)


def words(csv: Path) -> tuple[str, ...]:
    return ("--data", str(csv), "--label", "digit", "--workers", "0", *SETTINGS)


def test_a_killed_run_leaves_no_process_and_ctrl_c_ends_what_continues_it(
    home: Path, digits_csv: Path
) -> None:
    # SIGKILL: only the watchdog is left to clean up.
    killed = Run(home, *words(digits_csv))
    killed.read_until("launch_tfjob")
    killed.signal(signal.SIGKILL)
    killed.wait()
    killed.assert_nothing_left()

    # The run is continued, until Ctrl-C: the exit task runs, and says what happened.
    stopped = Run(home, "--run-id", killed.run_id)
    stopped.read_until("loading TensorFlow")
    stopped.signal(signal.SIGINT)
    assert stopped.wait() == 128 + signal.SIGINT
    stopped.assert_nothing_left()
    run = Layout(S3Address("kfp-tfjob")).run(killed.run_id)
    failure = stored(home, lambda _, store: store.read(run.failure("md")))
    assert b"cancelled" in failure
    assert (home / "runs" / killed.run_id / "failure.md").read_bytes() == failure
    assert f"kfp-tfjob run --home {home} --run-id {killed.run_id}" in stopped.text


@pytest.mark.slow
def test_a_run_whose_output_nobody_reads_prints_no_more_and_keeps_its_exit_code() -> None:
    code = (
        "import sys, click; from kfp_tfjob.pipelines.local.run import _while_read;"
        "show = _while_read(click.echo); show('first'); sys.stdin.read();"
        "[show('x' * 100_000) for _ in range(9)]; sys.exit(7)"
    )
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe, stderr=pipe)
    assert process.stdin and process.stdout and process.stderr
    assert process.stdout.readline() == b"first\n"
    process.stdout.close()
    process.stdin.close()
    assert (process.wait(60), process.stderr.read()) == (7, b"")


def test_killed_runs_end_with_the_same_model(home: Path, digits_csv: Path) -> None:
    # The chief is killed in the middle: a second attempt resumes from the newest checkpoint. Then
    # the S3 server is killed: it is started again, and nothing is lost.
    first = Run(home, *words(digits_csv))
    first.read_until("stored checkpoint")
    first.find(is_chief).kill()
    first.read_until("attempt 2")
    first.read_until("training ")
    first.find(is_server).kill()
    assert first.wait() == 0, first.text
    assert "S3 server" in first.text
    assert "verdict    blessed:" in first.text
    assert "champion   s3://kfp-tfjob/models/digits/versions/1" in first.text
    summary = (home / "runs" / first.run_id / "summary.md").read_text()
    assert "attempt 1 preempted" in summary and "attempt 2 succeeded" in summary
    accuracy = float(first.text.split("test       accuracy ")[1].split(",")[0])
    assert accuracy >= 0.9
    assert len(first.weights) == 1
    first.assert_nothing_left()

    killed = Run(home, *words(digits_csv))
    killed.read_until("stored checkpoint")
    killed.signal(signal.SIGKILL)
    killed.wait()
    killed.assert_nothing_left()

    # It is continued to its end: the weights are those of the run that the other kills disturbed.
    continued = Run(home, "--run-id", killed.run_id)
    assert continued.wait() == 0, continued.text
    assert continued.weights == first.weights
    assert "not blessed" in continued.text
    assert "champion 1" in continued.text
    # What it trained is not published, yet it is there for other programs too.
    output = home / "runs" / continued.run_id / "output"
    assert (output / "model/saved_model.pb").exists() and list((output / "logs").iterdir())
    assert not (output / "checkpoints").exists()
    assert f"output     {output}" in continued.text
    continued.assert_nothing_left()


@pytest.mark.slow
def test_a_second_tick_brings_nothing_new(tmp_path: Path, digits_csv: Path) -> None:
    for day in ("20", "21"):
        folder = tmp_path / "in" / f"2026-11-{day}"
        folder.mkdir(parents=True)
        shutil.copy(digits_csv, folder / "digits.csv")
    common = ("--data", f"{tmp_path}/in/{{date-1d}}", "--label", "digit", "--name", "digits")
    common += ("--workers", "0", "--set", "train_epochs=2")
    common += ("--set", "train_options.when_unchanged=skip")
    common += ("--output", "s3://kfp-tfjob/runs/{model_name}/{date}")
    first = Run(tmp_path / "home", *common, "--tick", "2026-11-21T03:00:00Z")
    assert first.wait() == 0, first.text
    assert "verdict    blessed:" in first.text
    second = Run(tmp_path / "home", *common, "--tick", "2026-11-22T03:00:00Z")
    assert second.wait() == 0, second.text
    assert f"since run {first.run_id}" in second.text
    assert "launch_tfjob" not in second.text and "prepare_data" not in second.text
    # A continued run keeps its tick, whenever that is.
    kept = ("--run-id", second.run_id)
    refused = Run(tmp_path / "home", *kept, "--tick", "2026-11-24T03:00:00Z")
    assert refused.wait() == 2 and " tick" in refused.text
    assert Run(tmp_path / "home", *kept).wait() == 0
    page = (tmp_path / "home/runs" / second.run_id / "parameters.md").read_text()
    assert page.startswith("# Nothing") and "2026-11-22T03:00:00Z" in page

    def places(layout: Layout, store: object) -> dict[str, RunLayout]:
        return {run.run_id: find(store, layout, run.run_id) for run in (first, second)}

    folders = stored(tmp_path / "home", places)
    days = {run_id: place.base.key.split("/")[2] for run_id, place in folders.items()}
    assert list(days.values()) == ["2026-11-21", "2026-11-22"]


def test_what_preflight_finds_comes_at_once_and_leaves_no_secret(
    tmp_path: Path, digits_csv: Path, s3: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, secret = tmp_path / "home", "hunter2-4711"
    model = tmp_path / "model.py"
    model.write_text("def build_model(dataset, units=8):\n    return None\n")
    names = ("pod.all.env.API_TOKEN", "model_hyperparameters.password")
    secrets = [word for name in names for word in ("--set", f"{name}={secret}")]
    wrong = ("--label", "digt", "--set", "model_hyperparameters.unit=3")
    (home / "secrets/hub").mkdir(parents=True)  # a person's own
    (home / "secrets/linked").symlink_to(tmp_path)
    given = ("--data", str(digits_csv), "--model", f"{model}:build_model", *wrong, *secrets)
    given += ("--output", "s3://mine")
    refused = Run(home, *given, nohup=True)
    refused.read_until("run ")
    refused.signal(signal.SIGHUP)  # the user logs out
    assert refused.wait() == 2, refused.text
    message = refused.text.rpartition("preflight failed")[2]
    assert "s3://mine" in refused.lines[-1]
    assert "'units'?" in message
    assert "'digt'" in message and "'digit'?" in message
    refused.assert_nothing_left()
    mine = S3Address("mine")
    run = Layout(mine).run(refused.run_id)
    left = stored(home, lambda _, store: [item.address for item in store.list(mine)])
    assert left == [run.failure("json"), run.failure("md")]

    folder = home / "runs" / refused.run_id
    kept = folder / "parameters.json"
    files = [path for path in (home / "runs").rglob("*") if path.is_file()]
    assert secret not in refused.text and "******" in kept.read_text()
    assert "******" in (folder / "pipeline.log").read_text()
    assert [path for path in files if secret in path.read_text(errors="replace")] == []
    assert (home / "secrets/hub").is_dir() and (home / "secrets/linked").is_symlink()
    without = CliRunner().invoke(
        main, ["run", "--home", str(home), "--run-id", refused.run_id, "--label", "digit"]
    )
    assert without.exit_code == 2
    for name in names:
        assert f"--set {name}=VALUE" in without.output

    # A wrong option does not change what the run continues with, and the keys of the embedded
    # store are for it alone.
    before = kept.read_text()
    os.link(kept, tmp_path / "as_it_was")
    keys = home / "secrets" / "objstore-cred"
    keys.unlink(missing_ok=True)
    keys.symlink_to(s3.secret)  # of an earlier run
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-a-key-of-this-store")
    words = ("--label", "digit", "--endpoint", s3.endpoint)
    again = Run(home, "--run-id", refused.run_id, *words, *secrets)
    assert again.wait() == 2
    assert "access key" in again.text and "not-a-key-of-this-store" not in again.text
    assert kept.read_text() == before
    assert not kept.samefile(tmp_path / "as_it_was")  # replaced whole, never rewritten in place
    stopped = Run(home, "--run-id", refused.run_id, "--label", "digit", "--epochs", "3", *secrets)
    stopped.read_until("run ")
    stopped.signal(signal.SIGINT)  # before preflight has accepted the new parameters
    assert stopped.wait() == 128 + signal.SIGINT
    assert kept.read_text() == before


def test_a_folder_serves_one_run_at_a_time(tmp_path: Path, digits_csv: Path) -> None:
    with open(tmp_path / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        second = Run(tmp_path, "--data", str(digits_csv), "--label", "digit")
        assert second.wait() == 2
    assert str(tmp_path) in second.text
