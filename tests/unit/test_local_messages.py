"""What a person is told by the command line, and the page a run leaves."""

import fcntl
import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from kfp_tfjob.options.parse import unknown_key
from kfp_tfjob.options.pipeline import PARAMETERS
from kfp_tfjob.pipelines.cli import main
from kfp_tfjob.pipelines.hints import with_hints
from kfp_tfjob.pipelines.local.page import write_page
from kfp_tfjob.storage.errors import ConfigurationError, Problem


@pytest.mark.parametrize(
    ("problem", "hint"),
    [
        (Problem("not valid", path="gate"), "gate=VALUE"),
        (Problem("not valid", path="pod.all.cpu"), "pod.all.cpu=VALUE"),
        (Problem("not valid", path="pod.all.volumes.0.path"), "'pod.all.volumes=[VALUE, ...]'"),
        (Problem("3 or 4", path="pod.all.cpu", suggestion="3"), "pod.all.cpu=3"),
        (unknown_key("train_options", "sed", ["seed", "command"]), "train_options.seed=VALUE"),
        (unknown_key("", "gat", PARAMETERS), "gate=VALUE"),
        (unknown_key("gate", "xyz", ["mode"]), None),
        (Problem("the bucket is gone", fix="make it"), None),
        (Problem("not yours to set", received="HOME", path="pod.all.env.HOME"), None),
        (Problem("train_epochs is not valid", fix="set train_epochs to 3"), None),
        (Problem("EPOCHS is not valid", path="EPOCHS"), None),
        ("a sentence", None),
    ],
)
def test_a_problem_with_a_parameter_ends_with_what_to_type(problem, hint):
    text = with_hints(ConfigurationError(problem))
    assert (re.findall(r"--set ('.+'|\S+?)\.?$", text) or [None]) == [hint]


def test_short_options_are_preferred():
    missing = Problem("data_uri is missing", fix="give data_uri", path="data_uri")
    hinted = with_hints(ConfigurationError(missing))
    assert hinted.endswith("Fix: give data_uri. Type --data VALUE.")
    code = Problem("model_code does not name a function", fix="add a colon", path="model_code")
    assert with_hints(ConfigurationError(code)).endswith(" Type --model VALUE.")
    many = Problem("too many", fix="have fewer", path="train_workers", suggestion="3")
    assert with_hints(ConfigurationError(many)).endswith(" Type --workers 3.")
    typing_error = unknown_key("", "train_worker", PARAMETERS)
    hinted = with_hints(ConfigurationError(typing_error))
    assert typing_error.suggestion == "train_workers"
    assert hinted.endswith("Type --workers VALUE.")


def test_the_page_links_what_is_there(tmp_path):
    (tmp_path / "report.html").write_text("x")
    page = write_page(tmp_path, "r<1>", "Not blessed: a & b", {"model": "s3://b/m", "nowhere": ""})
    text = page.read_text()
    assert re.findall(r"href=\"([^\"]+)\"", text) == ["report.html"]
    assert "r&lt;1&gt;" in text and "a &amp; b" in text and "s3://b/m" in text
    assert "nowhere" not in text


def test_a_name_that_a_model_of_other_data_has_is_told(tmp_path: Path) -> None:
    for folder, name, body in (
        ("models/clean/1", "verdict.json", {"run_id": "older"}),
        ("models/clean/2", "verdict.json", {"run_id": "r1"}),
        ("runs/r1", "parameters.json", {"data_uri": "clean.csv", "data_label": "y"}),
    ):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / name).write_text(json.dumps(body))
    note = "a model named clean already exists: version 2 was trained on clean.csv, label y"
    with open(tmp_path / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # so that no run begins
        for told, data, label, *rest in (
            (False, "clean.csv", "y"),
            (True, "clean.parquet", "y"),
            (True, "clean.csv", "other"),
            (False, "dirty.csv", "y"),
            (False, "clean.parquet", "y", "--name", "clean"),
            (False, "clean.parquet", "y", "--set", "model_name=clean"),
            (False, "clean.parquet", "y", "--output", "s3://kfp-tfjob/other"),
        ):
            given = ["--home", str(tmp_path), "--data", data, "--label", label, *rest]
            done = CliRunner().invoke(main, ["run", *given])
            assert done.exit_code == 2 and "another run" in done.output
            assert (note in done.output) == told, given
