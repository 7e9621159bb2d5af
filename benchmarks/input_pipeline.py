"""Measures records per second: the trainer's input compared with common tutorials.

    python -m benchmarks.input_pipeline [--quick]

The same rows are read to the end, in batches of 256, shuffled:

    ours       the input of the trainer's loop, from a prepared dataset
    tutorial   TFRecordDataset.map(parse_single_example).shuffle(10000).batch(256)
    tuned      the same with num_parallel_calls=AUTOTUNE and prefetch

The last two read TFRecord files, which the benchmark writes. The table `mixed` has 10 numbers, 10
categories and 5 dates with 5% missing values. There, ours also applies the vocabularies, fills
missing values and computes date parts; the others only parse.

Every run is a new process that reads one epoch to warm up before the measurement. The three take
turns, and the results are medians. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks import prepared

BATCH = 256
GOAL = 8.0  # times the records per second of `tutorial`
KINDS = ("ours", "tutorial", "tuned")
# Name: columns of numbers, categories and dates, and rows. `images` have 28 x 28 pixels.
DATA = {
    "table": ((16, 0, 0), 200_000),
    "images": ((784, 0, 0), 60_000),
    "mixed": ((10, 10, 5), 200_000),
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rows and repeats")
    parser.add_argument("--measure", nargs=2, metavar=("KIND", "FOLDER"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        kind, folder = arguments.measure
        print(json.dumps(measure(kind, Path(folder))))
        return
    repeats, share = (1, 10) if arguments.quick else (5, 1)
    result: dict[str, Any] = {"benchmark": "input_pipeline", "goal": GOAL}
    with tempfile.TemporaryDirectory() as name:
        for data, ((features, codes, dates), rows) in DATA.items():
            folder = Path(name) / data
            prepared.write(folder, rows // share, features, codes=codes, dates=dates)
            prepared.write_tutorial(folder, "train")
            result[data] = compare(folder, repeats)
            title = f"{data}: {features + codes + dates} columns, {rows // share} rows"
            print(table(title, result[data]))
    print(json.dumps(result))


def compare(folder: Path, repeats: int) -> dict[str, Any]:
    """Let the three take turns; return the medians and the ratios of ours to the others."""
    runs: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
    for _ in range(repeats):
        for kind in KINDS:
            line = [sys.executable, "-m", "benchmarks.input_pipeline", "--measure", kind, folder]
            done = subprocess.run(line, capture_output=True, text=True, check=True)
            runs[kind].append(json.loads(done.stdout.splitlines()[-1]))
    found: dict[str, Any] = {
        kind: {name: statistics.median(run[name] for run in of) for name in of[0]}
        for kind, of in runs.items()
    }
    for name in ("per_second", "per_cpu_second"):
        for peer in KINDS[1:]:
            found[f"{name}_ratio_to_{peer}"] = round(found["ours"][name] / found[peer][name], 2)
    return found


def table(title: str, found: dict[str, Any]) -> str:
    """Return the medians as lines."""
    lines = [f"\n{title}", f"{'':10}{'records/s':>12}{'per CPU-s':>12}{'ours is':>12}"]
    for kind in KINDS:
        ratio = found.get(f"per_second_ratio_to_{kind}")
        times = f"{ratio:.1f} x" if ratio else ""
        speed, cpu = found[kind]["per_second"], found[kind]["per_cpu_second"]
        lines.append(f"{kind:10}{speed:12,.0f}{cpu:12,.0f}{times:>12}")
    reached = found["per_second_ratio_to_tutorial"] >= GOAL
    lines.append(
        f"{'reached' if reached else 'MISSED'}: {GOAL:g} x the tutorial's records per second"
    )
    return "\n".join(lines)


def measure(kind: str, folder: Path) -> dict[str, float]:
    """Read a warm-up epoch, then a measured one; return records per second and CPU second."""
    from kfp_tfjob.features.tensorflow_import import load

    load(0)
    from kfp_tfjob.trainer.dataset import Dataset

    dataset = Dataset.load(folder)
    batches = iter(_ours(dataset) if kind == "ours" else _tutorial(dataset, kind == "tuned"))
    steps = dataset.rows["train"] // BATCH
    for _ in range(steps):
        next(batches)
    start, cpu = time.perf_counter(), _cpu_seconds()
    for _ in range(steps):
        next(batches)
    wall, cpu = time.perf_counter() - start, _cpu_seconds() - cpu
    return {"per_second": steps * BATCH / wall, "per_cpu_second": steps * BATCH / cpu}


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _ours(dataset: Any) -> Iterable[Any]:
    import tensorflow as tf

    from kfp_tfjob.features.records import train_slices
    from kfp_tfjob.trainer.inputs import distribute, open_rows

    opened = open_rows(dataset, "train")
    return distribute(
        tf.distribute.get_strategy(),
        dataset,
        opened,
        lambda: train_slices(len(opened), BATCH, 1, (0, 0), range(1), 1),
        BATCH,
    )


def _tutorial(dataset: Any, tuned: bool) -> Iterable[Any]:
    import tensorflow as tf

    coding = dataset.coding
    floats, codes, dates = coding.lengths if coding else (dataset.num_features, 0, 0)
    spec = {
        "features": tf.io.FixedLenFeature([floats], tf.float32),
        "label": tf.io.FixedLenFeature([], tf.int64),
    }
    for name, length in (("codes", codes), ("dates", dates)):
        if length:
            spec[name] = tf.io.FixedLenFeature([length], tf.int64)
    calls = tf.data.AUTOTUNE if tuned else None
    files = sorted(str(path) for path in dataset.folder.glob("tutorial/train-*.tfrecord"))
    batches = (
        tf.data.TFRecordDataset(files)
        .map(lambda record: tf.io.parse_single_example(record, spec), num_parallel_calls=calls)
        .shuffle(10_000)
        .batch(BATCH, drop_remainder=True)
        .repeat()
    )
    return batches.prefetch(tf.data.AUTOTUNE) if tuned else batches


if __name__ == "__main__":
    main()
