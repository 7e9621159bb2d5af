"""`kfp-tfjob run` as a process: what it refuses, what it says, and what it leaves behind."""

import os
import signal
from pathlib import Path

import pytest
from click.testing import CliRunner

from kfp_tfjob.pipelines.cli import main
from kfp_tfjob.pipelines.local.s3_server import Server
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import Layout
from tests.local.local_run import Run, stored


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
    assert (home / "secrets/hub").is_dir()
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


def test_a_folder_serves_one_run_at_a_time(tmp_path: Path, digits_csv: Path) -> None:
    import fcntl

    with open(tmp_path / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        second = Run(tmp_path, "--data", str(digits_csv), "--label", "digit")
        assert second.wait() == 2
    assert str(tmp_path) in second.text
