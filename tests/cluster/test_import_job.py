"""Jobs that `kfp-tfjob import` has read run in the shape of their files, on each kind of job.

Images and quantities are those of the test cluster, and the program is one of a second. It fails
where it does not see what it saw in the job that the file describes.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kfp_tfjob.jobs.attempt_record import read_ends
from kfp_tfjob.jobs.spec import JobSpec
from kfp_tfjob.options import images
from kfp_tfjob.pipelines.job_import import documents
from kfp_tfjob.pipelines.job_import.conversion import convert
from tests.cluster.cluster import STATE
from tests.cluster.launches import LIMITS, ROOT, SMALL, Launch, on_both_kinds

pytestmark = pytest.mark.cluster
JOBS = ROOT / "tests" / "data" / "jobs"
PROGRAM = """
import json, os, pathlib, sys
config = json.loads(os.environ["TF_CONFIG"])
task, cluster = config["task"], config["cluster"]
first = (task["type"], task["index"]) in {("chief", 0), ("worker", 0)}
first = first and not (task["type"] == "worker" and "chief" in cluster)
shape = {role: len(hosts) for role, hosts in sorted(cluster.items())}
print("shape", json.dumps(shape), "task", task["type"], task["index"], flush=True)
"""
# For each job: what its program checks, the arguments that it gets, the shape that TF_CONFIG has
# (the job's own), the file that the first replica writes, and the replicas of the run.
CHECKS = {
    "sidecar-upload": 'if first: pathlib.Path("/results/answer").write_text("42")',
    "workers-only": """
assert sys.argv[1:] == ["--steps", "20"], sys.argv
assert pathlib.Path("/features/rows").read_text() == "rows"
if task["type"] == "worker" and task["index"] == 0:
    pathlib.Path(os.environ["OUTPUT_DIR"], "answer").write_text("42")
""",
    "parameter-servers": """
assert os.getcwd() == "/usr", os.getcwd()
if first: pathlib.Path(os.environ["OUTPUT_DIR"], "answer").write_text("42")
""",
    "master-v1beta1": """
assert pathlib.Path("/etc/secrets/password").read_text() == "open"
assert os.environ["WAREHOUSE_TOKEN"] == "sesame" and os.environ["EPOCHS"] == "7"
if first: pathlib.Path(os.environ["OUTPUT_DIR"], "answer").write_text("42")
""",
    "pytorch-gpus": """
rank, size, address, port = sys.argv[1:5]
chief, _, chief_port = cluster["chief"][0].rpartition(":")
assert (address, port, size) == (chief, chief_port, "4"), sys.argv
assert rank == str(0 if task["type"] == "chief" else 1 + task["index"]), sys.argv
assert os.environ["PET_NODE_RANK"] == rank and os.environ["PET_NNODES"] == size
assert os.environ["PET_NPROC_PER_NODE"] == "8" and os.environ["NCCL_DEBUG"] == "WARN"
pathlib.Path("/checkpoints", rank).write_text("saved")
if first: pathlib.Path(os.environ["OUTPUT_DIR"], "answer").write_text("42")
""",
}
ARGUMENTS = {
    "workers-only": ["--steps", "20"],
    "pytorch-gpus": ["$(RANK)", "$(WORLD_SIZE)", "$(MASTER_ADDR)", "$(MASTER_PORT)"],
}
SHAPES = {
    "sidecar-upload": {"chief": 1, "worker": 2},
    "workers-only": {"worker": 3},
    "parameter-servers": {"ps": 2, "worker": 2},
    "master-v1beta1": {"chief": 1, "worker": 1},
    "pytorch-gpus": {"chief": 1, "worker": 3},
}
REPLICAS = SHAPES | {
    "workers-only": {"chief": 1, "worker": 2},
    "parameter-servers": {"chief": 1, "worker": 1, "ps": 2},
}
CLAIMS = {
    "sidecar-upload": "vision-results",
    "workers-only": "features",
    "pytorch-gpus": "checkpoints",
}
LABELS = {"pool": "cpu", "node.kubernetes.io/instance-type": "p5.48xlarge"}


def scaled(name: str) -> dict[str, Any]:
    """Return a job with the image and a program of the test cluster."""
    (job,) = documents.read(JOBS / f"{name}.yaml").jobs
    command = ["python3", "-c", PROGRAM + CHECKS[name], *ARGUMENTS.get(name, [])]
    job = json.loads(json.dumps(job))  # the anchors of the file are shared objects
    (specs,) = [it for key, it in job["spec"].items() if key.endswith("ReplicaSpecs")]
    for item in specs.values():
        main = item["template"]["spec"]["containers"][0]
        main |= {"image": images.TRAINER, "command": command, "args": []}
        if "workingDir" in main:
            main["workingDir"] = "/usr"
    return job


def spec_of(launch: Launch, name: str) -> JobSpec:
    """Return the spec of the imported job, with the quantities of the test cluster."""
    found = dict(convert(scaled(name)).parameters)
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
    secret = {"metadata": {"name": "warehouse"}, "stringData": {"token": "sesame"}}
    secret["stringData"]["password"] = "open"
    core.create_namespaced_secret(launch.namespace, secret)
    core.create_namespaced_service_account(launch.namespace, {"metadata": {"name": "fraud"}})
    for node in core.list_node().items:
        core.patch_node(node.metadata.name, {"metadata": {"labels": LABELS}})
    priority = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": 0}
    text = yaml.safe_dump(priority | {"metadata": {"name": "training"}})
    launch.cluster.kubectl("apply", "-f", "-", stdin=text)


@on_both_kinds
@pytest.mark.parametrize("name", sorted(CHECKS))
def test_an_imported_job_runs_in_its_shape(launch, claim, surroundings, name: str) -> None:
    folder = claim(CLAIMS[name]) if name in CLAIMS else None
    if name == "workers-only":
        (folder / "rows").write_text("rows")
    launch.run(spec_of(launch, name))
    launch.ended_with("succeeded", 0, jobs=1)
    (end,) = read_ends(launch.step.store, launch.step.run).values()
    replicas = {f"{role}-{at}" for role, n in REPLICAS[name].items() for at in range(n)}
    assert end and {it.replica for it in end.pods} == replicas
    shape, own = json.dumps(SHAPES[name]), next(iter({"chief", "worker"} & {*SHAPES[name]}))
    first = "chief" if "chief" in SHAPES[name] else own
    assert launch.said(f"shape {shape} task {first} 0")
    assert launch.step.store.read(launch.step.run.base / "output/answer") == b"42"
    if name == "sidecar-upload":  # on the claim, in the folder of the attempt
        assert (folder / launch.name() / "answer").read_text() == "42"
    if name == "pytorch-gpus":
        assert sorted(it.name for it in folder.iterdir()) == ["0", "1", "2", "3"]
