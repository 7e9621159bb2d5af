"""What a step loads before it begins: each of its seconds is paid in every run."""

import json
import os
import subprocess
import sys

import pytest

from kfp_tfjob.components import STEPS

# Seconds of CPU each, and none of them is needed in the pod of a step.
_NEVER = {
    "kubeflow": "the SDK loads when a job is created",
    "kfp_server_api": "a step does not ask the back end of Kubeflow Pipelines",
    "tensorflow": "evaluate loads it when the data is there, the other images lack it",
    "click": "a step has no command line",
    "psutil": "for a local run only",
}
# What talks to the cluster, reads and writes tables and pages, and who does that.
_CLUSTER = {"preflight", "launch_tfjob", "finish"}
_ONLY = {
    "kubernetes": _CLUSTER,
    "requests": _CLUSTER,  # the Kubernetes client loads it
    "pyarrow": {"preflight", "prepare_data", "evaluate", "publish"},  # column types
    "numpy": {"preflight", "prepare_data", "evaluate", "publish"},  # publish: columns
    "jinja2": {"prepare_data", "launch_tfjob", "evaluate", "publish"},
}
# Each step is loaded in a fork, so that kfp itself is imported once.
_PROGRAM = """
import json, os, sys
from kfp.dsl import executor_main
before = set(sys.modules)
from benchmarks.step_start import load
for step in sys.argv[1:]:
    if not os.fork():
        load(step)
        names = {name.partition(".")[0] for name in set(sys.modules) - before}
        print("loaded", json.dumps([step, sorted(names)]), flush=True)
        os._exit(0)
    os.wait()
"""


@pytest.fixture(scope="module")
def packages() -> dict[str, set[str]]:
    """The packages that each step loads."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, *STEPS],
        env=os.environ | {"_KFP_RUNTIME": "true"},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("loaded ")]
    return {step: set(names) for step, names in (json.loads(line[7:]) for line in lines)}


@pytest.mark.parametrize("step", STEPS)
def test_a_step_loads_nothing_that_it_does_not_need(step, packages):
    loaded = packages[step]
    assert "kfp_tfjob" in loaded
    never = {name: why for name, why in _NEVER.items() if name in loaded}
    assert not never
    assert not {name for name, steps in _ONLY.items() if name in loaded and step not in steps}
