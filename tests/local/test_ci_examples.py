"""The commands of examples/ci, as a CI system runs them, with the APIs that they talk to."""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
import yaml

from kfp_tfjob.common.errors import ConfigurationError, Problem
from kfp_tfjob.jobs.failure_record import Failure
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.store import Store
from tests.http_server import Handler, serving
from tests.local.fake_pipelines import FakePipelines

pytestmark = pytest.mark.slow
CI = Path(__file__).parents[2] / "examples" / "ci"
WRONG = Problem("a label is missing", fix="fill it in")


class Comments(Handler):
    """An API that takes comments on commits: path, token and body of each request."""

    def do_POST(self) -> None:
        token = self.headers["Authorization"] or self.headers["PRIVATE-TOKEN"]
        self.server.found.append((self.path, token, self.body().decode()))
        self.answer({}, 201)


@pytest.fixture
def comments() -> Iterator[Any]:
    with serving(Comments, found=[]) as server:
        yield server


@pytest.fixture
def project(
    ci_job: None, fake: FakePipelines, store: Store, base: S3Address, tmp_path: Path
) -> Path:
    """The checkout of a team, in the environment of a CI job; its runs fail in prepare_data."""
    store.write(base / "rows.csv", b"a,y\n1,0\n2,1\n")
    parameters = {"data_uri": f"{base}/rows.csv", "data_label": "y", "model_name": "m"}
    parameters |= {"output_uri": str(base), "train_image": "registry.example/trainer:1"}
    (tmp_path / "train.yaml").write_text(yaml.safe_dump(parameters))

    def fail(*_: object) -> None:
        for run in fake.runs.values():
            failed = Layout(base).run(run.run_id).failure("json")
            store.write(failed, Failure.of("prepare_data", ConfigurationError(WRONG)).to_bytes())
            run.state = "FAILED"

    fake.broken = fail
    return tmp_path


def bash(script: str, folder: Path, **environment: str) -> int:
    """Run a script as the runners of GitHub and GitLab do; return its exit code."""
    command = ["bash", "-eo", "pipefail", "-c", script]
    done = subprocess.run(command, cwd=folder, env=os.environ | environment, timeout=120)
    return done.returncode


def test_github(project: Path, fake: FakePipelines, comments: Any) -> None:
    job = yaml.safe_load((CI / "github.yaml").read_text())["jobs"]["train"]
    steps = {it["name"]: it["run"] for it in job["steps"] if "run" in it}
    name = re.sub(r"\$\{\{ github.(\w+) \}\}", r"\1", job["env"]["RUN_NAME"])
    given = {"RUN_NAME": name, "GITHUB_TOKEN": "t", "GITHUB_API_URL": comments.url}
    given |= {"GITHUB_REPOSITORY": "me/it", "GITHUB_SHA": "abc"}
    assert bash(steps["Check"], project, **given) == 0
    assert not fake.runs
    assert bash(steps["Train"], project, **given) == ConfigurationError.code
    assert [run.display_name for run in fake.runs.values()] == [name]
    assert bash(steps["Say why"], project, **given) == 0
    ((path, token, body),) = comments.found
    assert (path, token) == ("/repos/me/it/commits/abc/comments", "Bearer t")
    assert WRONG.what in json.loads(body)["body"] and WRONG.fix in json.loads(body)["body"]


def test_gitlab(project: Path, fake: FakePipelines, comments: Any) -> None:
    found = yaml.safe_load((CI / "gitlab.yaml").read_text())
    given = {"CI_COMMIT_SHA": "abc", "CI_JOB_ID": "7", "CI_PROJECT_ID": "1", "GITLAB_TOKEN": "t"}
    given |= {"CI_API_V4_URL": comments.url, "CI_JOB_STATUS": "failed"}
    given["RUN_NAME"] = found["variables"]["RUN_NAME"].replace("$CI_COMMIT_SHA-$CI_JOB_ID", "abc-7")
    for line in found["check"]["script"]:
        assert bash(line, project, **given) == 0
    assert not fake.runs
    (train,), (why,) = (found["train"][key] for key in ("script", "after_script"))
    assert bash(train, project, **given) == ConfigurationError.code
    assert bash(why, project, **given) == 0
    assert [run.display_name for run in fake.runs.values()] == ["train-abc-7"]
    ((path, token, body),) = comments.found
    assert (path, token) == ("/projects/1/repository/commits/abc/comments", "t")
    (note,) = parse_qs(body)["note"]
    assert WRONG.what in note and WRONG.fix in note
