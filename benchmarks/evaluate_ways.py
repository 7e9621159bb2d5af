"""The ways of benchmarks/evaluate.py: each scores the test rows of a folder and prints its times.

    python -m benchmarks.evaluate_ways write PART FOLDER ROWS
    python -m benchmarks.evaluate_ways WAY PART FOLDER
    python -m benchmarks.evaluate_ways memory ROWS

The last line is one JSON object: rows, and the seconds and CPU seconds of the whole work.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

NUMBERS = 30
CLASSES = ["no", "yes"]
SHARDS = 4
_BLOCK = 4096


class _Clock:
    """Measures wall and CPU seconds from now on."""

    def __init__(self) -> None:
        self._start, self._cpu = time.perf_counter(), time.process_time()

    def read(self) -> dict[str, float]:
        """Return the seconds, and the CPU seconds of all threads."""
        return {
            "seconds": time.perf_counter() - self._start,
            "cpu": time.process_time() - self._cpu,
        }


def write(part: str, folder: Path, rows: int) -> None:
    """Write a dataset with a split test, and a model exported as the trainer does."""
    from benchmarks import prepared
    from kfp_tfjob.features.tensorflow_import import load
    from kfp_tfjob.trainer import models, user_model
    from kfp_tfjob.trainer.dataset import Dataset
    from kfp_tfjob.trainer.export import export

    load(gpus=0)
    shape = (10, 10, 5) if part == "mixed" else (NUMBERS, 0, 0)
    prepared.write(folder, 1000, shape[0], 1, *shape[1:])
    schema = json.loads((folder / "schema.json").read_text())
    schema["label"]["classes"] = CLASSES
    schema["schema_digest"] = "s"
    names = [f"test/{shard:05d}.parquet" for shard in range(SHARDS)]
    for shard, name in enumerate(names):
        count = rows * (shard + 1) // SHARDS - rows * shard // SHARDS
        _shard(folder / name, count, shard, shape)
    schema["splits"]["test"] = {"rows": rows, "shards": names}
    statistics = json.loads((folder / "statistics.json").read_text())
    statistics["label"]["counts"] = {"train": {"no": 600, "yes": 400}}
    (folder / "schema.json").write_text(json.dumps(schema))
    (folder / "statistics.json").write_text(json.dumps(statistics))
    if not shape[1]:
        prepared.write_tutorial(folder, "test")  # of the other ways
    dataset = Dataset.load(folder)
    for number in (1, 2):
        model = user_model.build(models.mlp, dataset, {"hidden": [64, 64]})
        export(model, dataset, folder / f"output-{number}", logits=True)


def _shard(path: Path, rows: int, seed: int, shape: tuple[int, int, int]) -> None:
    import pyarrow as pa

    from benchmarks.prepared import write_shard

    random = np.random.default_rng(seed)
    numbers, categories, dates = shape
    kind, share = (np.float64, 0.05) if categories else (np.float32, 0)

    def column(values: np.ndarray, of: pa.DataType) -> pa.Array:
        return pa.array(values, of, mask=random.random(rows) < share)

    values = random.standard_normal((numbers, rows), kind)
    columns = {f"x{at}": column(each, pa.from_numpy_dtype(kind)) for at, each in enumerate(values)}
    for at in range(categories):
        texts = np.array([f"text {number}" for number in range(100)])[random.integers(0, 100, rows)]
        columns[f"c{at}"] = column(texts, pa.string()).dictionary_encode()
    for at in range(dates):
        times = random.integers(0, 1_800_000_000_000_000, rows)
        columns[f"d{at}"] = column(times, pa.timestamp("us", "UTC"))
    labels = (values[0] + random.normal(size=rows) > 0).astype(np.int32)
    columns["y"] = pa.DictionaryArray.from_arrays(pa.array(labels), pa.array(CLASSES))
    write_shard(path, pa.table(columns))


def ours(part: str, folder: Path, champion: bool = False) -> dict[str, float]:
    """Score the rows and judge the model as evaluate does."""
    from kfp_tfjob.components.evaluate import report  # noqa: F401  # no import is in the figures
    from kfp_tfjob.features.schema import Schema
    from kfp_tfjob.features.served_model import ServedModel
    from kfp_tfjob.features.statistics import StatisticsDocument
    from kfp_tfjob.features.tensorflow_import import load
    from kfp_tfjob.judging.model import predictions_of
    from kfp_tfjob.judging.predictions import joined
    from kfp_tfjob.judging.rows import TestData
    from kfp_tfjob.judging.scoring import score
    from kfp_tfjob.judging.slices import Slices

    load(gpus=0)
    schema = Schema.from_bytes((folder / "schema.json").read_bytes())
    statistics = StatisticsDocument.from_bytes((folder / "statistics.json").read_bytes())
    test = schema.splits["test"]
    shards = tuple(folder / name for name in test.shards)
    data = TestData("d", schema, statistics, shards, test.rows)
    model = ServedModel(folder / "output-1" / "model", schema, "the model")

    class Second:
        """The champion, from a folder instead of the store."""

        def __init__(self) -> None:
            self.model = ServedModel(folder / "output-2" / "model", schema, "the champion")
            self.parts: list[Any] = []

        def predict(self, batch: Any, outputs: Any) -> None:
            self.parts.append(predictions_of(schema, batch, self.model.predict(batch.features)))

    other = Second() if champion else None
    clock = _Clock()
    predictions, baseline = score(data, model, other, Slices([], schema))  # type: ignore[arg-type]
    scored = clock.read()
    judge(predictions, baseline, joined(other.parts) if other else None, schema.classes)
    return {"rows": test.rows, "score_cpu": scored["cpu"], **clock.read()}


def judge(predictions: Any, baseline: Any, champion: Any, classes: Sequence[str]) -> None:
    """Compute every metric, decide, and render the report."""
    from kfp_tfjob.components.evaluate import report
    from kfp_tfjob.judging.gate import ChampionResult, decide
    from kfp_tfjob.judging.metrics import Measures
    from kfp_tfjob.judging.verdict_document import build_verdict
    from kfp_tfjob.options.gate import GateOptions
    from kfp_tfjob.registry.champion import Champion
    from kfp_tfjob.registry.verdict_record import EvaluatedModel

    names = list(classes)
    models = {"model": Measures(predictions, names), "baseline": Measures(baseline, names)}
    rival = record = None
    if champion is not None:
        models["champion 1"] = Measures(champion, names)
        rival = ChampionResult("champion 1", measures=models["champion 1"])
        record = Champion(1, 1, "s3://b/v", "r", "w", "s", "d", {}, "s3://b/e")
    decision = decide(GateOptions(), models["model"], models["baseline"], rival)
    judged = EvaluatedModel("m", "s3://b/m", "r", "m", "w", "s3://b/d", "d", "s", {})
    verdict = build_verdict(decision, judged, models, record, rival)
    report.render(verdict, classes, models)
    print(decision.line, verdict.ranking)


def keras_of(folder: Path, size: int) -> dict[str, float]:
    """Score the rows with model.evaluate."""
    import keras
    import tensorflow as tf

    schema = json.loads((folder / "schema.json").read_text())
    test = schema["splits"]["test"]
    model = keras.saving.load_model(folder / "output-1" / "model.keras", compile=False)
    inputs = keras.Input((NUMBERS,))
    outputs = model(inputs)
    binary = outputs.shape[-1] == 1
    probability = outputs if binary else outputs[:, 1:]
    whole = keras.Model(inputs, keras.ops.sigmoid(probability))
    whole.compile(loss="binary_crossentropy", metrics=["accuracy", keras.metrics.AUC()])
    parts = {
        "features": tf.io.FixedLenFeature([NUMBERS], tf.float32),
        "label": tf.io.FixedLenFeature([], tf.int64),
    }

    def parsed(records: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        found = tf.io.parse_example(records, parts)
        return found["features"], found["label"][:, None]

    files = sorted(str(path) for path in folder.glob("tutorial/test-*.tfrecord"))
    records = tf.data.TFRecordDataset(files)
    rows = records.batch(size).map(parsed, tf.data.AUTOTUNE).prefetch(2)
    whole.evaluate(rows.take(2), verbose=0)
    clock = _Clock()
    whole.evaluate(rows, verbose=0)
    return {"rows": test["rows"], **clock.read()}


def tfma(folder: Path) -> dict[str, float]:
    """Score the rows with TensorFlow Model Analysis."""
    import tensorflow_model_analysis as analysis
    from google.protobuf import text_format
    from tensorflow_model_analysis.proto import config_pb2

    schema = json.loads((folder / "schema.json").read_text())
    test = schema["splits"]["test"]
    config = text_format.Parse(
        """
        model_specs { signature_name: "serve_examples" label_key: "label" }
        slicing_specs {}
        metrics_specs { metrics { class_name: "BinaryAccuracy" } metrics { class_name: "AUC" } }
        """,
        config_pb2.EvalConfig(),
    )
    model = _takes_examples(folder)
    shared = analysis.default_eval_shared_model(
        eval_saved_model_path=str(model), eval_config=config, tags=["serve"]
    )
    with tempfile.TemporaryDirectory() as output:
        clock = _Clock()
        analysis.run_model_analysis(
            eval_shared_model=shared,
            eval_config=config,
            data_location=str(folder / "tutorial" / "test-*.tfrecord"),
            output_path=output,
        )
        return {"rows": test["rows"], **clock.read()}


def _takes_examples(folder: Path) -> Path:
    """Save the model with the signature that TFMA needs: serialized examples in, scores out."""
    import tensorflow as tf

    target = folder / "takes-examples"
    loaded = tf.saved_model.load(str(folder / "output-1" / "model"))
    packed = loaded.signatures["serve_packed"]
    parts = {"features": tf.io.FixedLenFeature([NUMBERS], tf.float32)}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "examples")])
    def serve_examples(examples: tf.Tensor) -> dict[str, tf.Tensor]:
        rows = tf.io.parse_example(examples, parts)["features"]
        return {"output": packed(features=rows)["probabilities"][:, 1:]}

    holder = tf.Module()
    holder.loaded = loaded
    tf.saved_model.save(holder, str(target), signatures={"serve_examples": serve_examples})
    return target


def memory(rows: int) -> dict[str, float]:
    """Judge this many random predictions of a model and its champion."""
    from kfp_tfjob.features.tensorflow_import import load
    from kfp_tfjob.judging.predictions import ClassPredictions, joined

    load(gpus=0)  # its memory counts, too
    random, size = np.random.default_rng(1), 65_536
    held: list[list[Any]] = [[], [], []]
    clock = _Clock()
    for done in range(0, rows, size):
        count = min(size, rows - done)
        labels = random.integers(0, 2, count)
        common = random.standard_normal(count, np.float32) + labels
        for parts in held[:2]:
            logit = common + 0.5 * random.standard_normal(count, np.float32)
            score = 1 / (1 + np.exp(-logit))
            parts.append(ClassPredictions.of(labels, np.stack([1 - score, score], axis=1)))
        held[2].append(ClassPredictions.of(labels, np.full((count, 2), 0.5)))
    collected = clock.read()["seconds"]
    model, champion, baseline = map(joined, held)
    judge(model, baseline, champion, CLASSES)
    return {"rows": rows, "collected": collected, **clock.read()}


def main() -> None:
    """Do what the command line says."""
    what, *rest = sys.argv[1:]
    if what == "memory":
        print(json.dumps(memory(int(rest[0]))))
        return
    part, folder = rest[0], Path(rest[1])
    if what == "write":
        write(part, folder, int(rest[2]))
        return
    ways = {
        "ours": lambda: ours(part, folder),
        "champion": lambda: ours(part, folder, champion=True),
        "keras_4096": lambda: keras_of(folder, 4096),
        "keras_32": lambda: keras_of(folder, 32),
        "tfma": lambda: tfma(folder),
    }
    print(json.dumps(ways[what]()))


if __name__ == "__main__":
    main()
