"""A pipeline of an author's own: what its launch task sets reaches the replicas."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from kubernetes.client import ApiException

from tests.kfp import cluster, task_config_pipeline
from tests.kfp.cluster import JOB, Object
from tests.kfp.lab import DATA, LABEL, Lab, until
from tests.kfp.task_config_pipeline import LIMITS, NODE_SELECTOR, SEEN, TOLERATION

pytestmark = pytest.mark.kfp

_ACCELERATOR = "test-kfp.example.com/accelerator"  # of no other test, and of no device plugin
_REPLICAS = 2
_KEY, _VARIABLE, _FOLDER = "AWS_ACCESS_KEY_ID", "TOKEN", "/etc/secrets"


@pytest.fixture
def accelerator() -> Iterator[str]:
    """An extended resource of which a node has one for each replica."""
    try:
        with cluster.extended_resource(_ACCELERATOR, _REPLICAS):
            yield _ACCELERATOR
    except ApiException as error:
        if error.status != 403:
            raise
        pytest.skip("your kubeconfig may not patch nodes/status, so no node has the accelerator")


def test_task_config(lab: Lab, row, accelerator: str, tmp_path: Path) -> None:
    secret = lab.copy_secret("token")
    file = tmp_path / "task_config.yaml"
    task_config_pipeline.compile_for(lab.settings.registry, file)
    arguments = {"data_uri": lab.uri(DATA), "data_label": LABEL, "output_uri": lab.uri()}
    arguments |= {"storage_secret": lab.settings.secret, "token_secret": secret}
    run = lab.start_file("task-config", file, arguments | {"accelerator": accelerator})

    replicas: dict[str, Object] = {}  # a worker's pod is deleted when the chief ends

    def all_replicas() -> bool:
        replicas.update((pod["metadata"]["name"], pod) for pod in cluster.pods(run, JOB))
        return len(replicas) == _REPLICAS or lab.state(run) in ("SUCCEEDED", "FAILED")

    until("the replicas", all_replicas)
    assert lab.finished(run) == "SUCCEEDED"
    assert len(replicas) == _REPLICAS
    for pod in replicas.values():
        _check_replica(pod["spec"], accelerator, secret)
    stored = lab.bucket.document(f"runs/{run}/output/{SEEN}")
    assert stored["level"] == "pod"  # it wins over the task
    assert stored["token"] is True and _KEY in stored["secrets"]
    assert stored["EXPECTED_GPUS"] == "1"
    launcher = next(pod for pod in cluster.pods(run) if cluster.node(pod) == "launch-tfjob")
    (main,) = (it for it in launcher["spec"]["containers"] if it["name"] == "main")
    assert not main["resources"].get("limits")  # it would wait for the accelerator
    row(run)


def _check_replica(spec: Object, accelerator: str, secret: str) -> None:
    (main,) = (it for it in spec["containers"] if it["name"] == "tensorflow")
    for amounts in (main["resources"]["limits"], main["resources"]["requests"]):
        assert amounts[accelerator] == "1"
        assert {name: amounts[name] for name in LIMITS} == LIMITS
    assert TOLERATION in spec["tolerations"]
    assert spec["nodeSelector"] == NODE_SELECTOR
    (variable,) = (it for it in main["env"] if it["name"] == _VARIABLE)
    assert variable["valueFrom"] == {"secretKeyRef": {"name": secret, "key": _KEY}}
    (mount,) = (it for it in main["volumeMounts"] if it["mountPath"] == _FOLDER)
    (volume,) = (it for it in spec["volumes"] if it["name"] == mount["name"])
    assert volume["secret"]["secretName"] == secret
