"""Measures what each step loads before it begins, beside KFP's own executor.

    python -m benchmarks.step_start [--repeats N]

Every measurement is a new process that first loads KFP's executor, as a step's pod does, and then
what the function of the step imports on a cluster, and opens the store without a request. Seconds
are of CPU and medians; a machine that does other work at the same time shows more. evaluate also
loads TensorFlow, which it does not do here. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import kfp_tfjob
from kfp_tfjob.components import STEPS

GOAL = 1.0  # seconds of CPU for each step but evaluate
# What the engines import only on a cluster, inside their functions.
_ON_A_CLUSTER = {
    "preflight": ("kfp_tfjob.components.launch_tfjob.checks",),
    "launch_tfjob": ("kfp_tfjob.cluster.kubernetes",),
    "finish": ("kfp_tfjob.cluster.kubernetes",),
}


def modules(step: str) -> list[str]:
    """Return the modules that the function of a step imports in a pod.

    Args:
        step: One of STEPS.
    """
    root = Path(kfp_tfjob.__file__).parents[1]
    tree = ast.parse((root / "components" / step / "component.py").read_text())
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    found = [
        [node.module, *(f"{node.module}.{name.name}" for name in node.names)]
        for function in functions
        for node in ast.walk(function)
        if isinstance(node, ast.ImportFrom) and node.module
    ]
    ours = [name for names in found for name in names if name.startswith("kfp_tfjob.")]
    return [*ours, *_ON_A_CLUSTER.get(step, ())]


def load(step: str) -> None:
    """Import the modules of a step.

    Args:
        step: One of STEPS.
    """
    for name in modules(step):
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:  # else it is not a module but something in one
                raise


def measure(step: str) -> dict[str, Any]:
    """Return the seconds of this new process for KFP, the imports and the store."""
    began = time.process_time()
    from kfp.dsl import executor_main  # noqa: F401 - as `python -m` does in the pod

    executor, before = time.process_time(), len(sys.modules)
    load(step)
    loaded, names = time.process_time(), len(sys.modules) - before
    from kfp_tfjob.components.step import open_step

    open_step(step, "run", "s3://bucket/prefix", "http://127.0.0.1:1", "us-east-1")
    opened = time.process_time()
    return {
        "kfp": executor - began,
        "imports": loaded - executor,
        "store": opened - loaded,
        "modules": names,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5, help="processes for each step")
    parser.add_argument("--measure", choices=STEPS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(arguments.measure)))
        return
    found: dict[str, Any] = {"benchmark": "step_start", "goal": GOAL}
    runs: dict[str, list[dict[str, Any]]] = {step: [] for step in STEPS}
    for _ in range(arguments.repeats):
        for step in STEPS:
            runs[step].append(_process(step))
    for step, of in runs.items():
        found[step] = {key: round(statistics.median(one[key] for one in of), 3) for key in of[0]}
    print(table(found))
    print(json.dumps(found))


def _process(step: str) -> dict[str, Any]:
    # KFP's launcher sets the first; with keys the store looks for none.
    environment = os.environ | {"_KFP_RUNTIME": "true", "PYTHONDONTWRITEBYTECODE": ""}
    environment |= {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "key"}
    command = [sys.executable, "-m", "benchmarks.step_start", "--measure", step]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def table(found: dict[str, Any]) -> str:
    """Return the medians as lines."""
    lines = [f"{'seconds of CPU':14}{'kfp':>8}{'imports':>9}{'store':>8}{'ours':>8}{'modules':>9}"]
    slow = []
    for step in STEPS:
        one = found[step]
        ours = one["imports"] + one["store"]
        if ours > GOAL and step != "evaluate":
            slow.append(step)
        lines.append(
            f"{step:14}{one['kfp']:8.2f}{one['imports']:9.2f}{one['store']:8.2f}{ours:8.2f}"
            f"{one['modules']:9.0f}"
        )
    what = f"MISSED by {', '.join(slow)}" if slow else "reached"
    lines.append(f"{what}: at most {GOAL:g} s of our own for each step but evaluate")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
