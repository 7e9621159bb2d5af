"""Every entry point of the images as the manifests start it, and harder: any user, read-only root.

Dropped capabilities and runAsNonRoot come with Pod Security `restricted`, under which all of it is
admitted.
"""

import pytest

from kfp_tfjob.checks.step_pods import KEYS
from kfp_tfjob.jobs.failure_record import Failure
from kfp_tfjob.jobs.job_identity import Identity
from kfp_tfjob.jobs.manifest import build_job
from kfp_tfjob.jobs.spec import JobSpec
from kfp_tfjob.options.container_images import TRAINER
from kfp_tfjob.pipelines.compilation import FOLDER
from tests.cluster.compiled import Compiled
from tests.cluster.launches import LARGE
from tests.cluster.processes import wait_until
from tests.cluster.step_pods import StepPods
from tests.cluster.workflows import Workflow
from tests.cluster.workloads import RESTRICTED

pytestmark = pytest.mark.cluster

_ANY_USER = 1000670000  # as OpenShift assigns them
_HARDER = {"runAsUser": _ANY_USER, "runAsGroup": 0, "readOnlyRootFilesystem": True}
_SECONDS = 600


def harden(pod: dict) -> dict:
    """Make every container of a pod run as any user on a read-only root."""
    spec = pod["spec"]
    spec["volumes"] = [*spec.get("volumes", []), {"name": "any-tmp", "emptyDir": {}}]
    for container in [*spec.get("initContainers", []), *spec["containers"]]:
        container["securityContext"] = RESTRICTED | _HARDER
        mounts = container.setdefault("volumeMounts", [])
        mounts.append({"name": "any-tmp", "mountPath": "/tmp"})
    return pod


def finish(cluster, namespace: str, name: str) -> str:
    def phase() -> str:
        return cluster.core.read_namespaced_pod(name, namespace).status.phase

    assert wait_until(lambda: phase() in ("Succeeded", "Failed"), _SECONDS), phase()
    return phase()


def test_every_step_starts_and_says_what_is_wrong(cluster, restricted):
    cluster.core.create_namespaced_service_account(restricted, {"metadata": {"name": "runner"}})
    cluster.storage_secret(restricted)
    workflow = Workflow(cluster, restricted).create()
    pods = StepPods(cluster, restricted, "runner", workflow, "r", _HARDER)
    inputs = {"run_id": "r", "storage_secret": "objstore-cred", "output_uri": "no address"}
    checked = {"cpu": "250m", "memory": "1Gi", "image": TRAINER}
    inputs |= {
        f"pipelinechannel--preflight-{step}_{key}": value
        for step in KEYS
        for key, value in checked.items()
    }
    tasks = Compiled(FOLDER / "tfjob_training.yaml").steps(inputs)
    assert len(tasks) == 7
    for task in tasks:
        pods.start(task)
    for task in tasks:
        if task.name == "finish":  # it reports, and never fails a run
            pods.join(task)
            continue
        log = pods.join(task, "Failed").log
        (failure,) = filter(None, map(Failure.from_line, log.splitlines()))
        assert (failure.step, failure.code) == (task.name.replace("-", "_"), 2)
        assert "output_uri" in failure.message


def test_a_replica_with_setup_uploader_supervisor_and_trainer(launch, launch_store, tmp_path):
    """The pod of a chief as the job manifest has it."""
    launch.send_dataset(tmp_path / "d")
    pods = {"all": LARGE | {"run_as_user": _ANY_USER}}
    values = launch.parameters(pods, 0, 0, {"deadline_seconds": 900}, batch=24)
    job = build_job(JobSpec.parse(**values), Identity(launch.step.run_id, 1))
    pod = harden(job["spec"]["tfReplicaSpecs"]["Chief"]["template"])
    pod["metadata"]["name"] = "chief"
    pod["spec"]["restartPolicy"] = "Never"
    core = launch.cluster.core
    core.create_namespaced_pod(launch.namespace, pod)
    phase = finish(launch.cluster, launch.namespace, "chief")
    logs = {
        name: launch.cluster.log(launch.namespace, "chief", name)
        for name in ("setup", "uploader", "tensorflow")
    }
    assert phase == "Succeeded", logs
    stored = launch_store.read_manifest(launch.step.run.manifest).objects
    assert any("saved_model.pb" in item.key for item in stored)
