"""Jobs that `kfp-tfjob import` has read run in the shape of their files, on each kind of job.

Images and quantities are those of the test cluster, and the program is one of a second. It fails
where it does not see what it saw in the job that the file describes.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kfp_tfjob.jobs.attempt_record import read_ends
from kfp_tfjob.jobs.spec import JobSpec
from kfp_tfjob.options import container_images
from tests import imported_jobs
from tests.cluster.cluster import STATE
from tests.cluster.launches import LIMITS, SMALL, Launch, on_both_kinds
from tests.imported_jobs import CLAIMS, NAMES, REPLICAS, SECRET

pytestmark = pytest.mark.cluster
LABELS = {"pool": "cpu", "node.kubernetes.io/instance-type": "p5.48xlarge"}


def spec_of(launch: Launch, name: str) -> JobSpec:
    """Return the spec of the imported job, with the quantities of the test cluster."""
    found = dict(imported_jobs.imported(name, container_images.TRAINER).parameters)
    pod = {role: dict(its) for role, its in found["pod"].items()}
    for its in pod.values():
        for key in SMALL:
            its.pop(key, None)
    pod["all"] = pod.get("all", {}) | SMALL
    options = LIMITS | found["train_options"] | {"job": launch.kind.name.lower()}
    values = launch.parameters(
        pod, found.get("train_workers", 1), found.get("train_gpus", 0), options
    )
    values |= {"dataset_uri": "", "train_epochs": found.get("train_epochs", 1)}
    return JobSpec.parse(**values)


@pytest.fixture
def claim(launch: Launch) -> Iterator[Any]:
    """A function that makes a claim on a folder of this machine, and returns the folder."""
    core, made = launch.cluster.core, []

    def make(name: str) -> Path:
        folder = STATE / "claims" / launch.namespace / name
        folder.mkdir(parents=True)
        folder.chmod(0o777)  # no fsGroup changes the owner of such a volume
        volume = f"{launch.namespace}-{name}"
        modes = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
        capacity = {"capacity": {"storage": "1Gi"}, "hostPath": {"path": str(folder)}}
        core.create_persistent_volume({"metadata": {"name": volume}, "spec": modes | capacity})
        made.append(volume)
        request = {"resources": {"requests": {"storage": "1Gi"}}, "volumeName": volume}
        body = {"metadata": {"name": name}, "spec": modes | request}
        core.create_namespaced_persistent_volume_claim(launch.namespace, body)
        return folder

    yield make
    for volume in made:
        core.delete_persistent_volume(volume)


@pytest.fixture
def surroundings(launch: Launch) -> None:
    """What the jobs name: a Secret, an account, node labels and a PriorityClass."""
    core = launch.cluster.core
    name, values = SECRET
    secret = {"metadata": {"name": name}, "stringData": values}
    core.create_namespaced_secret(launch.namespace, secret)
    core.create_namespaced_service_account(launch.namespace, {"metadata": {"name": "fraud"}})
    for node in core.list_node().items:
        core.patch_node(node.metadata.name, {"metadata": {"labels": LABELS}})
    priority = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": 0}
    text = yaml.safe_dump(priority | {"metadata": {"name": "training"}})
    launch.cluster.kubectl("apply", "-f", "-", stdin=text)


@on_both_kinds
@pytest.mark.parametrize("name", NAMES)
def test_an_imported_job_runs_in_its_shape(launch, claim, surroundings, name: str) -> None:
    folder = claim(CLAIMS[name]) if name in CLAIMS else None
    if name == "workers-only":
        (folder / "rows").write_text("rows")
    launch.run(spec_of(launch, name))
    launch.ended_with("succeeded", 0, jobs=1)
    (end,) = read_ends(launch.step.store, launch.step.run).values()
    replicas = {f"{role}-{at}" for role, n in REPLICAS[name].items() for at in range(n)}
    assert end and {it.replica for it in end.pods} == replicas
    assert launch.said(imported_jobs.first_line(name))
    assert launch.step.store.read(launch.step.run.base / "output/answer") == b"42"
    if name == "sidecar-upload":  # on the claim, in the folder of the attempt
        assert (folder / launch.name() / "answer").read_text() == "42"
    if name == "pytorch-gpus":
        assert sorted(it.name for it in folder.iterdir()) == ["0", "1", "2", "3"]
