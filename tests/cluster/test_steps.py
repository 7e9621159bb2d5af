"""The steps in their images as pods, one after the other by the compiled specification.

It is the path of a run on Kubeflow Pipelines, without its drivers and Argo: the committed YAML, the
images of images/, a real TFJob and a real S3 server. In mid-training the node of the chief is
drained, and the run decides about the resources of evaluate and publish.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from examples import digits
from kfp_tfjob.pipelines.compilation import FOLDER
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.champion import read_champion
from kfp_tfjob.storage.failure_record import Failure
from kfp_tfjob.storage.layout import Layout
from tests.cluster.compiled import Compiled, Task
from tests.cluster.launches import BUCKET, rules
from tests.cluster.node import EXTRA, Node, tolerate
from tests.cluster.processes import wait_until
from tests.cluster.step_pods import StepPods
from tests.cluster.workflows import Workflow

pytestmark = pytest.mark.cluster

_EVALUATE = {"cpu": "200m", "memory": "1500Mi"}
_SMALL = {"cpu": "200m", "memory": "1500Mi", "ephemeral_storage": "500Mi", "shared_memory": "64Mi"}
_TRAINING_SECONDS = 600
STEPS = ["preflight", "prepare-data", "launch-tfjob", "sync-output", "evaluate"]
STEPS += ["publish", "finish"]


@pytest.fixture
def pods(own_cluster, namespace) -> StepPods:
    """A run in a namespace under Pod Security `restricted`, with the rights of the Role."""
    own_cluster.core.patch_namespace(
        namespace,
        {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}},
    )
    own_cluster.storage_secret(namespace)
    own_cluster.kubeconfig_for(namespace, "runner", rules()).unlink()
    run_id = str(uuid.uuid4())
    workflow = Workflow(own_cluster, namespace, f"run-{run_id[:5]}").create(run_id)
    return StepPods(own_cluster, namespace, "runner", workflow, run_id)


@pytest.fixture
def node(own_cluster) -> Iterator[Node]:
    """A node for the chief alone, to be drained."""
    found = own_cluster.add_node()
    yield found
    own_cluster.remove_node(found)


def run(pods: StepPods, parameters: dict, each) -> None:
    placeholders = {
        "{{$.pipeline_job_uuid}}": pods.run_id,
        "{{$.pipeline_job_schedule_time_utc}}": "2026-01-02T03:04:05Z",
    }
    Compiled(FOLDER / "tfjob_training.yaml").run(parameters, placeholders, each)


def form(pods: StepPods, **more: object) -> dict:
    return {
        "data_uri": f"s3://{BUCKET}/{pods.namespace}/digits.csv",
        "data_label": "digit",
        "model_name": "digits",
        "output_uri": f"s3://{BUCKET}/{pods.namespace}/out",
        "storage_secret": "objstore-cred",
    } | more


def test_from_preflight_to_champion_with_a_drain(pods, node, launch_store, tmp_path, figure):
    digits.write(tmp_path / "digits.csv")
    layout = Layout.parse(f"s3://{BUCKET}/{pods.namespace}/out")
    data = S3Address.parse(form(pods)["data_uri"])
    launch_store.write(data, (tmp_path / "digits.csv").read_bytes())
    own = {
        "matchExpressions": [
            {"key": "kubernetes.io/hostname", "operator": "In", "values": [node.name]}
        ]
    }
    preferred = [{"weight": 100, "preference": own}]
    pod = {
        "all": _SMALL,
        "evaluate": _EVALUATE,
        "chief": {
            "tolerations": [tolerate(EXTRA, node.name)],
            "affinity": {
                "nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}
            },
        },
    }
    options = {"checkpoint_seconds": 1, "backoff_seconds": 0, "seed": 3}

    resources = {}

    def each(task: Task):
        pods.start(task)
        resources[task.name] = task.container["resources"].get("resourceMemoryLimit")
        if task.name == "launch-tfjob":
            _drain(pods, layout, launch_store, node.name)
        return pods.join(task).outputs

    parameters = form(pods, pod=pod, train_epochs=60, train_options=options)
    run(pods, parameters, each)

    assert list(pods.ended) == STEPS
    assert pods.ended["evaluate"].outputs["Output"] is True
    assert pods.ended["launch-tfjob"].outputs["attempts"] == 2
    assert (resources["evaluate"], resources["publish"]) == ("1500Mi", "1500Mi")
    assert "confusionMatrix" in pods.ended["evaluate"].files["executor_output.json"]
    champion = read_champion(launch_store, layout, "digits")
    assert champion is not None and champion.run_id == pods.run_id
    page = pods.ended["evaluate"].files["evaluation_report"]
    assert "<html" in page and "accuracy" in page
    figure(
        "steps as pods: "
        + ", ".join(f"{name} {ended.seconds:.0f} s" for name, ended in pods.ended.items())
    )


def _drain(pods: StepPods, layout, store, node: str) -> None:
    """Drain the node of the chief once a checkpoint of the first attempt is in the store."""
    run = layout.run(pods.run_id)

    def stored() -> bool:
        return any(store.list(run.checkpoints))

    assert wait_until(stored, _TRAINING_SECONDS), pods.cluster.picture(pods.namespace)
    options = ["--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=120s"]
    pods.cluster.kubectl("drain", node, *options)


def test_a_step_says_why_it_failed(pods):
    """As any user on a read-only root: the record of the failure is the last line of the log."""
    pods.changes = {"runAsUser": 1000670000, "readOnlyRootFilesystem": True}

    def each(task: Task):
        pods.start(task)
        ended = pods.join(task, "Failed")
        failure = Failure.from_line(
            next(line for line in ended.log.splitlines() if line.startswith("failure.json"))
        )
        assert (failure.step, failure.code) == ("preflight", 2)
        assert "train_epochs" in failure.message
        raise _Done

    with pytest.raises(_Done):
        run(pods, form(pods, train_epochs=0), each)


class _Done(Exception):
    pass
