"""The command line and the whole pipeline as processes: what it decides, and how it ends."""

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from examples import digits
from kfp_tfjob.pipelines.local import processes
from kfp_tfjob.pipelines.local.s3_server import Server
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import Layout, RunLayout
from kfp_tfjob.storage.run_folder import find
from tests.faults.proxy import Fault, FaultProxy, ignore_conditions
from tests.local.local_run import Run

# Enough epochs to be interrupted in, few enough to be quick.
SETTINGS = ("--set", "train_epochs=8", "--set", "train_options.checkpoint_seconds=0.2")


def is_server(process: psutil.Process) -> bool:
    return "kfp_tfjob.pipelines.local.s3_server" in process.cmdline()


def is_chief(process: psutil.Process) -> bool:
    task = json.loads(process.environ().get("TF_CONFIG", "{}")).get("task", {})
    return task.get("type") == "chief" and process.cmdline()[-2:] == ["-m", "kfp_tfjob.trainer"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "digits.csv"
    digits.write(path)
    return path


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("home")
    yield folder
    if (token := folder / "token").exists():
        processes.end(token.read_text(), 0)


def stored(home: Path, read: Callable[[Layout, object], object]) -> object:
    """Look into the store of a run that has ended."""
    with Server.start(home / "s3") as server:
        return read(Layout(S3Address("kfp-tfjob")), server.store())


def test_a_model_is_published_once_whatever_is_killed_meanwhile(home: Path, data: Path) -> None:
    common = ("--data", str(data), "--label", "digit", *SETTINGS)

    # The chief is killed in the middle: a second attempt resumes from the newest checkpoint.
    first = Run(home, *common)
    first.read_until("stored checkpoint")
    first.find(is_chief).kill()
    assert first.wait() == 0, first.text
    assert "attempt 2" in first.text
    assert "verdict    blessed:" in first.text
    assert "champion   s3://kfp-tfjob/models/digits/versions/1" in first.text
    # The store is stopped with the run: its model and reports are there for other programs.
    assert (home / "models/digits/1/model/saved_model.pb").exists()
    page = (home / "runs" / first.run_id / "index.html").read_text()
    summary = (home / "runs" / first.run_id / "summary.md").read_text()
    assert summary.startswith("# Published: `digits`, version 1")
    assert "attempt 1 preempted or lost" in summary and "attempt 2 succeeded" in summary
    for name in ("report.html", "training.html", "data.html", "parameters.md", "tfjob.html"):
        assert (home / "runs" / first.run_id / name).stat().st_size
        assert f'<a href="{name}">' in page
    assert "failure.md" not in page and str(home / "models/digits/1") in page
    accuracy = float(first.text.split("test       accuracy ")[1].split(",")[0])
    assert accuracy >= 0.9
    assert len(first.weights) == 1
    first.assert_nothing_left()

    # The S3 server is killed in the middle of the same training: it is started again, nothing is
    # lost, and the weights are the same as those of the training whose chief was killed.
    second = Run(home, *common)
    second.read_until("epoch ")
    second.find(is_server).kill()
    assert second.wait() == 0, second.text
    assert "the S3 server is gone; restarting it" in second.text
    assert second.weights == first.weights
    assert "not blessed" in second.text
    assert "same model as champion 1" in second.text
    # What it trained is not published, yet it is there for other programs too.
    output = home / "runs" / second.run_id / "output"
    assert (output / "model/saved_model.pb").exists() and list((output / "logs").iterdir())
    assert not (output / "checkpoints").exists()
    assert f"output     {output}" in second.text
    second.assert_nothing_left()


def test_interrupted_runs_leave_no_process_and_can_be_continued(home: Path, data: Path) -> None:
    common = ("--data", str(data), "--label", "digit", "--workers", "0", *SETTINGS)

    # Ctrl-C: the exit task runs, and says what happened.
    stopped = Run(home, *common)
    stopped.read_until("epoch ")
    stopped.signal(signal.SIGINT)
    assert stopped.wait() == 128 + signal.SIGINT
    stopped.assert_nothing_left()
    run = Layout(S3Address("kfp-tfjob")).run(stopped.run_id)
    failure = stored(home, lambda _, store: store.read(run.failure("md")))
    assert b"cancelled" in failure
    assert (home / "runs" / stopped.run_id / "failure.md").read_bytes() == failure
    assert f"to continue: kfp-tfjob run --home {home} --run-id {stopped.run_id}" in stopped.text

    # SIGKILL: only the watchdog is left to clean up.
    killed = Run(home, *common, "--set", "train_options.seed=7")
    killed.read_until("stored checkpoint")
    killed.signal(signal.SIGKILL)
    killed.wait()
    killed.assert_nothing_left()

    # The same run is continued to its end; against a champion, where this home has one.
    continued = Run(home, "--run-id", killed.run_id)
    assert continued.wait() == 0, continued.text
    reasons = continued.text.split("verdict")[1]
    assert "champion" in reasons and "same model" not in reasons
    continued.assert_nothing_left()


def test_no_file_of_a_run_keeps_what_looks_secret(tmp_path: Path, data: Path) -> None:
    secret = "hunter2-4711"
    settings = (f"pod.all.env.API_TOKEN={secret}", f"model_hyperparameters.password={secret}")
    arguments = [word for setting in settings for word in ("--set", setting)]
    (tmp_path / "secrets/hub").mkdir(parents=True)  # a person's own
    run = Run(tmp_path, "--data", str(data), "--label", "digi", *arguments)
    assert run.wait() in (2, 3), run.text
    assert secret not in run.text
    kept = [path for path in (tmp_path / "runs").rglob("*") if path.is_file()]
    assert "******" in (tmp_path / "runs" / run.run_id / "parameters.json").read_text()
    assert "******" in (tmp_path / "runs" / run.run_id / "pipeline.log").read_text()
    assert [path for path in kept if secret in path.read_text(errors="replace")] == []
    assert (tmp_path / "secrets/hub").is_dir()
    again = Run(tmp_path, "--run-id", run.run_id, "--label", "digit")
    assert again.wait() == 2
    for name in ("pod.all.env.API_TOKEN", "model_hyperparameters.password"):
        assert f"{name} was not saved when the run started" in again.text
        assert f"--set {name}=VALUE" in again.text


def test_a_folder_serves_one_run_at_a_time(tmp_path: Path, data: Path) -> None:
    import fcntl

    with open(tmp_path / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        second = Run(tmp_path, "--data", str(data), "--label", "digit")
        assert second.wait() == 2
    assert "a different run is using this folder" in second.text


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (("--label", "digit"), 2, ["data_uri is missing"]),
        (("--run-id", "nobody"), 2, ["there is no run with this id to continue"]),
        (("--set", "data_options={"), 2, ["data_options is not JSON"]),
        (
            ("--data", "DATA", "--label", "digit", "--workers", "-1", "--set", "pod.cheif.cpu=1"),
            2,
            ["2 problems", "--workers VALUE", "did you mean 'chief'?"],
        ),
        (
            ("--data", "DATA", "--label", "digit", "--set", "seed", "--set", "gat.mode=point"),
            2,
            ["--set has no value", "did you mean 'gate'?"],
        ),
    ],
)
def test_wrong_parameters_are_told_before_anything_starts(
    tmp_path: Path, data: Path, arguments: tuple[str, ...], code: int, expected: list[str]
) -> None:
    given = [str(data) if argument == "DATA" else argument for argument in arguments]
    refused = Run(tmp_path / "home", *given)
    assert refused.wait() == code
    for part in expected:
        assert part in refused.text
    assert not (tmp_path / "home").exists()


def test_what_preflight_finds_comes_at_once_and_publishes_nothing(
    tmp_path: Path, data: Path
) -> None:
    model = tmp_path / "model.py"
    model.write_text("def build_model(dataset, units=8):\n    return None\n")
    refused = Run(
        tmp_path / "home",
        *("--data", str(data), "--label", "digt", "--model", f"{model}:build_model"),
        *("--set", "model_hyperparameters.unit=3"),
    )
    assert refused.wait() == 2
    message = refused.text.rpartition("preflight failed")[2]
    assert "did you mean 'units'?" in message
    assert "'digt'" in message and "did you mean 'digit'?" in message
    refused.assert_nothing_left()
    run = Layout(S3Address("kfp-tfjob")).run(refused.run_id)
    left = stored(
        tmp_path / "home",
        lambda _, store: [item.address for item in store.list(S3Address("kfp-tfjob"))],
    )
    assert left == [run.failure("json"), run.failure("md")]

    # A wrong option does not change what the run continues with.
    kept = tmp_path / "home/runs" / refused.run_id / "parameters.json"
    before = kept.read_text()
    again = Run(tmp_path / "home", "--run-id", refused.run_id, "--label", "other")
    assert again.wait() != 0 and "'other'" in again.text
    assert kept.read_text() == before


def test_rows_that_do_not_parse_are_named(tmp_path: Path) -> None:
    path = tmp_path / "python3.11" / "rows.csv"  # a name kfp.local stumbles over by itself
    path.parent.mkdir()
    path.write_text("a,b,y\n" + "".join(f"{i},{i % 7},{i % 2}\n" for i in range(60)) + "1,oops,0\n")
    refused = Run(tmp_path / "home", "--data", str(path), "--label", "y")
    assert refused.wait() == 3
    message = refused.text.rpartition("prepare_data failed")[2]
    assert "rows.csv" in message and "62" in message and "'b'" in message and "oops" in message


def test_wrong_credentials_and_an_absent_endpoint_are_told_apart(
    tmp_path: Path, data: Path, s3: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The keys an earlier run had for the embedded store are for that store alone.
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "objstore-cred").symlink_to(s3.secret)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-a-key-of-this-store")
    for endpoint, expected in (
        (s3.endpoint, "the secret key does not belong to the access key"),
        ("http://127.0.0.1:1", "the store did not answer"),
    ):
        refused = Run(tmp_path, "--data", str(data), "--label", "digit", "--endpoint", endpoint)
        assert refused.wait() == 2
        assert expected in refused.text
        assert "not-a-key-of-this-store" not in refused.text


def test_a_store_that_overwrites_what_decides_is_refused(
    tmp_path: Path, data: Path, proxy: FaultProxy, base: S3Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", proxy.keys.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", proxy.keys.secret_key)
    proxy.faults = [Fault(ignore_conditions, times=float("inf"))]
    place = ("--endpoint", proxy.endpoint, "--output", str(base))
    refused = Run(tmp_path, "--data", str(data), "--label", "digit", *place)
    assert refused.wait() == 2
    assert "does not support conditional creates" in refused.text


@pytest.mark.slow
def test_three_ticks_of_which_one_brings_nothing_new(tmp_path: Path, data: Path) -> None:
    lines = data.read_text().splitlines(keepends=True)
    for day, rows in (("20", lines), ("21", lines), ("22", lines[:-200])):
        folder = tmp_path / "in" / f"2026-11-{day}"
        folder.mkdir(parents=True)
        (folder / "digits.csv").write_text("".join(rows))
    common = ("--data", f"{tmp_path}/in/{{date-1d}}", "--label", "digit", "--name", "digits")
    common += ("--workers", "0", "--set", "train_epochs=2")
    common += ("--set", "train_options.when_unchanged=skip")
    common += ("--output", "s3://kfp-tfjob/runs/{model_name}/{date}")
    first = Run(tmp_path / "home", *common, "--tick", "2026-11-21T03:00:00Z")
    assert first.wait() == 0, first.text
    assert "verdict    blessed:" in first.text
    second = Run(tmp_path / "home", *common, "--tick", "2026-11-22T03:00:00Z")
    assert second.wait() == 0, second.text
    assert f"Nothing has changed since run {first.run_id}" in second.text
    assert "launch_tfjob" not in second.text and "prepare_data" not in second.text
    page = (tmp_path / "home/runs" / second.run_id / "parameters.md").read_text()
    assert page.startswith("# Nothing has changed") and "2026-11-22T03:00:00Z" in page
    # A continued run keeps its tick, whenever that is.
    third = Run(tmp_path / "home", *common, "--tick", "2026-11-23T03:00:00Z")
    third.read_until("prepare_data")
    third.signal(signal.SIGTERM)
    assert third.wait() == 128 + signal.SIGTERM
    kept = ("--run-id", third.run_id)
    refused = Run(tmp_path / "home", *kept, "--tick", "2026-11-24T03:00:00Z")
    assert refused.wait() == 2 and "a run keeps its tick" in refused.text
    # Its data is new, so it trains: that is all there is to see, and the rest takes long.
    resumed = Run(tmp_path / "home", *kept)
    resumed.read_until("launch_tfjob")
    resumed.signal(signal.SIGTERM)
    assert resumed.wait() == 128 + signal.SIGTERM
    assert "Nothing has changed" not in resumed.text

    def places(layout: Layout, store: object) -> dict[str, RunLayout]:
        return {run.run_id: find(store, layout, run.run_id) for run in (first, second, third)}

    folders = stored(tmp_path / "home", places)
    days = {run_id: place.base.key.split("/")[2] for run_id, place in folders.items()}
    assert list(days.values()) == ["2026-11-21", "2026-11-22", "2026-11-23"]
