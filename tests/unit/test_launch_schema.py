"""The golden jobs against the TFJob CRD of the training operator.

The API server drops what a schema does not know without a word, so unknown fields fail here. The
CRD comes from the Go module of the operator; without Go, or without a network, this is skipped.
"""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from kfp_tfjob.jobs.manifest import build_job
from kfp_tfjob.jobs.spec import JobSpec
from tests.unit.launch_parameters import JOBS

MODULE = "github.com/kubeflow/training-operator@v1.9.4"
TYPES = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": int | float,
}


@pytest.fixture(scope="module")
def schema(tmp_path_factory) -> dict:
    go = shutil.which("go")
    if not go:
        pytest.skip("Go is not installed, so the CRD cannot be had")
    done = subprocess.run(
        [go, "mod", "download", "-json", MODULE],
        cwd=tmp_path_factory.mktemp("go"),
        capture_output=True,
        text=True,
        timeout=120,
    )
    if done.returncode:
        pytest.skip(f"the CRD cannot be downloaded: {(done.stderr or done.stdout)[-200:]}")
    folder = Path(json.loads(done.stdout)["Dir"])
    crd = yaml.load(
        (folder / "manifests/base/crds/kubeflow.org_tfjobs.yaml").read_text(),
        Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader),
    )
    (version,) = [item for item in crd["spec"]["versions"] if item["name"] == "v1"]
    return version["schema"]["openAPIV3Schema"]


def violations(value, schema: dict, path: str = ""):
    """Yield where a value breaks a structural schema, unknown fields included."""
    if schema.get("x-kubernetes-int-or-string"):
        if isinstance(value, bool) or not isinstance(value, int | str):
            yield f"{path}: {value!r} is neither a number nor a text"
        elif "pattern" in schema and not re.search(schema["pattern"], str(value)):
            yield f"{path}: {value!r} does not match {schema['pattern']}"
        return
    kind = schema.get("type")
    if kind and (not isinstance(value, TYPES[kind]) or (value is True and kind != "boolean")):
        yield f"{path}: {value!r} is no {kind}"
        return
    if "enum" in schema and value not in schema["enum"]:
        yield f"{path}: {value!r} is none of {schema['enum']}"
    if "pattern" in schema and not re.search(schema["pattern"], value):
        yield f"{path}: {value!r} does not match {schema['pattern']}"
    if "minimum" in schema and value < schema["minimum"]:
        yield f"{path}: {value!r} is below {schema['minimum']}"
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from violations(item, schema["items"], f"{path}[{index}]")
    if isinstance(value, dict):
        for name in set(schema.get("required", [])) - set(value):
            yield f"{path}.{name} is missing"
        known, others = schema.get("properties", {}), schema.get("additionalProperties")
        free = path == ".metadata" or schema.get("x-kubernetes-preserve-unknown-fields")
        for name, item in value.items():
            if name in known:
                yield from violations(item, known[name], f"{path}.{name}")
            elif isinstance(others, dict):
                yield from violations(item, others, f"{path}.{name}")
            elif not free:
                yield f"{path}.{name} is unknown and would be dropped"


@pytest.mark.parametrize("name", JOBS)
def test_the_operator_takes_every_field(name, schema):
    parameters, identity = JOBS[name]
    assert list(violations(build_job(JobSpec.parse(**parameters), identity), schema)) == []


def test_the_check_finds_what_is_wrong(schema):
    parameters, identity = JOBS["tfjob-default"]
    job = build_job(JobSpec.parse(**parameters), identity)
    job["spec"]["cleanPodPolicy"] = "Running"  # v1beta1: it would be dropped
    chief = job["spec"]["tfReplicaSpecs"]["Chief"]
    chief["replicas"] = "one"
    del chief["template"]["spec"]["containers"][0]["name"]
    chief["template"]["spec"]["initContainers"][0]["resources"]["limits"]["cpu"] = "many"
    found = "\n".join(violations(job, schema))
    assert ".spec.cleanPodPolicy is unknown" in found
    assert "Chief.replicas: 'one'" in found
    assert "containers[0].name is missing" in found
    assert "limits.cpu: 'many'" in found
