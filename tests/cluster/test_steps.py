"""The steps in their images as pods, one after the other by the compiled specification.

It is the path of a run on Kubeflow Pipelines, without its drivers and Argo: the committed YAML, the
images of images/, a real TFJob and a real S3 server. In mid-training the launcher and the node of
the chief are drained, and the run decides about the resources of evaluate and publish.
"""

import uuid

import pytest

from examples import digits
from kfp_tfjob.pipelines.compilation import FOLDER
from kfp_tfjob.registry.champion import read_champion
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import Layout
from tests.cluster.access import TFJOBS
from tests.cluster.compiled import Compiled, Task
from tests.cluster.launches import BUCKET, LARGE, rules
from tests.cluster.node import preferring
from tests.cluster.processes import wait_until
from tests.cluster.step_pods import StepPods
from tests.cluster.workflows import Workflow

pytestmark = pytest.mark.cluster

_EVALUATE = {"cpu": "200m", "memory": "1500Mi"}
_TRAINING_SECONDS = 600
STEPS = ["preflight", "prepare-data", "launch-tfjob", "sync-output", "evaluate"]
STEPS += ["publish", "finish"]


@pytest.fixture
def pods(cluster, restricted) -> StepPods:
    """A run in a namespace under Pod Security `restricted`, with the rights of the Role."""
    cluster.storage_secret(restricted)
    cluster.kubeconfig_for(restricted, "runner", rules()).unlink()
    run_id = str(uuid.uuid4())
    workflow = Workflow(cluster, restricted, f"run-{run_id[:5]}").create(run_id)
    return StepPods(cluster, restricted, "runner", workflow, run_id)


def test_from_preflight_to_champion_with_a_drain(pods, node, launch_store, tmp_path):
    digits.write(tmp_path / "digits.csv")
    root = S3Address(BUCKET, pods.namespace)
    layout = Layout(root / "out")
    launch_store.write(root / "digits.csv", (tmp_path / "digits.csv").read_bytes())
    parameters = {
        "data_uri": str(root / "digits.csv"),
        "data_label": "digit",
        "model_name": "digits",
        "output_uri": str(layout.root),
        "storage_secret": "objstore-cred",
        "pod": {"all": LARGE, "evaluate": _EVALUATE, "chief": preferring(node)},
        "train_epochs": 60,
        "train_options": {"checkpoint_seconds": 1, "backoff_seconds": 0, "seed": 3},
    }
    placeholders = {
        "{{$.pipeline_job_uuid}}": pods.run_id,
        "{{$.pipeline_job_schedule_time_utc}}": "2026-01-02T03:04:05Z",
    }
    resources = {}

    def each(task: Task):
        pods.start(task)
        resources[task.name] = task.container["resources"].get("resourceMemoryLimit")
        if task.name == "launch-tfjob":
            _drain(pods, layout, launch_store, task, node.name)
        return pods.join(task).outputs

    Compiled(FOLDER / "tfjob_training.yaml").run(parameters, placeholders, each)

    assert list(pods.ended) == STEPS
    assert pods.ended["evaluate"].outputs["Output"] is True
    assert pods.ended["launch-tfjob"].outputs["attempts"] == 2
    assert (resources["evaluate"], resources["publish"]) == ("1500Mi", "1500Mi")
    assert "confusionMatrix" in pods.ended["evaluate"].files["executor_output.json"]
    champion = read_champion(launch_store, layout, "digits")
    assert champion is not None and champion.run_id == pods.run_id
    page = pods.ended["evaluate"].files["evaluation_report"]
    assert "<html" in page and "accuracy" in page


def _drain(pods: StepPods, layout, store, task: Task, node: str) -> None:
    """Drain the launcher and the node of the chief, once the first attempt has a checkpoint."""
    run, core = layout.run(pods.run_id), pods.cluster.core

    def stored() -> bool:
        return any(store.list(run.checkpoints))

    def gone() -> bool:
        names = [it.metadata.name for it in core.list_namespaced_pod(pods.namespace).items]
        return pods.name(task) not in names

    assert wait_until(stored, _TRAINING_SECONDS), pods.cluster.picture(pods.namespace)
    core.delete_namespaced_pod(pods.name(task), pods.namespace, grace_period_seconds=1)
    assert wait_until(gone, _TRAINING_SECONDS)
    pods.start(task)  # it finds the job, which belongs to the Workflow and not to the launcher
    found = pods.cluster.custom.list_namespaced_custom_object(*TFJOBS, pods.namespace, "tfjobs")
    (owner,) = found["items"][0]["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"]) == ("Workflow", pods.workflow.name)
    options = ["--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=120s"]
    pods.cluster.kubectl("drain", node, *options)
