"""Measures what each step loads before it begins, beside KFP's own executor.

    python -m benchmarks.step_start [--repeats N] [--before CHECKOUT]

With a checkout of an earlier commit, for example a `git worktree`, both are measured in turn. The
SDK that creates a TFJob loads with the first job only, and has its own column.

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
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import kfp_tfjob
from kfp_tfjob.components import STEPS

GOAL = 1.0  # seconds of CPU for each step but evaluate and those that talk to the cluster
# What the engines import only on a cluster, inside their functions.
_ON_A_CLUSTER = {
    "preflight": (
        "kfp_tfjob.checks.engine",
        "kfp_tfjob.cluster.kubernetes",
    ),
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
    if step == "launch_tfjob" and find_spec("kfp_tfjob.cluster.create_job"):
        import kubeflow.training  # noqa: F401 - as for the first job
    return {
        "kfp": executor - began,
        "imports": loaded - executor,
        "store": opened - loaded,
        "sdk": time.process_time() - opened,
        "modules": names,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5, help="processes for each step")
    parser.add_argument("--before", type=Path, help="a checkout of an earlier commit")
    parser.add_argument("--measure", choices=STEPS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(arguments.measure)))
        return
    folders = {"before": arguments.before} if arguments.before else {}
    folders["now"] = Path(kfp_tfjob.__file__).parents[1]
    runs: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for _ in range(arguments.repeats):
        for step in STEPS:
            for name, folder in folders.items():
                runs.setdefault((name, step), []).append(_process(step, folder))
    found: dict[str, Any] = {"benchmark": "step_start", "goal": GOAL}
    for (name, step), of in runs.items():
        medians = {key: round(statistics.median(one[key] for one in of), 3) for key in of[0]}
        found.setdefault(name, {})[step] = medians
    print(table(found))
    print(json.dumps(found))


def _process(step: str, folder: Path) -> dict[str, Any]:
    # KFP's launcher sets the first; with keys the store looks for none.
    environment = os.environ | {"_KFP_RUNTIME": "true", "PYTHONDONTWRITEBYTECODE": ""}
    environment |= {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "key"}
    program = Path(__file__).read_text()  # that of an earlier commit measured something else
    command = [sys.executable, "-c", program, "--measure", step]
    done = subprocess.run(
        command, env=environment, cwd=folder, check=True, capture_output=True, text=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def table(found: dict[str, Any]) -> str:
    """Return the medians as lines."""
    columns = ("kfp", "imports", "store", "sdk")
    head = "".join(f"{name:>9}" for name in (*columns, "ours", "modules"))
    lines, slow = [f"{'seconds of CPU':21}{head}"], []
    for step in STEPS:
        for name in ("before", "now"):
            if not (one := found.get(name, {}).get(step)):
                continue
            ours = sum(one[key] for key in columns[1:])
            if ours > GOAL and name == "now" and step not in ("evaluate", *_ON_A_CLUSTER):
                slow.append(step)
            seconds = "".join(f"{value:9.2f}" for value in (*(one[key] for key in columns), ours))
            lines.append(f"{step:14}{name:7}{seconds}{one['modules']:9.0f}")
    what = f"MISSED by {', '.join(slow)}" if slow else "reached"
    lines.append(
        f"{what}: at most {GOAL:g} s of our own for each step but evaluate and those that talk to"
        " the cluster"
    )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
