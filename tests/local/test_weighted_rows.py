"""A column of weights, from the table to the loss: a row of weight 2 is the same row twice."""

import io
import random
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from kfp_tfjob.common.errors import DataError
from kfp_tfjob.components.prepare_data.data_validation import Validation
from kfp_tfjob.components.prepare_data.dataset import Prepared
from kfp_tfjob.components.prepare_data.engine import run
from kfp_tfjob.components.prepare_data.report import render
from kfp_tfjob.components.step import Step
from kfp_tfjob.features.records import evaluation_slices
from kfp_tfjob.features.schema import SchemaWeight
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.trainer.dataset import Dataset
from kfp_tfjob.trainer.inputs import distribute
from kfp_tfjob.trainer.replicas import Replicas
from kfp_tfjob.trainer.rows import Rows
from kfp_tfjob.trainer.train_step import TrainSteps
from kfp_tfjob.uploader import pull

ROWS = 400


def tables(label: str) -> tuple[str, str]:
    """Return a CSV with whole weights, and one that repeats each row as often as its weight."""
    choose = random.Random(3)
    weighted, repeated = ["a,w,b,c,y"], ["a,b,c,y"]
    for i in range(ROWS):
        a, b, c = f"{choose.gauss(0, 1):.4f}", f"{i % 7}", choose.choice(["red", "blue", ""])
        y = choose.choice("uv") if label == "classes" else f"{choose.gauss(3, 2):.4f}"
        weight = choose.choice([0, 1, 1, 2, 3])
        weighted.append(f"{a},{weight},{b},{c},{y}")
        repeated += [f"{a},{b},{c},{y}"] * weight
    return "\n".join(weighted) + "\n", "\n".join(repeated) + "\n"


def prepared(step: Step, folder: Path, text: str, **options: Any) -> tuple[Prepared, Dataset]:
    folder.mkdir()
    (folder / "t.csv").write_text(text)
    done = run(step, str(folder / "t.csv"), "y", options)
    pull(step.store, S3Address.parse(done.dataset_uri), folder / "data")
    return done, Dataset.load(folder / "data")


def loss_of(dataset: Dataset, split: str, batch: int) -> float:
    """Return the loss of a split as the trainer evaluates it, for a model of fixed weights."""
    is_class = dataset.task == "classification"
    layer = keras.layers.Dense(2 if is_class else 1)
    model = keras.Sequential([keras.Input((dataset.num_features,)), layer])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True) if is_class else "mse"
    model.compile("sgd", loss)
    shape = layer.kernel.shape
    layer.kernel.assign(np.linspace(-0.1, 0.2, shape[0] * shape[1]).reshape(shape))
    opened = Rows(dataset, split)
    slices = evaluation_slices(len(opened), batch, 1)
    strategy = tf.distribute.get_strategy()
    batches = distribute(
        strategy, dataset, opened, lambda: [rows for (rows,) in slices], None, split=split
    )
    steps = TrainSteps(model, Replicas(strategy), batch)
    steps.evaluate(batches, len(slices))
    return steps.results()["loss"]


@pytest.mark.parametrize("label", ["classes", "numbers"])
def test_a_row_of_weight_2_is_the_same_row_twice(step: Step, tmp_path: Path, label: str) -> None:
    with_weights, with_rows = tables(label)
    # The counts that decide about the codes of a category are those of rows.
    done, weighted = prepared(step, tmp_path / "w", with_weights, weight="w", drop=["c"])
    twice, repeated = prepared(step, tmp_path / "r", with_rows, drop=["c"])
    assert weighted.feature_names == repeated.feature_names
    for split in ("train", "validation"):
        sums = done.statistics.weight.splits[split]
        assert Rows(weighted, split).weights.sum() == repeated.rows[split]
        assert sums.mean * weighted.rows[split] == pytest.approx(repeated.rows[split])
        assert (sums.min, sums.max) == (0, 3)
        # What the baseline of evaluate predicts is that of the repeated rows.
        known, own = twice.statistics.label, sums.label
        if label == "classes":
            assert own.counts == pytest.approx(known.counts[split])
        else:
            assert own.mean == pytest.approx(getattr(known, split).mean, rel=1e-5)
        expected = loss_of(repeated, split, 50)
        for batch in (50, 7):
            assert loss_of(weighted, split, batch) == pytest.approx(expected, rel=1e-5)


def test_weights_are_stored_but_are_no_feature(step: Step, tmp_path: Path) -> None:
    with_weights, _ = tables("classes")
    done, dataset = prepared(step, tmp_path / "w", with_weights, weight="w")
    plain, _ = prepared(step, tmp_path / "p", with_weights, drop=["w"])
    assert done.schema.weight == SchemaWeight("w") and plain.schema.weight is None
    assert done.schema.schema_digest == plain.schema.schema_digest
    assert done.rows == plain.rows and done.dataset_digest != plain.dataset_digest
    assert done.schema.names == ["a", "b", "c"]
    lines = [line.split(",") for line in with_weights.splitlines()[1:]]
    known = {line[0]: float(line[1]) for line in lines}
    found = {}
    for name in done.schema.splits["train"].shards:
        data = step.store.read(S3Address.parse(done.dataset_uri) / name)
        table = pq.read_table(io.BytesIO(data))
        found |= dict(zip(table["a"].to_pylist(), table["w"].to_pylist(), strict=True))
    assert list(found.values()) == Rows(dataset, "train").weights.tolist()
    assert all(known[f"{a:.4f}"] == weight for a, weight in found.items())
    page = render(done.schema, done.statistics, False, Validation())
    assert "<h2>Weights</h2>" in page
    assert "<h2>Weights</h2>" not in render(plain.schema, plain.statistics, False, Validation())


def test_bad_weights_are_bad_rows(step: Step, tmp_path: Path) -> None:
    lines = tables("classes")[0].splitlines()
    for at, weight in ((5, "-1"), (9, ""), (200, "many"), (300, "inf")):
        cells = lines[at].split(",")
        lines[at] = ",".join([cells[0], weight, *cells[2:]])
    with pytest.raises(DataError) as caught:
        prepared(step, tmp_path / "bad", "\n".join(lines), weight="w")
    said = str(caught.value)
    for words in ("a weight below 0", "no value", "not a number", "not a finite"):
        assert words in said
    done, _ = prepared(step, tmp_path / "dropped", "\n".join(lines), weight="w", on_bad_row="drop")
    assert done.statistics.bad_rows.dropped == 4
    nothing = [f"{i / 7},0,{'uv'[i % 2]}" for i in range(100)]
    with pytest.raises(DataError, match="'w'.*train, validation, test"):
        prepared(step, tmp_path / "none", "\n".join(["a,w,y", *nothing]), weight="w")
