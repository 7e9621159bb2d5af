"""The jobs of tests/data/jobs with a program of a second, which fails unless it sees what it saw.

The tests on this machine and on the cluster run the imported jobs with it.
"""

import json
from pathlib import Path
from typing import Any

from kfp_tfjob.pipelines.job_import import documents
from kfp_tfjob.pipelines.job_import.conversion import ImportedJob, convert

JOBS = Path(__file__).parent / "data" / "jobs"
PROGRAM = """
import json, os, pathlib, sys, time
config = json.loads(os.environ["TF_CONFIG"])
task, cluster = config["task"], config["cluster"]
me = task["type"], task["index"]
shape = {role: len(hosts) for role, hosts in sorted(cluster.items())}
print("shape", json.dumps(shape), "task", *me, flush=True)
"""
_ANSWER = 'pathlib.Path(os.environ["OUTPUT_DIR"], "answer").write_text("42")'
# What the program of each job checks. Paths are arguments, which a local run translates.
_CHECKS = {
    "sidecar-upload": """
if me == ("chief", 0):
    pathlib.Path(sys.argv[1]).write_text("42")
""",
    "workers-only": f"""
assert sys.argv[1:3] == ["--steps", "20"], sys.argv
assert pathlib.Path(sys.argv[3]).read_text() == "rows"
if me == ("worker", 0):
    {_ANSWER}
""",
    "parameter-servers": """
assert os.getcwd() == "/usr", os.getcwd()
pathlib.Path(sys.argv[1], "answer").write_text("42" if me == ("worker", 0) else "0")
""",
    "master-v1beta1": f"""
assert pathlib.Path(sys.argv[1]).read_text() == "open"
assert os.environ["WAREHOUSE_TOKEN"] == "sesame" and os.environ["EPOCHS"] == "7"
if me == ("chief", 0):
    {_ANSWER}
""",
    "pytorch-gpus": f"""
rank, size, address, port, folder = sys.argv[1:6]
nodes = os.environ["PET_NNODES"]
chief, _, chief_port = cluster["chief"][0].rpartition(":")
assert (address, size, nodes) == (chief, "32", "4"), sys.argv
assert os.environ["WORLD_SIZE"] == size  # the operator counts processes: 4 * nprocPerNode
assert rank == str(0 if me == ("chief", 0) else 1 + task["index"]), sys.argv
assert os.environ["PET_NODE_RANK"] == rank
assert os.environ["PET_MASTER_ADDR"] == address and port == os.environ["MASTER_PORT"]
assert os.environ["PET_NPROC_PER_NODE"] == "8" and os.environ["NCCL_DEBUG"] == "WARN"
pathlib.Path(folder, rank).write_text("saved")
if rank == "0":
    deadline = time.monotonic() + 300
    while len(os.listdir(folder)) < int(nodes) and time.monotonic() < deadline:
        time.sleep(0.1)  # the first collective operation would wait for all ranks
    {_ANSWER}
""",
}
NAMES = sorted(_CHECKS)
_ARGUMENTS = {
    "sidecar-upload": ["/results/answer"],
    "workers-only": ["--steps", "20", "/features/rows"],
    "parameter-servers": ["/train"],
    "master-v1beta1": ["/etc/secrets/password"],
    "pytorch-gpus": [
        *("$(RANK)", "$(WORLD_SIZE)", "$(MASTER_ADDR)", "$(MASTER_PORT)"),
        "/checkpoints",
    ],
}
CLAIMS = {
    "sidecar-upload": "vision-results",
    "workers-only": "features",
    "pytorch-gpus": "checkpoints",
}
SECRET = ("warehouse", {"token": "sesame", "password": "open"})
# TF_CONFIG as the job's own operator writes it, and the replicas of the run.
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


def imported(name: str, image: str) -> ImportedJob:
    """Import a job after its images and programs were replaced by those of the tests."""
    (job,) = documents.read(JOBS / f"{name}.yaml").jobs
    job = json.loads(json.dumps(job))  # the anchors of the file are shared objects
    (specs,) = [it for key, it in job["spec"].items() if key.endswith("ReplicaSpecs")]
    command = ["python3", "-c", PROGRAM + _CHECKS[name], *_ARGUMENTS.get(name, [])]
    for item in specs.values():
        main: dict[str, Any] = item["template"]["spec"]["containers"][0]
        main |= {"image": image, "command": command, "args": []}
        if "workingDir" in main:
            main["workingDir"] = "/usr"
    return convert(job)


def first_line(name: str) -> str:
    """Return what the program of the run's chief prints first."""
    role = "chief" if "chief" in SHAPES[name] else "worker"
    return f"shape {json.dumps(SHAPES[name])} task {role} 0"
