"""Measures weak scaling: two replicas on one core each, compared with one replica.

Every replica has 128 rows per step, so two replicas have twice the batch. Efficiency is the step
time of one replica divided by that of two. A core is slower when its neighbor is busy. The sum over
replicas does not cause this loss, so two independent replicas measure it. All use the trainer's
records, batches and step, in new processes that take turns.

    python -m benchmarks.weak_scaling [--quick]

Prints a table and, as the last line, one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import tempfile
from pathlib import Path

from benchmarks import prepared
from benchmarks.training_step import FEATURES, MODELS, ROWS, TURNS, trainer_steps
from benchmarks.turns import Player, Turn, cores, play
from kfp_tfjob.supervisor.tf_config import Topology

ROWS_OF_A_REPLICA, GOAL = 128, 0.85  # for the CNN


def replica(folder: Path, name: str, steps: int) -> None:
    """Take turns as the replica that TF_CONFIG describes."""
    size = Topology.read(os.environ).size
    # Every replica has its own core, as in a pod of its own; none shares this one.
    run = trainer_steps(folder, name, ROWS_OF_A_REPLICA * size)
    play(lambda: run(steps))


def _players(folder: Path, name: str, steps: int) -> dict[str, list[Player]]:
    arguments = ["--replica", "--model", name, "--steps", str(steps), str(folder)]
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    hosts = [f"127.0.0.1:{item.getsockname()[1]}" for item in sockets]
    for item in sockets:
        item.close()
    cluster = {"chief": hosts[:1], "worker": hosts[1:]}
    tasks = [{"type": kind, "index": 0} for kind in cluster]
    alone = [Player("weak_scaling", arguments, [core]) for core in cores(2)]
    pair = [
        Player(
            "weak_scaling",
            arguments,
            [core],
            {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})},
        )
        for core, task in zip(cores(2), tasks, strict=True)
    ]
    return {"one": alone[:1], "strangers": alone, "two": pair}


def compare(folder: Path, name: str, steps: int, turns: int) -> dict[str, float]:
    """Let one, two strangers and two replicas take turns; return medians."""
    players = _players(folder, name, steps)
    taken: dict[str, list[Turn]] = {way: [] for way in players}
    try:
        for number in range(turns + 2):  # two warm-up turns
            for way, together in players.items():
                for player in together:
                    player.go()
                slowest = max((player.done() for player in together), key=lambda turn: turn.wall)
                if number >= 2:
                    taken[way].append(slowest)
    finally:
        for player in (*players["strangers"], *players["two"]):
            player.end()
    result = {
        f"{way}_ms": 1000 * statistics.median(turn.wall for turn in taken[way]) / steps
        for way in taken
    }
    for key, way in (("efficiency", "one"), ("efficiency_beside_strangers", "strangers")):
        pairs = zip(taken[way], taken["two"], strict=True)
        result[key] = statistics.median(less.wall / more.wall for less, more in pairs)
    cpu = {way: statistics.median(turn.cpu for turn in taken[way]) for way in taken}
    result["cpu_of_a_replica"] = cpu["two"] / cpu["one"]
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few turns, as a trial")
    parser.add_argument("--replica", action="store_true", help="run one of the replicas")
    parser.add_argument("--model", default="cnn")
    parser.add_argument("--steps", type=int)
    parser.add_argument("folder", nargs="?", type=Path)
    given = parser.parse_args()
    if given.replica:
        replica(given.folder, given.model, given.steps)
    result = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = prepared.write(Path(temporary) / "data", ROWS, FEATURES)
        for name, steps in MODELS.items():
            result[name] = compare(
                folder, name, steps // 10 if given.quick else steps, TURNS[given.quick]
            )
    print("\n## Weak scaling, 128 rows a replica, one core each\n")
    print("| | one, ms/step | two strangers | two replicas | efficiency | beside strangers | CPU |")
    print("|---|---|---|---|---|---|---|")
    for name, row in result.items():
        print(f"| {name} | " + " | ".join(f"{value:.2f}" for value in row.values()) + " |")
    value = result["cnn"]["efficiency"]
    print(f"\n{'reached' if value >= GOAL else 'MISSED '} cnn: {value:.3f} (goal ≥ {GOAL})")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
