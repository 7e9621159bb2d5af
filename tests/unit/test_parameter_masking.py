"""No page, message or file of ours repeats what looks like a secret."""

import json
import os
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from kfp_tfjob.cluster.backend import BACKEND_VARIABLE
from kfp_tfjob.common.errors import ConfigurationError
from kfp_tfjob.components.finish.engine import run_as_exit_task
from kfp_tfjob.components.preflight.parameters import defaults, table
from kfp_tfjob.components.preflight.plan import RunPlan, job_spec
from kfp_tfjob.jobs import log_masking
from kfp_tfjob.jobs.attempt_record import AttemptEnd
from kfp_tfjob.jobs.log_masking import Mask
from kfp_tfjob.options.parameter_masking import (
    MASK,
    looks_secret,
    masked,
    masked_job,
    secrets_in,
    secrets_in_job,
    still_masked,
)
from kfp_tfjob.options.parse import parse
from kfp_tfjob.options.pod import PodOptions
from kfp_tfjob.pipelines.cli import main
from kfp_tfjob.registry import mirror
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.credentials import SecretVolume
from kfp_tfjob.storage.store import Store, check_endpoint
from tests.problems import problem_of
from tests.unit.cluster_objects import manifest
from tests.unit.launch_parameters import DEFAULTS

SECRET = "hunter2-4711"
GOOD = {"data_uri": "s3://b/x.csv", "data_label": "y", "model_name": "m", "output_uri": "s3://b"}
REFERENCE = {"secret": "hub", "key": "token"}
JOB = DEFAULTS | {
    "model_hyperparameters": {"api_key": SECRET},
    "pod": {"all": {"env": {"API_TOKEN": SECRET, "HUB_TOKEN": REFERENCE, "LEVEL": 1}}},
}


@pytest.mark.parametrize(
    "name",
    ["API_TOKEN", "apiToken", "hub-token", "password", "DB_PASSWORD", "dbPasswd", "client_secret"]
    + ["AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID", "api_key", "apiKey", "SSH_PRIVATE_KEY"]
    + ["apikey", "credentials", "WANDB_API_KEY", "auth", "passphrase", "db.pwd"]
    + ["PGPASSWORD", "KAGGLE_KEY", "SENTRY_DSN", "SLACK_WEBHOOK_URL"]
    + ["AZURE_STORAGE_CONNECTION_STRING", "DB_PASS", "GCP_CREDS", "API_KEYS", "HUB_TOKENS"],
)
def test_a_name_that_looks_secret(name: str) -> None:
    assert looks_secret(name, SECRET)


@pytest.mark.parametrize(
    "name",
    ["units", "key", "key_dim", "num_keys", "tokens", "tokenizer", "keyboard", "monitor", "passes"]
    + ["NCCL_DEBUG", "image_pull_secret", "secret_name", "storage_secret", "primary_key"]
    + ["secretary", "author"],
)
def test_a_name_that_does_not(name: str) -> None:
    assert not looks_secret(name, "text")


def test_numbers_are_hidden_where_the_name_leaves_no_doubt() -> None:
    given = {"token_dim": 64, "pad_token": 0, "password": 4711, "use_secret": True, "token": ""}
    assert masked(given) == given | {"password": MASK}


def test_a_reference_is_a_secret_only_where_it_is_none_of_env() -> None:
    pod = JOB["pod"]
    hidden = {"all": {"env": pod["all"]["env"] | {"API_TOKEN": MASK}}}
    assert masked(pod) == hidden
    assert masked({"db": [{"token": REFERENCE}, {"secret": SECRET, "key": "x"}]}) == {
        "db": [{"token": MASK}, {"secret": MASK, "key": "x"}]
    }
    assert set(secrets_in(pod)) == {SECRET}
    assert set(secrets_in({"credentials": {"user": "me", "password": SECRET}})) == {"me", SECRET}
    assert list(still_masked(hidden, "pod")) == ["pod.all.env.API_TOKEN"]


def test_the_page_with_the_parameters_hides_them() -> None:
    pod = {"all": {"env": {"API_TOKEN": SECRET, "HUB_TOKEN": REFERENCE}, "image_pull_secret": "r"}}
    given = {"model_hyperparameters": {"db": {"password": SECRET}}, "pod": pod}
    values = defaults() | GOOD | given
    page = table(values, job_spec(values))
    assert SECRET not in page and page.count(MASK) == 2
    assert '"HUB_TOKEN": {"key": "token", "secret": "hub"}' in page
    assert '"image_pull_secret": "r"' in page and "`objstore-cred`" in page


def test_a_rendered_job_hides_them() -> None:
    arguments = ["render", "--data", "s3://b/x.csv", "--label", "y"]
    settings = [f"pod.all.env.API_TOKEN={SECRET}", f"model_hyperparameters.api_key={SECRET}"]
    settings += [f"pod.all.env.HUB_TOKEN={json.dumps(REFERENCE)}", "pod.all.env.A_PLACE=$(HOME)"]
    for setting in settings:
        arguments += ["--set", setting]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    assert SECRET not in done.output
    roles = yaml.safe_load(done.output)["spec"]["tfReplicaSpecs"]
    (container,) = roles["Chief"]["template"]["spec"]["containers"]
    env = {item["name"]: item for item in container["env"]}
    assert env["API_TOKEN"]["value"] == MASK and env["A_PLACE"]["value"] == "$(HOME)"
    assert json.loads(env["HYPERPARAMETERS"]["value"]) == {"api_key": MASK}
    assert set(secrets_in_job([manifest(JOB), {"labels": {"api_key": "chief"}}])) == {SECRET}
    # It must exist: without it the program would start and fail later.
    assert env["HUB_TOKEN"]["valueFrom"] == {"secretKeyRef": {"name": "hub", "key": "token"}}
    assert env["STORAGE_SECRET_DIR"]["value"] == "/etc/kfp-tfjob/storage"


@pytest.mark.parametrize(
    "value",
    [
        [SECRET],
        {"secret": "hub"},
        {"secret": "hub", "key": SECRET, "more": 1},
        {"secret": "Not A Name", "key": SECRET},
        {"secret": "hub", "key": 4711},
    ],
)
def test_what_is_neither_text_nor_reference_is_refused_without_its_value(value: object) -> None:
    problem = problem_of(parse, PodOptions, "pod", {"all": {"env": {"API_TOKEN": value}}})
    assert problem.path == "pod.all.env.API_TOKEN"
    assert '{"secret": "NAME", "key": "KEY"}' in problem.expected
    assert "4711" not in str(problem)


ENDPOINTS = [f"http://me:{SECRET}@host:9000", f"https://{SECRET}@host", f"me:{SECRET}@host"]
ENDPOINTS += [f"http://me:pa/{SECRET}@host", f"http://a@b:{SECRET}@host", f"//me:{SECRET}@host"]
ENDPOINTS += [f"http://host:9000/?token={SECRET}", f"http://me:{SECRET}@host?token={SECRET}"]


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_an_endpoint_with_a_password_is_refused_without_repeating_it(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for refuse in (
        lambda: check_endpoint(endpoint),
        lambda: Store(endpoint),
        lambda: RunPlan.parse(defaults() | GOOD | {"storage_endpoint": endpoint}),
    ):
        with pytest.raises(ConfigurationError, match="contains a ") as refused:
            refuse()
        assert SECRET not in str(refused.value)
    for command in (
        ["run", "--endpoint", endpoint],
        ["render", "--set", f"storage_endpoint={endpoint}"],
        ["tensorboard", "s3://bucket/runs/r", "--endpoint", endpoint],
    ):
        data = [] if command[0] == "tensorboard" else ["--data", "s3://b/x.csv", "--label", "y"]
        done = CliRunner().invoke(main, [*command, *data])
        assert done.exit_code == 2 and "contains a " in done.output
        assert SECRET not in done.output
    monkeypatch.setenv(BACKEND_VARIABLE, "local")
    assert SECRET not in run_as_exit_task("r", "s3://b", endpoint, "", "m")


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
def test_an_endpoint_of_the_environment_has_no_password_either(variable: str, monkeypatch) -> None:
    monkeypatch.setenv(variable, f"http://me:{SECRET}@127.0.0.1:9")
    with pytest.raises(ConfigurationError, match="user") as refused:
        Store()
    assert SECRET not in str(refused.value)


def test_an_address_and_a_back_end_with_a_password_are_refused_without_it(monkeypatch) -> None:
    with pytest.raises(ConfigurationError) as refused:
        S3Address.parse(f"s3://AKIA:{SECRET}@bucket/x", "output_uri")
    assert SECRET not in str(refused.value) and "s3://******@bucket/x" in str(refused.value)
    done = CliRunner().invoke(main, ["runs", "--host", f"http://me:{SECRET}@127.0.0.1:9"])
    assert done.exit_code == 2 and " user" in done.output
    assert SECRET not in done.output


def test_a_password_in_a_url_is_hidden_whatever_its_name() -> None:
    url = f"postgres://me:{SECRET}@db/x"
    given = {"all": {"env": {"DATABASE_URL": url}}, "mirrors": [url]}
    assert masked(given) == {"all": {"env": {"DATABASE_URL": MASK}}, "mirrors": [MASK]}
    assert list(secrets_in(given)) == [url, url]
    assert masked_job({"name": "DATABASE_URL", "value": url})["value"] == MASK
    with_token = "https://github_pat_4711abcdef@github.com/x"
    assert masked({"index": with_token}) == {"index": MASK}
    for public in (
        "s3://bucket/a:b@c",
        "https://$(GITHUB_TOKEN_OF_US)@github.com",
        "postgres://me:$(DB_PASSWORD)@db/x",
        "http://me@host:80/",
    ):
        assert masked({"place": public}) == {"place": public}


@pytest.mark.parametrize(
    ("name", "value", "secret"),
    [
        ("AWS_SECRET_ACCESS_KEY", "/abcdefgh12345", True),  # one key in 64 begins with it
        ("GOOGLE_APPLICATION_CREDENTIALS", "/var/run/key.json", False),
        ("HUB_TOKEN_FILE", "/var/run/token", False),
        ("tokenPath", "/var/run/token", False),
    ],
)
def test_a_place_is_told_from_a_secret_by_its_name(name: str, value: str, secret: bool) -> None:
    assert (masked({name: value}) != {name: value}) is secret
    variable = {"name": name, "value": value}
    assert (masked_job(variable) != variable) is secret
    assert list(secrets_in_job(variable)) == [value] * secret


def test_a_secret_is_blotted_out(tmp_path, monkeypatch):
    monkeypatch.setenv("STORAGE_SECRET_DIR", str(tmp_path))
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token/of+this=process")
    (tmp_path / "AWS_SECRET_ACCESS_KEY").write_text("the-secret-key\n")
    mask = Mask()
    assert mask("x=the-secret-key; token/of+this=process") == f"x={MASK}; {MASK}"
    assert mask("nothing") == "nothing"


def test_a_secret_within_another_leaves_no_rest_and_each_line_of_a_key_is_one(monkeypatch) -> None:
    monkeypatch.setattr(log_masking, "_hidden", set())
    log_masking.hide(["abcdef", "abcdef-0123456789", "-----BEGIN KEY-----\nMIIEow\nx\n", "a"])
    mask = Mask()
    assert mask("is abcdef-0123456789 or abcdef") == f"is {MASK} or {MASK}"
    assert mask("MIIEow") == mask("-----BEGIN KEY-----") == MASK
    assert mask("a box") == "a box"


def test_a_short_name_of_a_mirrors_user_leaves_its_message_readable(monkeypatch, tmp_path) -> None:
    missing = "No module named 'mlflow'"
    (tmp_path / "mlflow.py").write_text(f'raise ModuleNotFoundError("{missing}")\n')
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "l")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "mlflow")
    content = mirror.MirrorContent(model="m", champion=1, versions=[])
    (mlflow, _), secret = mirror.MIRRORS, SecretVolume(Path("none"))
    outcome = mirror._sync(mlflow, "http://x:hunter2@host.example", secret, content, 60, os.environ)
    assert not outcome.done and outcome.server == "host.example"
    assert f"No module named '{MASK}'" in outcome.message


def test_a_secret_that_is_an_ordinary_word_leaves_a_record_that_can_be_read(monkeypatch) -> None:
    monkeypatch.setattr(log_masking, "_hidden", {"seconds", "123456", "kubeflow"})
    end = AttemptEnd(
        *(1, "j", "kubeflow", "succeeded", 0, "a kubeflow of 123456 seconds", "", (), ()),
        seconds={"running": 123456.0},
    )
    read = AttemptEnd.from_bytes(end.to_bytes())
    assert (read.namespace, read.seconds) == ("kubeflow", {"running": 123456.0})
    assert read.sentence == "a ****** of ****** ******"
