"""TensorBoard as Kubeflow Pipelines starts it: what its pod is told is enough to read the logs."""

import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
import yaml
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.types_pb2 import DT_FLOAT
from tensorboard.summary.writer.record_writer import RecordWriter

from components.images import TRAINER
from components.launch_tfjob.lint.schema import violations
from components.launch_tfjob.spec import JobSpec
from components.launch_tfjob.tensorboard import ui_metadata
from storage.address import S3Address
from tests.unit.launch_parameters import DEFAULTS, EVERYTHING

SECONDS = 60  # for TensorBoard to read the logs, on a busy machine


def viewer(parameters: dict, logs: S3Address) -> dict:
    (found,) = json.loads(ui_metadata(JobSpec.parse(**parameters), logs))["outputs"]
    return found


@pytest.mark.parametrize("parameters", [DEFAULTS, EVERYTHING], ids=["default", "everything"])
def test_the_document_is_what_the_page_of_a_step_reads(parameters, repository: Path):
    found = viewer(parameters, S3Address("b", "runs/r/output/logs"))
    assert found["type"] == "tensorboard" and found["source"] == "s3://b/runs/r/output/logs"
    assert found["image"] == TRAINER and ":" in TRAINER  # the page splits the name there
    assert list(violations(found["pod_template_spec"], "V1PodTemplateSpec")) == []
    (container,) = found["pod_template_spec"]["spec"]["containers"]
    # The name, image, arguments and port are the controller's to write.
    assert not {"name", "image", "args", "ports"} & set(container)
    for variable in container["env"]:
        if "valueFrom" in variable:
            reference = variable["valueFrom"]["secretKeyRef"]
            assert reference["name"] == parameters["storage_secret"] and reference["optional"]
    # The page takes the one artifact of the step that has this name, whatever stands between words.
    compiled = yaml.safe_load((repository / "pipelines/compiled/launch_tfjob.yaml").read_text())
    outputs = compiled["components"]["comp-launch-tfjob"]["outputDefinitions"]["artifacts"]
    kinds = {
        re.sub(r"[\W_]", "-", name): artifact["artifactType"]["schemaTitle"]
        for name, artifact in outputs.items()
    }
    assert kinds["mlpipeline-ui-metadata"] == "system.Artifact"


def event_file(path: Path, values: list[float]) -> bytes:
    """Return what TensorFlow writes for a scalar, one value a step."""
    scalar = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="scalars"))
    with open(path, "wb") as file:
        writer = RecordWriter(file)
        writer.write(Event(wall_time=1.0, file_version="brain.Event:2").SerializeToString())
        for step, value in enumerate(values):
            tensor = TensorProto(dtype=DT_FLOAT, float_val=[value])
            item = Summary.Value(tag="loss", tensor=tensor, metadata=scalar)
            event = Event(wall_time=2.0 + step, step=step, summary=Summary(value=[item]))
            writer.write(event.SerializeToString())
    return path.read_bytes()


def environment(container: dict, secret: Path) -> dict[str, str]:
    """Return the environment the kubelet would make of it."""
    found = {}
    for variable in container["env"]:
        if "value" in variable:
            found[variable["name"]] = variable["value"]
        elif (key := secret / variable["valueFrom"]["secretKeyRef"]["key"]).exists():
            found[variable["name"]] = key.read_text()
    return found


def test_it_reads_the_logs_from_the_store_without_tensorflow(
    store, base, s3, tmp_path: Path, repository: Path
):
    logs = base / "output/logs"
    data = event_file(tmp_path / "events", [0.5, 0.25])
    store.write(logs / "train" / "events.out.tfevents.1.host.1.0.v2", data)
    (container,) = viewer(DEFAULTS, logs)["pod_template_spec"]["spec"]["containers"]
    arguments = ["tensorboard", f"--logdir={logs}", "--path_prefix=/tensorboard/viewer-x/"]
    said = tmp_path / "said"
    with open(said, "wb") as output:
        process = subprocess.Popen(
            [sys.executable, *container["command"][1:], *arguments, "--bind_all", "--port=0"],
            env=environment(container, s3.secret)
            | {"PYTHONPATH": str(repository), "PATH": os.environ["PATH"]},
            stderr=output,
        )
    try:
        scalars = wait_for_scalars(process, said)
    finally:
        process.terminate()
        process.wait(SECONDS)
    assert [value for _, _, value in scalars] == [0.5, 0.25]


def wait_for_scalars(process: subprocess.Popen, said: Path) -> list[tuple[float, int, float]]:
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        if port := re.search(r"at http://[^ ]*:(\d+)/tensorboard/viewer-x/", said.read_text()):
            place = f"http://127.0.0.1:{port[1]}/tensorboard/viewer-x/data/plugin/scalars"
            with urllib.request.urlopen(f"{place}/tags") as reply:
                tags = json.load(reply)
            if "loss" in tags.get("train", {}):
                with urllib.request.urlopen(f"{place}/scalars?run=train&tag=loss") as reply:
                    return json.load(reply)
        time.sleep(0.1)
    raise AssertionError(said.read_text())
