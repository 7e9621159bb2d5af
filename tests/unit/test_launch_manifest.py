"""Whole manifests against golden files.

Write the golden files again, and read the difference before it is committed:

    WRITE_GOLDEN=1 .venv/bin/python -m pytest tests/unit/test_launch_manifest.py
"""

import copy
import json
import os
import re
import string
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfp_tfjob.jobs.job_identity import Identity
from kfp_tfjob.jobs.kinds import kind_named
from kfp_tfjob.jobs.labels import run_label
from kfp_tfjob.jobs.manifest import build_job, spec_hash, to_yaml
from kfp_tfjob.jobs.spec import JobSpec
from kfp_tfjob.jobs.tfjob import TFJOB
from kfp_tfjob.pipelines.commands.render import first_attempt
from tests.unit.cluster_objects import manifest
from tests.unit.launch_parameters import DEFAULTS, EVERYTHING, JOBS, RUN_ID

DNS_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


def _containers(manifest):
    for role, replica in manifest["spec"]["tfReplicaSpecs"].items():
        pod = replica["template"]["spec"]
        for container in (*pod["initContainers"], *pod["containers"]):
            yield role, container


def golden_job(name: str, kind: str) -> dict:
    parameters, identity = JOBS[name]
    return build_job(replace(JobSpec.parse(**parameters), kind=kind_named(kind)), identity)


OF_TORCH = ("tfjob-default", "pytorchjob")  # which has neither parameter servers nor evaluators


@pytest.mark.parametrize(("name", "kind"), [*product(JOBS, ("tfjob", "jobset")), OF_TORCH])
def test_golden(name, kind, repository: Path):
    text = to_yaml(golden_job(name, kind))
    path = repository / "tests/golden" / f"{name.replace('tfjob', kind)}.yaml"
    if os.environ.get("WRITE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize(("name", "kind"), [*product(JOBS, ["tfjob"]), OF_TORCH])
def test_the_kubeflow_sdk_reads_every_part(name, kind):
    from kubeflow.training import ApiClient

    job = golden_job(name, kind)

    class Response:
        data = json.dumps(job)

    client = ApiClient()
    model = client.deserialize(Response, f"KubeflowOrgV1{kind_named(kind).name}")
    assert client.sanitize_for_serialization(model) == job


def test_equal_parameters_give_equal_bytes_and_nothing_is_shared():
    spec = JobSpec.parse(**EVERYTHING)
    first = build_job(spec, Identity(RUN_ID, 1))
    untouched = to_yaml(first)
    assert to_yaml(manifest(copy.deepcopy(EVERYTHING))) == untouched
    first["spec"]["tfReplicaSpecs"]["Chief"]["template"]["metadata"]["labels"]["x"] = "y"
    assert to_yaml(build_job(spec, Identity(RUN_ID, 1))) == untouched


def test_the_hash_is_that_of_what_would_run():
    job = manifest()
    assert job["metadata"]["annotations"]["kfp-tfjob/spec-hash"] == spec_hash(job)
    assert spec_hash(manifest(namespace="a", owner={"uid": "u"})) == spec_hash(job)
    assert spec_hash(manifest(DEFAULTS | {"train_epochs": 21})) != spec_hash(job)


def test_only_the_chief_continues_the_run_of_the_plugin():
    tracking = {"MLFLOW_RUN_ID": "abc", "MLFLOW_TRACKING_URI": "https://a$b"}
    own = JobSpec.parse(**DEFAULTS | {"pod": {"all": {"env": {"MLFLOW_RUN_ID": "mine"}}}})
    for spec, run in ((JobSpec.parse(**DEFAULTS), "abc"), (own, "mine")):
        job = build_job(spec, Identity(RUN_ID, 1, tracking=tracking))
        chief, worker = (
            job["spec"]["tfReplicaSpecs"][role]["template"]["spec"] for role in ("Chief", "Worker")
        )
        (main,) = chief["containers"]
        variables = {item["name"]: item["value"] for item in main["env"]}
        assert variables["MLFLOW_RUN_ID"] == run
        assert variables["MLFLOW_TRACKING_URI"] == "https://a$$b"
        others = [*chief["initContainers"], *worker["initContainers"], *worker["containers"]]
        names = {item["name"] for container in others for item in container["env"]}
        assert "MLFLOW_TRACKING_URI" not in names


@given(
    run_id=st.one_of(st.uuids().map(str), st.text(min_size=1, max_size=80)),
    attempt=st.integers(1, 99),
)
def test_names_and_labels_are_valid_for_any_run_id(run_id, attempt):
    name = Identity(run_id, attempt).job_name(TFJOB)
    assert DNS_1035.fullmatch(name) and len(name) <= 50 and name.endswith(f"-{attempt}")
    assert LABEL.fullmatch(run_label(run_id))


@given(st.lists(st.text(string.ascii_letters + "-_ ", max_size=60), unique=True, max_size=20))
def test_different_runs_have_different_names(run_ids):
    assert len({Identity(run_id, 1).job_name(TFJOB) for run_id in run_ids}) == len(run_ids)


@pytest.mark.parametrize(
    ("options", "env", "value"),
    [
        ({"command": ["t"]}, {}, None),
        ({"command": ["t"], "keras": 2}, {}, "1"),
        ({"command": ["t"], "keras": 3.0}, {}, "0"),
        ({"command": ["t"], "keras": 2}, {"TF_USE_LEGACY_KERAS": "0"}, "0"),
        ({"keras": 2}, {}, None),  # the project's own trainer
    ],
)
def test_the_keras_of_an_own_program(options, env, value):
    job = manifest(DEFAULTS | {"train_options": options, "pod": {"all": {"env": env}}})
    for _, container in _containers(job):
        if container["name"] == "tensorflow":
            found = {item["name"]: item.get("value") for item in container["env"]}
            assert found.get("TF_USE_LEGACY_KERAS") == value


def test_a_program_of_ones_own_finds_the_dataset_and_its_own_gpus():
    def told(name, parameters=EVERYTHING, **options):
        job = manifest(parameters | {"train_options": parameters["train_options"] | options})
        return {
            role: {item["name"]: item.get("value") for item in container["env"]}.get(name)
            for role, container in _containers(job)
        }

    folder = "/kfp-tfjob/job/data"
    staged = {"Chief": folder, "Worker": folder, "PS": None, "Evaluator": folder}
    assert told("DATA_DIR") == staged
    assert set(told("DATA_DIR", stage_data=False).values()) == {None}
    assert told("DATA_DIR", stage_data="npy") == staged
    npy = {role: folder and "npy" for role, folder in staged.items()}
    assert told("STAGE_DATA", stage_data="npy") == npy
    for stage_data in (True, False, "true", "False"):
        assert set(told("STAGE_DATA", stage_data=stage_data).values()) == {None}
    assert set(told("DATA_DIR", DEFAULTS).values()) == {None}
    assert told("EXPECTED_GPUS") == {"Chief": "2", "Worker": "2", "PS": "0", "Evaluator": "1"}
    assert set(told("EXPECTED_REPLICAS").values()) == {"4"}


def test_a_claim_that_outlives_the_job_is_not_shared_between_attempts():
    folders = set()
    for attempt in (1, 2):
        for role, container in _containers(manifest(EVERYTHING, attempt=attempt)):
            if role == "Chief":
                folders |= {e["value"] for e in container["env"] if e["name"] == "OUTPUT_DIR"}
    assert len(folders) == 2


@pytest.mark.parametrize(
    ("code", "entry", "copied"),
    [
        ("kfp_tfjob.trainer.models:mlp", "kfp_tfjob.trainer.models:mlp", False),
        ("a/own.py:build", "own:build", True),
    ],
)
def test_render_takes_the_parameters_of_the_form(code, entry, copied):
    values = {k: v for k, v in DEFAULTS.items() if k not in ("model_entry", "tools_image")}
    del values["dataset_uri"], values["code_uri"]
    text = first_attempt(values | {"model_code": code, "data_uri": "x", "gate": {}}, "RUN-ID")
    assert f"value: {entry}\n" in text
    assert ("CODE_URI" in text) is copied
    assert "name: tfjob-run-id-" in text


@pytest.mark.parametrize("kind", ["tfjob", "jobset"])
def test_each_role_may_have_its_own_image(kind):
    pod = EVERYTHING["pod"] | {"ps": {"replicas": 1, "image": "team/ps:1"}}
    options = EVERYTHING["train_options"] | {"job": kind}
    spec = JobSpec.parse(**EVERYTHING | {"pod": pod, "train_options": options})
    job = build_job(spec, Identity(RUN_ID, 1))
    images = {it.role: it.pod["containers"][0]["image"] for it in spec.kind.replicas(job)}
    own = EVERYTHING["train_image"]
    assert images == {"chief": own, "worker": own, "ps": "team/ps:1", "evaluator": own}
    assert spec.images == [own, "team/ps:1"]


def test_the_cluster_may_choose_the_user():
    """OpenShift admits only ids of the namespace's range."""
    job = manifest({**EVERYTHING, "pod": {"all": {"run_as_user": "none"}}})
    for replica in TFJOB.replicas(job):
        security = replica.pod["securityContext"]
        assert security["runAsNonRoot"] is True
        assert not {"fsGroup", "runAsGroup", "runAsUser"} & security.keys()


@pytest.mark.parametrize("claim", ["", "chief-output"])
def test_the_output_is_also_mounted_at_output_path(claim):
    """On a claim, the program must not see the files of another attempt there."""
    chief = {"output_path": "/output/", **({"output_claim": claim} if claim else {})}
    job = manifest(EVERYTHING | {"pod": {"chief": chief, "worker": {"output_path": "/output"}}})
    (main,) = job["spec"]["tfReplicaSpecs"]["Chief"]["template"]["spec"]["containers"]
    (mount,) = [it for it in main["volumeMounts"] if it["mountPath"] == "/output"]
    output = next(it["value"] for it in main["env"] if it["name"] == "OUTPUT_DIR")
    assert mount["name"] == "output"
    assert mount.get("subPath", "") == output.removeprefix("/kfp-tfjob/output").strip("/")
    assert bool(mount.get("subPath")) == bool(claim)
    (worker,) = job["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    (mount,) = [it for it in worker["volumeMounts"] if it["mountPath"] == "/output"]
    assert (mount["name"], mount["subPath"]) == ("job", "output")
