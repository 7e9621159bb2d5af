"""Free text: from a table of messages to the words that a model gets, and their drift."""

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from kfp_tfjob.common.errors import DataError
from kfp_tfjob.components.prepare_data.data_validation import validate
from kfp_tfjob.components.prepare_data.dataset import Prepared
from kfp_tfjob.components.prepare_data.distributions import DistributionsDocument
from kfp_tfjob.components.prepare_data.engine import run
from kfp_tfjob.components.prepare_data.reference import Reference
from kfp_tfjob.components.step import Step
from kfp_tfjob.features.types.words import MOST_BYTES, Words
from kfp_tfjob.options.data_contract import Contract
from kfp_tfjob.serving.request_counts import RequestCounts
from kfp_tfjob.serving.requests_sample import About, RequestsSample
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.uploader import pull
from tests.local.prepared import objects
from tests.local.published import publish_trained_on
from tests.unit.prepared_files import write_table

WORDS = {"spam": "win a prize now हमारा पुरस्कार", "ham": "see you at the office morgen früh"}
COMMON = "please call me if you can we will be there 🙂 again later today with my friends".split()
ROWS = 600


def messages(rows: int = ROWS, seed: int = 1, unknown: float = 0.0) -> dict[str, list[str]]:
    """Return a table whose label depends on the words of a message; some are missing."""
    choose = random.Random(seed)
    table: dict[str, list[str]] = {"message": [], "y": []}
    for row in range(rows):
        label = choose.choice(["spam", "ham"])
        words = [*choose.choices(WORDS[label].split(), k=3), *choose.choices(COMMON, k=6)]
        words = [f"new{row}" if choose.random() < unknown else word for word in words]
        choose.shuffle(words)
        table["message"].append("" if row % 20 == 3 else " ".join(words).capitalize())
        table["y"].append(label)
    return table


@pytest.fixture
def prepared(step: Step, tmp_path: Path) -> Prepared:
    return run(step, str(write_table(tmp_path / "messages.csv", messages())), "y", {})


def test_sentences_become_words(step: Step, prepared: Prepared) -> None:
    (column,) = prepared.schema.encoding.features
    assert isinstance(column, Words)
    vocabulary = {*" ".join([*WORDS.values(), *COMMON]).split()} - {"🙂"}
    assert {*column.vocabulary} == vocabulary and column.length == 9
    found = prepared.statistics.features["message"]
    assert found.kind == "words" and not found.unknown
    assert {(word, name) for word, name, *_ in found.telling} >= {("win", "spam"), ("see", "ham")}
    document = DistributionsDocument.from_bytes(objects(step.store, prepared)["distributions.json"])
    (counts,) = document.columns
    assert counts.gaps["train"] == found.missing
    assert counts.counts["train"] == [prepared.rows["train"] - found.missing, 0, 0, 0, 0, 0]


def test_the_dataset_does_not_depend_on_the_parts(step: Step, tmp_path: Path) -> None:
    table = write_table(tmp_path / "messages.csv", messages(unknown=0.1))
    one = run(step, str(table), "y", {})
    first = objects(step.store, one)
    other = replace(step, layout=Layout(S3Address("test", f"other-{tmp_path.name}")))
    second = objects(other.store, run(other, str(table), "y", {}, part=9_000, block=3_000))
    assert first == second


def test_options_change_the_words_and_the_dataset(step: Step, tmp_path: Path) -> None:
    table = str(write_table(tmp_path / "messages.csv", messages()))
    options = {"words": {"vocabulary": 3, "length": 2}, "types": {"message": "words"}}
    (column,) = run(step, table, "y", options).schema.encoding.features
    assert isinstance(column, Words) and column.length == 2
    assert len(column.vocabulary) == 3 and {*column.vocabulary} <= {*COMMON, "you"}


def test_values_may_have_a_mebibyte(step: Step, tmp_path: Path) -> None:
    table = messages()
    table["message"][7] = "ä " * (MOST_BYTES // 3 - 1) + "end"
    done = run(step, str(write_table(tmp_path / "a.csv", table)), "y", {})
    assert done.statistics.bad_rows.dropped == 0
    table["message"][8] = "ä" * (MOST_BYTES // 2 + 1)
    path = str(write_table(tmp_path / "b.csv", table))
    with pytest.raises(DataError, match="1 MiB"):
        run(step, path, "y", {"types": {"message": "words"}})
    dropped = run(step, path, "y", {"types": {"message": "words"}, "on_bad_row": "drop"})
    assert dropped.statistics.bad_rows.rules == {"large": 1} or dropped.statistics.bad_rows.dropped


@pytest.mark.parametrize("value", ["hello", "hello hello hello", "🙂 🙂 🙂"])
def test_a_column_with_one_word_is_refused_and_the_remedies_work(
    step: Step, tmp_path: Path, value: str
) -> None:
    table: dict[str, Sequence[Any]] = {"message": [value] * 100, "n": [*range(100)]}
    path = str(write_table(tmp_path / "a.csv", {**table, "y": ["u", "v"] * 50}))
    with pytest.raises(DataError) as caught:
        run(step, path, "y", {"types": {"message": "words"}})
    (problem,) = caught.value.as_problems
    assert 'data_options.drop=["message"]' in problem.fix
    assert 'data_options.types={"message": "category"}' in problem.fix
    for options in ({"drop": ["message"]}, {"types": {"message": "category"}}):
        assert run(step, path, "y", options).rows["train"]


def test_drift_is_the_share_of_unknown_words(step: Step, prepared: Prepared) -> None:
    document = DistributionsDocument.from_bytes(objects(step.store, prepared)["distributions.json"])
    schema, statistics = prepared.schema, prepared.statistics
    training = Reference("m", 1, "r", prepared.dataset_digest, schema, statistics, document)
    now = datetime.now(UTC)

    def drift(unknown: float) -> float:
        table = messages(300, 7, unknown)
        texts = pa.array([text for text in table["message"] if text], pa.string())
        rows = len(texts)
        about = About("m", 1, 1, schema.schema_digest, now.isoformat(), now.isoformat(), rows)
        times = pa.array([now] * rows, pa.timestamp("us", "UTC"))
        counts = RequestCounts(training, Contract())
        counts.add(
            RequestsSample(about, {"message": texts}, times),
            now - timedelta(minutes=1),
            now + timedelta(minutes=1),
        )
        champion: Any = type("Champion", (), {"version": 1, "run_id": "r"})
        (column,) = counts.result("m", champion, now, now).columns
        assert not counts.bad_rows and column.kind == "words"
        return column.psi

    assert drift(0.0) < 0.02 < 0.2 < drift(0.3)


def test_the_contract_counts_words_that_the_champion_did_not_know(
    step: Step, prepared: Prepared, tmp_path: Path
) -> None:
    publish_trained_on(step.store, step.layout, "mail", prepared)

    def psi(seed: int, translate: bool) -> float:
        table = messages(seed=seed)
        if translate:  # each word of the other language is as frequent as in this one
            table["message"] = [re.sub(r"\w+", r"\g<0>x", text) for text in table["message"]]
        done = run(step, str(write_table(tmp_path / f"{seed}.csv", table)), "y", {})
        comparison = validate(step, done, "mail", {}).comparison
        assert comparison is not None
        return comparison.drift["message"].psi

    assert psi(2, translate=False) < 0.05 and psi(3, translate=True) > 1


@pytest.fixture
def dataset(step: Step, prepared: Prepared, tmp_path: Path) -> Iterator[Any]:
    from kfp_tfjob.trainer.dataset import Dataset

    pull(step.store, S3Address.parse(prepared.dataset_uri), tmp_path / "data")
    yield Dataset.load(tmp_path / "data")


def test_a_model_gets_the_mean_of_the_embeddings(dataset: Any) -> None:
    import keras

    (column,) = dataset.columns
    assert (column.kind, column.start, column.width) == ("words", 0, 9)
    vocabulary = dataset.schema["coding"][0]["vocabulary"]
    assert column.size == 2 + len(vocabulary)
    example = dataset.example(64)
    assert example.shape == (64, 9) and example.max() < column.size and example.min() == 0
    assert (np.diff((example > 0).astype(int), axis=1) <= 0).all()  # none after the last word
    inputs = keras.Input(dataset.input_shape)
    model = keras.Model(inputs, dataset.encode(inputs))
    (table,) = model.weights
    table.assign(np.random.default_rng(2).normal(size=table.shape))
    vectors = table.numpy()
    expected = [vectors[row[row > 0]].mean(0) for row in example.astype(int) if row.any()]
    found = model.predict(example, verbose=0)
    np.testing.assert_allclose(found[example.any(axis=1)], expected, rtol=1e-5, atol=1e-6)
    assert not found[~example.any(axis=1)].any()


def test_the_built_in_model_learns_and_serves_what_it_learned(dataset: Any, tmp_path: Path) -> None:
    import keras
    import tensorflow as tf

    from kfp_tfjob.trainer.export import export
    from kfp_tfjob.trainer.models import mlp
    from kfp_tfjob.trainer.rows import Rows

    keras.utils.set_random_seed(1)
    model = mlp(dataset)
    rows = Rows(dataset, "train")
    model.fit(*rows.take(np.arange(len(rows))), batch_size=32, epochs=15, verbose=0)
    export(model, dataset, tmp_path / "out", logits=True)
    assert keras.models.load_model(tmp_path / "out/model.keras").count_params()
    serve = tf.saved_model.load(str(tmp_path / "out/model")).signatures["serve"]
    table = messages(400, 9, 0.05)
    served = serve(message=tf.constant(table["message"]))["class"].numpy()
    right = served == np.array([name.encode() for name in table["y"]])
    assert right[[bool(text) for text in table["message"]]].mean() > 0.9
    texts = pa.table({"message": pa.array([text or None for text in table["message"]])})
    from kfp_tfjob.trainer.packing import Packing

    (packed,) = Packing(dataset.coding).pack(texts)
    trained = tf.nn.softmax(model(packed, training=False))
    again = serve(message=tf.constant(table["message"]))["probabilities"]
    np.testing.assert_array_equal(trained.numpy(), again.numpy())
