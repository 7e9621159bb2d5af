"""Measures the pause for a checkpoint of 300 MB, with and without the background writer.

    python -m benchmarks.checkpoint [--quick]

The trainer trains 25 million parameters with Adam on data from a real S3 server. `background` is
the unchanged trainer. With `waiting`, the training waits until each checkpoint is on disk. `none`
writes only the last one. Every run is a new process, the three take turns, and the results are
medians. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import prepared
from kfp_tfjob.pipelines.local.s3_server import Server
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.credentials import MOUNT_VARIABLE
from kfp_tfjob.uploader import push

KINDS = ("none", "background", "waiting")
GOAL = 0.1  # seconds
FEATURES, BATCH = 784, 32
HIDDEN = [4096, 4096, 1200]  # 25 million parameters


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer steps and repeats")
    parser.add_argument("--measure", choices=KINDS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(arguments.measure)))
        return
    repeats, steps = (1, 40) if arguments.quick else (3, 200)
    runs: dict[str, list[dict[str, Any]]] = {kind: [] for kind in KINDS}
    with tempfile.TemporaryDirectory() as name, Server.start(Path(name) / "s3") as server:
        address = S3Address("bench", "data")
        server.store().make_bucket(address.bucket)
        data = prepared.write(Path(name) / "data", steps * BATCH, FEATURES)
        push(server.store(), data, address, "dataset")
        for repeat in range(repeats):
            for kind in KINDS:
                folder = Path(name) / f"{kind}-{repeat}"
                seconds = 1e9 if kind == "none" else 2.0
                runs[kind].append(run(kind, folder, address, server, seconds))
    found: dict[str, Any] = {"benchmark": "checkpoint", "goal": GOAL, "steps": steps}
    for kind, of in runs.items():
        blocked = [seconds for one in of for seconds in one["blocked"]]
        found[kind] = {
            "checkpoints": len(blocked),
            "blocked": round(statistics.median(blocked), 4),
            "longest": round(max(blocked), 4),
            "train_seconds": round(statistics.median(one["train"] for one in of), 2),
        }
    found["megabytes"] = runs["background"][0]["megabytes"]
    print(table(found))
    print(json.dumps(found))


def run(
    kind: str, folder: Path, data: S3Address, server: Server, checkpoint_seconds: float
) -> dict[str, Any]:
    """Train once in a new process; return the result of `measure`."""
    options = {"checkpoint_seconds": checkpoint_seconds, "checkpoint_keep": 1}
    environment = os.environ | {
        MOUNT_VARIABLE: str(server.secret),
        "DATASET_URI": str(data),
        "MODEL_CODE": "kfp_tfjob.trainer.models:mlp",
        "HYPERPARAMETERS": json.dumps({"hidden": HIDDEN}),
        "EPOCHS": "1",
        "BATCH_SIZE": str(BATCH),
        "TRAIN_OPTIONS": json.dumps(options),
        "JOB_DIR": str(folder),
        "OUTPUT_DIR": str(folder / "output"),
        "EXPECTED_GPUS": "0",
    }
    line = [sys.executable, "-m", "benchmarks.checkpoint", "--measure", kind]
    done = subprocess.run(line, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def measure(kind: str) -> dict[str, Any]:
    """Train as configured by the environment, and measure the waiting time in State.save."""
    from kfp_tfjob.features.tensorflow_import import load

    load(0)
    from kfp_tfjob.trainer import __main__ as trainer
    from kfp_tfjob.trainer.training_state import State

    blocked: list[float] = []
    save = State.save

    def timed(self: State, *arguments: Any) -> None:
        start = time.perf_counter()
        save(self, *arguments)
        if kind == "waiting":
            self.wait()
        blocked.append(time.perf_counter() - start)

    State.save = timed
    if code := trainer.main([]):
        sys.exit(code)
    logging.shutdown()
    output = Path(os.environ["OUTPUT_DIR"])
    final = json.loads((output / "progress.jsonl").read_text().splitlines()[-1])
    seconds = final["seconds"]
    sizes = [path.stat().st_size for path in output.glob("checkpoints/*/variables.bin")]
    return {
        "blocked": blocked,
        "train": sum(seconds.values()) - seconds["start"] - seconds["export"],
        "megabytes": round(max(sizes) / 1e6, 1),
    }


def table(found: dict[str, Any]) -> str:
    """Return the medians as lines."""
    lines = [
        f"{found['megabytes']:.0f} MB a checkpoint, {found['steps']} steps",
        f"{'':12}{'checkpoints':>12}{'blocked s':>12}{'longest s':>12}{'training s':>12}",
    ]
    for kind in KINDS:
        one = found[kind]
        lines.append(
            f"{kind:12}{one['checkpoints']:12}{one['blocked']:12.3f}{one['longest']:12.3f}"
            f"{one['train_seconds']:12.1f}"
        )
    reached = found["background"]["blocked"] <= GOAL
    lines.append(f"{'reached' if reached else 'MISSED'}: at most {GOAL:g} s a checkpoint")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
