"""The home of local runs: disks that are full or read-only, and the copies of champions in it."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from kfp_tfjob.common.errors import DataError, Problem
from kfp_tfjob.components.step import Step
from kfp_tfjob.jobs.failure_record import Failure
from kfp_tfjob.pipelines.cli import main
from kfp_tfjob.pipelines.local import processes
from kfp_tfjob.pipelines.local.ending import Ending
from kfp_tfjob.pipelines.local.home import LEAST_FREE, Home
from kfp_tfjob.pipelines.local.output import PlainSteps, Relay
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import SUSPICIOUS, Layout
from kfp_tfjob.storage.store import Store
from tests.local.local_run import token_of
from tests.local.published import VERDICT, publish_files

Mount = Callable[..., Path]

NAME = "income"
MANY = 2 * LEAST_FREE  # bytes; enough to begin with


def fill(disk: Path) -> None:
    with open(disk / "fill", "wb", buffering=0) as file:
        try:
            while file.write(b"\0" * (1 << 16)):
                continue
        except OSError:
            return


def begin(home: Path) -> tuple[int, str]:
    """Return how a run with this home ends."""
    home_of = ("--home", str(home))
    result = CliRunner().invoke(main, ["run", *home_of, "--data", "x.csv", "--label", "y"])
    assert isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


def test_a_home_that_cannot_be_used_is_told(mount: Mount, tmp_path: Path) -> None:
    full = mount(MANY)
    fill(full)
    almost = mount(900 << 10)
    read_only = mount(MANY, "ro")
    file = tmp_path / "file"
    file.touch()
    for home, expected in (
        (full, "the disk of"),
        (full / "inside", "the disk of"),
        (almost, "expected: at least 32.0 MB"),
        (read_only / "home", "Read-only file system"),
        (file, "is a file"),
        (file / "home", "cannot be used"),
        (Path("/proc/home"), "cannot be used"),
    ):
        code, output = begin(home)
        assert code == 2 and expected.lower() in output.lower(), (home, code, output)
        assert "--home" in output


def test_a_run_whose_disk_fills_up_is_ended(mount: Mount, tmp_path: Path) -> None:
    disk = mount(MANY)
    home = disk / "home"
    data = tmp_path / "rows.csv"
    data.write_text("a,y\n" + "".join(f"{i},{i % 2}\n" for i in range(50)))
    options = ["--home", home, "--data", data, "--label", "y"]
    process = subprocess.Popen(
        [sys.executable, "-m", "kfp_tfjob.pipelines", "run", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    said = [process.stdout.readline()]
    assert said[0].startswith("run ")
    run_id = said[0].split()[1].rstrip(";")
    while not (home / "runs" / run_id / "parameters.json").exists():
        assert process.poll() is None
        time.sleep(0.01)
    fill(disk)
    said += process.stdout.readlines()
    text = "".join(said)
    assert process.wait() == 2, text
    assert "is full" in text and "Traceback" not in text
    assert f"kfp-tfjob run --home {home} --run-id {run_id}" in text
    assert processes.carriers(token_of(home)) == []


def test_a_log_that_cannot_be_kept_does_not_hold_up_the_pipeline(mount: Mount) -> None:
    disk = mount(1 << 20)
    fill(disk)
    script = "for i in range(50): print('x' * 10_000)"
    printing = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    relay = Relay(printing, disk / "pipeline.log", PlainSteps(print))
    relay.start()
    assert printing.wait(300) == 0
    relay.join()
    assert relay.is_full


def end(store: Store, output: S3Address, home: Home, run_id: str, model: bytes) -> list[str]:
    """Publish a model below an output_uri, end its run, and return what is said of it."""
    step = Step("finish", run_id, Layout(output), store)
    publish_files(store, step.layout, NAME, 1, {"saved_model.pb": model})
    verdict = VERDICT | {"metrics": {"accuracy": 0.9}}
    verdict["dataset_uri"] = str(step.layout.dataset("d"))
    store.write(step.run.verdict, json.dumps(verdict).encode())
    home.run(run_id).mkdir(parents=True)
    said: list[str] = []
    assert Ending(step, NAME, home, False, said.append).tell(0, 0) == 0
    return said


def test_what_is_published_is_done_although_its_copy_finds_no_room(
    mount: Mount, store: Store, base: S3Address
) -> None:
    home = Home(mount(1 << 20) / "home")
    store.write(Layout(base).dataset("d") / SUSPICIOUS, b"the label is predicted by 'id'")
    text = "\n".join(end(store, base, home, "r", os.urandom(2 << 20)))
    assert "           SUSPICIOUS: the label is predicted by 'id'\n" in text
    assert f"champion   {Layout(base).model(NAME).version(1)}\n" in text
    assert "2.1 MB" in text and " MB free" in text
    assert shutil.disk_usage(home.folder).free  # nothing half done takes its last room


def test_a_champion_of_another_run_names_that_run(
    store: Store, base: S3Address, tmp_path: Path
) -> None:
    line = "           of run r1, not of this run"
    for run_id, is_named in (("r", True), ("r1", False)):
        lines = end(store, base / run_id, Home(tmp_path / run_id), run_id, b"model")
        assert (line in lines) == is_named
        assert f"champion   {Layout(base / run_id).model(NAME).version(1)}" in lines


@pytest.mark.parametrize(
    ("fix", "option"),
    [
        ('name the format: data_options.types={"a": "category"}', "data_options.types=VALUE"),
        ("add it to data_options.a, or set data_options.b=drop", "data_options.b=drop"),
        ("data_options.a=0.5 is too much", "data_options.a=VALUE"),
    ],
)
def test_the_option_that_mends_a_failure_is_shown_as_it_is_typed(
    store: Store, base: S3Address, tmp_path: Path, fix: str, option: str
) -> None:
    home, said = Home(tmp_path / "home"), []
    folder = home.run("r")
    folder.mkdir(parents=True)
    problem = Problem("no number", fix=fix)
    failure = Failure.of("prepare_data", DataError(problem))
    (folder / "failure.json").write_bytes(failure.to_bytes())
    step = Step("finish", "r", Layout(base), store)
    assert Ending(step, NAME, home, False, said.append).tell(1, 0) == failure.code
    assert f"\nType --set '{option}' to set such an option." in said


def test_models_of_one_name_in_two_places_have_a_copy_each(
    store: Store, base: S3Address, tmp_path: Path
) -> None:
    copies = {}
    for project in ("mine", "yours"):
        said = end(store, base / project, Home(tmp_path), project, project.encode())
        (line,) = [it for it in said if it.startswith("model ")]
        copies[project] = Path(line.removeprefix("model").strip())
    for project, copy in copies.items():
        assert (copy / "model" / "saved_model.pb").read_bytes() == project.encode()


def test_the_documented_folder_is_that_of_the_embedded_store(tmp_path: Path) -> None:
    home, embedded = Home(tmp_path), S3Address("kfp-tfjob")
    assert home.models(NAME, "", embedded) == tmp_path / "models" / NAME
    others = [("", embedded / "b"), ("http://a", embedded), ("http://b", embedded)]
    folders = {home.models(NAME, *place) for place in others}
    assert len(folders) == 3 and tmp_path / "models" / NAME not in folders
