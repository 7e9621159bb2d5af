"""Programs of a user's own, those of examples/, in the trainer image on each kind of job."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kfp_tfjob.features.served_model import ServedModel
from kfp_tfjob.jobs.attempt_record import read_ends
from kfp_tfjob.jobs.jobset import JOBSET
from kfp_tfjob.jobs.pytorchjob import PYTORCHJOB
from kfp_tfjob.jobs.spec import JobSpec
from kfp_tfjob.jobs.tfjob import TFJOB
from kfp_tfjob.uploader import pull, push
from tests.cluster.launches import LARGE, ROOT, Launch, on_both_kinds
from tests.local import tiny_dataset
from tests.typed_schema import typed

pytestmark = pytest.mark.cluster
_SECONDS = 900.0  # of a training on a machine that is busy
# Every replica says its rank to the chief, by the addresses that torch.distributed reads.
RENDEZVOUS = """
import socket
address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
if rank == 0:
    server = socket.create_server(("", address[1]))
    met = [server.accept()[0].recv(9).decode() for _ in range(size - 1)]
    print("met", *sorted(met), flush=True)
while rank:
    try:
        socket.create_connection(address, 5).sendall(str(rank).encode())
        break
    except OSError:
        time.sleep(0.2)
"""


def example(
    launch: Launch, folder: Path, name: str, pods: Mapping[str, Any] | None = None
) -> JobSpec:
    """Store a small dataset and a program of examples/; return the job that runs it."""
    step, program = launch.step, ROOT / "examples" / f"{name}.py"
    launch.send_dataset(folder / "data")
    code = folder / "code"
    code.mkdir()
    (code / program.name).write_bytes(program.read_bytes())
    push(step.store, code, step.run.code, "code", run_id=step.run_id)
    options = {
        "command": ["python3", f"$(JOB_DIR)/code/{program.name}"],
        "stage_data": True,
        "stall_timeout_seconds": 600,
        "deadline_seconds": 900,
    }
    spec = launch.spec(workers=1, pod={"all": LARGE, **(pods or {})}, batch=64, **options)
    return replace(spec, code_uri=str(step.run.code))


def predict(launch: Launch, folder: Path) -> tuple[int, ...]:
    run = launch.step.run
    pull(launch.step.store, run.base, folder, lambda key: key.startswith("output/model/"))
    features = [{"name": name, "type": "float32"} for name in tiny_dataset.FEATURES]
    label = {"name": "label", "classes": tiny_dataset.CLASSES}
    schema = typed({"features": features, "label": label})
    model = ServedModel(folder / "output" / "model", schema, "the model")
    return model.predict(model.example(5)).shape


@on_both_kinds
@pytest.mark.parametrize(
    ("name", "extras"),
    [
        ("tutorial_train", ()),
        ("own_train", ()),
        ("parameter_server", ("ps", "evaluator")),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_example(launch, tmp_path: Path, name, extras) -> None:
    spec = example(launch, tmp_path, name, {role: {"replicas": 1} for role in extras})
    launch.start(spec).join(_SECONDS)
    launch.ended_with("succeeded", 0, jobs=1)
    ends = read_ends(launch.step.store, launch.step.run)  # more than one if nodes were full
    attempt, end = max(ends.items())
    assert end is not None
    replicas = {"chief-0", "worker-0", *(f"{role}-0" for role in extras)}
    assert {pod.replica for pod in end.pods} == replicas
    if name == "tutorial_train":
        assert launch.said("gets Keras 2", attempt=attempt)
    else:
        assert launch.said("epoch 1/1 loss", attempt=attempt)
    assert predict(launch, tmp_path) == (5, len(tiny_dataset.CLASSES))


@pytest.mark.parametrize(
    "kind", [TFJOB, JOBSET, PYTORCHJOB], indirect=True, ids=lambda kind: kind.name
)
def test_a_program_of_torch_finds_the_others(launch) -> None:
    launch.run(launch.spec(RENDEZVOUS, workers=2))
    launch.ended_with("succeeded", 0, jobs=1)
    assert launch.said("met 1 2")
