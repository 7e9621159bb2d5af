"""What the launcher promises beyond the faults: the real trainer, speed, patience, preflight."""

import json
import random
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from kubernetes.client import Configuration

from kfp_tfjob.checks.engine import At, check
from kfp_tfjob.checks.finding import Status, only
from kfp_tfjob.checks.subject import Subject
from kfp_tfjob.cluster.client import PATIENCE, ClusterClient, connect
from kfp_tfjob.cluster.kubernetes import KubernetesBackend
from kfp_tfjob.jobs.job_identity import Identity
from kfp_tfjob.jobs.manifest import build_job
from kfp_tfjob.jobs.spec import JobSpec
from kfp_tfjob.jobs.tfjob import TFJOB
from tests.cluster.faulty_proxy import FaultyProxy
from tests.cluster.launches import LARGE, Launch, client_of
from tests.cluster.processes import wait_until

pytestmark = pytest.mark.cluster
_TRAINING_SECONDS = 900  # of three replicas on two cores that others use too


def test_a_thousand_calls_of_which_a_tenth_fails(launch: Launch):
    settings = launch.cluster.api.configuration
    custom, identity = launch.cluster.custom, Identity("r", 1)
    job = build_job(launch.spec("time.sleep(600)"), identity)
    custom.create_namespaced_custom_object(*launch.place, job)
    name = identity.job_name(TFJOB)
    with FaultyProxy(settings.host, settings.ssl_ca_cert, 0.1) as proxy:
        known = client_of(launch.kubeconfig, launch.namespace).client.configuration
        found = connect(Configuration(host=proxy.address, api_key=known.api_key))
        backend = KubernetesBackend(
            ClusterClient(found, launch.namespace, replace(PATIENCE, seconds=60))
        )
        lines = iter(backend.logs(name))
        heard = threading.Thread(target=lambda: [None for _ in lines], daemon=True)
        heard.start()
        changes = 0
        while proxy.calls < 1000:
            changes += 1
            mark = {"metadata": {"annotations": {"change": str(changes)}}}
            seen = backend.get(name)
            custom.patch_namespaced_custom_object(*launch.place, name, mark)
            began = time.monotonic()
            while seen["metadata"]["annotations"].get("change") != str(changes):
                assert time.monotonic() - began < 40, f"change {changes} was missed"
                backend.wait_for_change(name, 30)
                seen = backend.get(name)
                backend.pods(name)
        backend.close()
        assert sum(proxy.faults.values()) >= 50
        assert min(proxy.faults.values()) > 1


def _trainer(launch: Launch, folder: Path) -> JobSpec:
    launch.send_dataset(folder)
    options = {"deadline_seconds": 900, "checkpoint_seconds": 1, "seed": 3, "backoff_seconds": 0}
    pods = {"all": LARGE | {"grace_seconds": 60}}
    values = launch.parameters(pods, 2, 0, options, batch=24)
    return JobSpec.parse(**values | {"train_epochs": 8})


def test_the_trainer_runs_to_the_end_and_recovers_to_the_same_weights(
    launch, another_launch, launch_store, tmp_path
):
    ended = launch.start(_trainer(launch, tmp_path / "first")).join(_TRAINING_SECONDS)
    assert ended.verdict == "succeeded", ended.message
    assert ended.launched.attempts == 1 and ended.launched.progress.final
    manifest = launch_store.read_manifest(launch.step.run.manifest)
    stored = {item.address.key for item in launch_store.list(launch.step.run.output)}
    root = f"{launch.step.run.base.key}/"
    for item in manifest.objects:
        assert any(key.endswith(item.key) for key in stored), item.key
    assert any(key.startswith(root) and "saved_model.pb" in key for key in stored)
    undisturbed = _weights(launch, launch_store)

    other = another_launch()
    other.start(_trainer(other, tmp_path / "second"))
    checkpoints = other.step.run.checkpoints
    other.wait_for(lambda: launch_store.numbers(checkpoints), _TRAINING_SECONDS)
    time.sleep(random.uniform(0, 3))
    other.cluster.core.delete_namespaced_pod(other.pod(), other.namespace)
    ended = other.join(_TRAINING_SECONDS)
    assert ended.verdict == "succeeded", ended.message
    assert ended.launched.attempts == 2
    recovered = _weights(other, launch_store)
    assert recovered == undisturbed


def _weights(launch: Launch, store) -> str:
    lines = store.read(launch.step.run.output / "progress.jsonl").decode().splitlines()
    final = next(event for line in lines if (event := json.loads(line))["event"] == "final")
    return final["trained_weights_sha256"]


def test_preflight_names_everything_at_once(launch: Launch):
    rules = [{"apiGroups": ["kubeflow.org"], "resources": ["tfjobs"], "verbs": ["create", "get"]}]
    rules.append({"apiGroups": [""], "resources": ["serviceaccounts"], "verbs": ["get"]})
    rules.append({"apiGroups": [""], "resources": ["persistentvolumeclaims"], "verbs": ["get"]})
    kubeconfig = launch.cluster.kubeconfig_for(launch.namespace, "poor", rules)
    pod = {"all": {"service_account": "nobody"}, "chief": {"output_claim": "no-claim"}}
    spec = launch.spec(workers=1, gpus=999, pod=pod)
    found = check(Subject(client_of(kubeconfig, launch.namespace, 5), spec), At.RUN)
    problems = only(found, Status.PROBLEM)
    text = "\n".join(map(str, problems))
    assert "delete tfjobs" in text and "get pods/log" in text
    assert " nobody" in text and " no-claim" in text
    assert len(problems) == 3, text
    assert not any("secrets" in it.text for it in found)


def test_preflight_without_operator(launch: Launch, alone):
    alone.operator.stop()
    try:
        api = client_of(launch.kubeconfig, launch.namespace, 2)
        problems = only(check(Subject(api, launch.spec()), At.RUN), Status.PROBLEM)
    finally:
        alone.operator.start()
    assert len(problems) == 1 and "training operator" in problems[0].what


def test_secrets_are_blotted_out_of_the_log(launch: Launch, capsys, tmp_path, monkeypatch):
    secret = launch.objects.keys["AWS_SECRET_ACCESS_KEY"]
    (tmp_path / "AWS_SECRET_ACCESS_KEY").write_text(secret)
    monkeypatch.setenv("STORAGE_SECRET_DIR", str(tmp_path))
    body = "print('the key is', os.environ['AWS_SECRET_ACCESS_KEY']); sys.exit(1)"
    ended = launch.run(launch.spec(body))
    assert wait_until(lambda: launch.ended, 1)
    said = capsys.readouterr().out + ended.message
    assert "the key is ******" in said and secret not in said
