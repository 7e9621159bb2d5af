"""evaluate and publish on the real store with real SavedModels: who becomes champion."""

import json
from collections.abc import Callable
from functools import partial
from html import unescape
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from kfp import dsl

from kfp_tfjob.common.errors import ConfigurationError, DataError
from kfp_tfjob.components.publish import engine as publish
from kfp_tfjob.components.publish import manual_promotion
from kfp_tfjob.components.publish.component import publish as publish_component
from kfp_tfjob.components.step import Step
from kfp_tfjob.features.served_model import EXPORT_AGAIN
from kfp_tfjob.options.gate import DEFAULT_GATE
from kfp_tfjob.registry.chain import verify_champion
from kfp_tfjob.registry.champion import read_champion
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import CODEC_VERSION, SUSPICIOUS, Layout
from kfp_tfjob.storage.store import Store
from kfp_tfjob.uploader import pull, push
from tests.parquet_split import write_split
from tests.problems import problem_of

Export = Callable[[np.ndarray, Path], None]
FEATURES, CLASSES, ROWS = 6, ["cat", "dog", "<b>owl</b>"], 900
MODEL = "pets"


@pytest.fixture(scope="module")
def rows() -> SimpleNamespace:
    """Rows whose classes follow from a linear rule with noise."""
    rng = np.random.default_rng(11)
    features = rng.normal(size=(ROWS, FEATURES)).astype(np.float32)
    weights = rng.normal(size=(FEATURES, len(CLASSES))).astype(np.float32)
    logits = features @ weights + 0.3 * rng.gumbel(size=(ROWS, len(CLASSES)))
    return SimpleNamespace(
        features=features, weights=weights, labels=logits.argmax(axis=1), values=logits[:, 0]
    )


class Bench:
    """One output_uri with a dataset and as many runs as a test needs."""

    def __init__(self, store: Store, base: S3Address, folder: Path, rows: SimpleNamespace) -> None:
        self.store, self.layout, self.folder, self.rows = store, Layout(base), folder, rows
        self.dataset = self.layout.dataset("d1")
        self.write_dataset()

    def write_dataset(
        self,
        digest: str = "d1",
        schema_digest: str = "s1",
        task: str = "",
        trained_on: bool = False,
        known: int | None = None,
        classes: list[str] = CLASSES,
    ) -> None:
        """Write a dataset in two test shards.

        Args:
            trained_on: Whether train has one of the shards, too.
            known: How many test rows are also in train.
        """
        regression = task == "regression"
        labels = self.rows.values if regression else self.rows.labels
        folder = self.folder / f"dataset-{digest}"
        columns = {f"column {i}": self.rows.features[:, i] for i in range(FEATURES)}
        names = None if regression else CLASSES
        splits = {"test": write_split(folder, "test", columns, labels, "species", names, shards=2)}
        if trained_on:
            half = {name: column[ROWS // 2 :] for name, column in columns.items()}
            splits["train"] = write_split(
                folder, "train", half, labels[ROWS // 2 :], "species", names
            )
        if known is not None:
            splits["train"] = {"rows": 4 * ROWS, "shards": []}
        schema = {
            "format": "kfp-tfjob/schema/1",
            "task": task or "classification",
            "features": [{"name": f"column {i}", "type": "float32"} for i in range(FEATURES)],
            "label": {"name": "species", "classes": None if regression else classes},
            "splits": splits,
            "codec": {"version": CODEC_VERSION},
            "schema_digest": schema_digest,
        }
        counts = dict(zip(CLASSES, np.bincount(self.rows.labels).tolist(), strict=True))
        mean = {"train": {"mean": float(labels.mean()), "std": 1.0}}
        label = mean if regression else {"counts": {"train": counts}}
        (folder / "schema.json").write_text(json.dumps(schema))
        statistics: dict[str, Any] = {"label": label}
        if known is not None:
            statistics["also_in_train"] = {"validation": 0, "test": known}
        (folder / "statistics.json").write_text(json.dumps(statistics))
        details = {"schema_digest": schema_digest}
        push(self.store, folder, self.layout.dataset(digest), "dataset", details=details)

    def step(self, run_id: str) -> Step:
        return Step("test", run_id, self.layout, self.store)

    def model_uri(self, run_id: str) -> str:
        """Return what sync_output would hand on."""
        return str(self.layout.run(run_id).output / "model")

    def train(self, run_id: str, noise: float, export: Export) -> None:
        """Leave the output of a run: the right weights with some noise."""
        rng = np.random.default_rng(len(run_id))
        weights = self.rows.weights + noise * rng.normal(size=self.rows.weights.shape)
        folder = self.folder / run_id
        export(weights.astype(np.float32), folder / "output" / "model")
        (folder / "output" / "model.keras").write_bytes(b"for training on")
        push(self.store, folder, self.layout.run(run_id).base, "output", run_id, 1)

    def evaluate(self, run_id: str, digest: str = "d1", **gate: Any) -> Any:
        """Judge a run; returns the evaluation and the verdict."""
        from kfp_tfjob.components.evaluate import engine

        dataset = str(self.layout.dataset(digest))
        options = DEFAULT_GATE | gate
        done = engine.run(self.step(run_id), dataset, MODEL, self.model_uri(run_id), options)
        verdict = json.loads(self.store.read(S3Address.parse(done.verdict_uri)))
        return done, verdict

    def judge(
        self, run_id: str, noise: float, export: Export, digest: str = "d1", **gate: Any
    ) -> Any:
        """Train and judge a run; returns the evaluation and the verdict."""
        self.train(run_id, noise, export)
        return self.evaluate(run_id, digest, **gate)

    def bless(self, run_id: str, noise: float, export: Export, **gate: Any) -> Any:
        """Train and judge a run that has to be blessed; returns the verdict."""
        done, verdict = self.judge(run_id, noise, export, **gate)
        assert done.blessed, verdict["reasons"]
        return verdict

    def crown(self, run_id: str, noise: float) -> publish.Published:
        """Train, judge and publish the first champion."""
        self.bless(run_id, noise, packed)
        return self.publish(run_id)

    def publish(self, run_id: str, judged: str = "") -> publish.Published:
        """Publish a run by its verdict, or by that of another."""
        verdict, model = self.layout.run(judged or run_id).verdict, self.model_uri(run_id)
        return publish.run(self.step(run_id), MODEL, model, str(verdict), str(self.dataset))

    def publish_as_component(self, run_id: str) -> dsl.Model:
        """Publish a run as Kubeflow Pipelines does; returns the artifact."""
        made = {
            "published_model": dsl.Model(uri=str(self.folder / "card")),
            "model_card": dsl.Markdown(uri=str(self.folder / "model_card")),
            "publish_summary": dsl.Markdown(uri=str(self.folder / "summary")),
        }
        where = {"output_uri": str(self.layout.root), "dataset_uri": str(self.dataset)}
        where |= {"run_id": run_id, "model_name": MODEL, "model_uri": self.model_uri(run_id)}
        publish_component.python_func(**where, **made)
        return made["published_model"]


@pytest.fixture
def bench(store: Store, base: S3Address, tmp_path: Path, rows: SimpleNamespace) -> Bench:
    return Bench(store, base, tmp_path, rows)


def exporter(outputs: Callable[[Any, Any], dict[str, Any]]) -> Export:
    """Return an export with the signature serve_packed; `outputs` takes rows and weights."""

    def export(weights: np.ndarray, folder: Path) -> None:
        import tensorflow as tf

        module = tf.Module()
        module.weights = tf.Variable(weights)

        @tf.function(input_signature=[tf.TensorSpec([None, FEATURES], tf.float32, "features")])
        def serve(features: tf.Tensor) -> dict[str, tf.Tensor]:
            return outputs(features, module.weights)

        tf.saved_model.save(module, str(folder), signatures={"serve_packed": serve})

    return export


def classes(scores: Any) -> dict[str, Any]:
    """Return what the trainer exports: probabilities, and a text output beside."""
    import tensorflow as tf

    names = tf.gather(tf.constant(CLASSES), tf.argmax(scores, axis=1))
    return {"probabilities": tf.nn.softmax(scores), "class": names}


packed = exporter(lambda features, weights: classes(features @ weights))
# The same weights with another graph, which is less sure of its classes.
cooler = exporter(lambda features, weights: classes(features @ weights / 2))


def keras_model(weights: np.ndarray, folder: Path, activation: str | None = "softmax") -> None:
    """Export as a user does with Keras: one input, one output, no name of ours."""
    import keras

    layers = [keras.Input((FEATURES,)), keras.layers.Dense(len(CLASSES), activation, False)]
    model = keras.Sequential(layers)
    model.set_weights([weights])
    model.export(folder, verbose=False)


# A regression, with an output of a name of its own.
value = exporter(lambda features, weights: {"value": features @ weights[:, :1]})


def test_the_life_of_a_model(bench: Bench) -> None:
    # The first run beats the baseline and is published.
    done, verdict = bench.judge("r1", 0.6, packed)
    assert done.blessed, verdict["reasons"]
    assert verdict["champion"] is None
    first = bench.publish("r1")
    assert first.version == 1
    assert "`r1`" in first.card
    champion = read_champion(bench.store, bench.layout, MODEL)
    assert champion is not None
    assert (champion.number, champion.version, champion.run_id) == (1, 1, "r1")
    assert champion.metrics["accuracy"] == verdict["metrics"]["accuracy"]

    # Everything of the version is proven by its manifest.
    folder = bench.folder / "version"
    manifest = pull(bench.store, S3Address.parse(first.version_uri), folder)
    keys = {item.key for item in manifest.objects}
    assert {"README.md", "model.keras", "schema.json", "statistics.json", "verdict.json"} < keys
    assert "model/saved_model.pb" in keys and "claim.json" not in keys
    assert manifest.kind == "model" and manifest.run_id == "r1"
    assert manifest.details["exported_weights_sha256"] == verdict["exported_weights_sha256"]

    # The artifact has what proves the version and what leads back to the training and the data.
    import tensorflow as tf

    artifact = bench.publish_as_component("r1")
    trained = bench.store.read_manifest(bench.layout.run("r1").manifest)
    assert Path(artifact.path).read_text() == first.card
    assert artifact.metadata == {
        **{"run_id": "r1", "step": "publish", "model_name": MODEL, "uri": first.version_uri},
        **{"version": 1, "outcome": "published", "champion": True, "reason": champion.why},
        **{"framework": "tensorflow", "framework_version": tf.__version__},
        **{"metrics": dict(champion.metrics), "size_bytes": manifest.size},
        "manifest_sha256": champion.manifest_sha256,
        "exported_weights_sha256": verdict["exported_weights_sha256"],
        "trained_manifest_sha256": trained.digest,
        "dataset_digest": verdict["dataset_digest"],
        "schema_digest": verdict["schema_digest"],
        "verdict_uri": str(bench.layout.run("r1").verdict),
        "champion_uri": first.champion_uri,
    }

    # A retry of publish changes nothing, and nor does a run that is continued.
    assert bench.publish("r1") == first
    again, stays = bench.evaluate("r1")
    assert again.blessed and stays == verdict
    assert again.html == done.html == bench.store.read(bench.layout.run("r1").report).decode()
    assert bench.publish("r1") == first
    assert bench.store.numbers(bench.layout.model(MODEL).versions) == [1]

    # The same weights in another run are the same model.
    done, verdict = bench.judge("r2", 0.6, packed)
    assert not done.blessed
    (reason,) = verdict["reasons"]
    assert reason.endswith("champion 1")
    with pytest.raises(ConfigurationError, match="r2"):
        bench.publish("r2")

    # With another graph they are not.
    done, other = bench.judge("r3", 0.6, cooler, primary_metric="log_loss", mode="point")
    assert other["exported_weights_sha256"] == verdict["exported_weights_sha256"]
    assert other["champion"]["compared"] and "same_model" not in {
        check["name"] for check in other["checks"]
    }
    assert other["metrics"]["log_loss"] != other["champion"]["metrics"]["log_loss"]

    # A better one, exported by Keras, is judged on the same rows and promoted.
    verdict = bench.bless("better", 0.0, keras_model)
    assert verdict["champion"]["compared"] and verdict["champion"]["version"] == 1
    assert verdict["champion"]["metrics"] == pytest.approx(champion.metrics, abs=1e-6)
    assert bench.publish("better").version == 2
    copy = json.loads(bench.store.read(bench.layout.model(MODEL).champion_copy))
    assert copy["version"] == 2
    assert bench.publish_as_component("better").metadata["champion"] is True
    assert bench.publish_as_component("r1").metadata["champion"] is False  # a late retry

    # A worse one is refused, and so is a verdict of another run.
    done, verdict = bench.judge("worse!", 2.0, packed)
    assert not done.blessed
    assert "champion 2" in verdict["reasons"][0]
    with pytest.raises(ConfigurationError, match="model_uri"):
        bench.publish("worse!", judged="better")

    # The report stands alone and escapes what it shows.
    html = bench.store.read(bench.layout.run("worse!").evaluation / "report.html").decode()
    assert html == done.html
    assert len(html) < 1_000_000
    assert "<b>owl" not in html and "&lt;b&gt;owl" in html
    assert "http:" not in html and "https:" not in html and "<script" not in html


def test_metrics_of_ones_own(bench: Bench) -> None:
    code = bench.layout.root / "code" / "mine.py"
    bench.store.write(
        code,
        b"def cost(labels, predictions, features):\n"
        b"    wrong = predictions.argmax(axis=1) != labels\n"
        b"    return {'cost': wrong * 2.5, 'columns': len(features)}\n",
    )
    bench.train("r1", 0.5, packed)
    gate = {
        "evaluator": f"{code}:cost",
        "primary_metric": "own/cost",
        "direction": "minimize",
        "thresholds": {"own/cost": {"max": 2}, "own/columns": {"max": 9}},
    }
    done, verdict = bench.evaluate("r1", **gate)
    assert done.blessed, verdict["reasons"]
    share = 1 - verdict["metrics"]["accuracy"]
    cost = verdict["metrics"]["own/cost"]
    assert cost == pytest.approx(2.5 * share) == done.metrics["own/cost"]
    (threshold,) = [it for it in verdict["checks"] if it["threshold"] == {"max": 2}]
    assert threshold["interval"] == verdict["intervals"]["own/cost"]
    assert threshold["interval"][0] < cost < threshold["interval"][1]
    assert verdict["baseline"]["own/cost"] > cost
    assert verdict["metrics"]["own/columns"] == FEATURES
    assert len(verdict["evaluator_digest"]) == 64
    bench.publish("r1")
    done, verdict = bench.judge("next", 0.0, packed, **gate)
    assert done.blessed and "own/cost" in verdict["reasons"][0]
    assert "beats champion 1" in verdict["reasons"][0]
    assert verdict["champion"]["metrics"]["own/cost"] == cost
    done, verdict = bench.evaluate("next", **gate | {"thresholds": {"own/coast": {"max": 1}}})
    (reason,) = verdict["reasons"]
    assert not done.blessed and "own/coast" in reason and "own/cost, own/columns" in reason


def test_another_schema_is_not_compared(bench: Bench) -> None:
    bench.crown("r1", 0.5)
    bench.write_dataset("d2", "s2")
    done, verdict = bench.judge("other", 0.1, packed, "d2")
    assert not done.blessed and not verdict["champion"]["compared"]
    assert "schema" in verdict["champion"]["obstacle"]
    done, verdict = bench.evaluate("other", "d2", incompatible_champion="treat_as_first")
    assert done.blessed


def test_test_rows_that_were_trained_on_bless_nothing(bench: Bench) -> None:
    bench.write_dataset("d2", trained_on=True)
    done, verdict = bench.judge("r1", 0.0, packed, "d2")
    assert not done.blessed
    assert "test/00001.parquet" in verdict["reasons"][0]
    # Neither shard is in train, but all rows but one are.
    bench.write_dataset("d3", known=ROWS - 1)
    done, verdict = bench.evaluate("r1", "d3")
    assert not done.blessed and verdict["also_in_train"] == ROWS - 1
    assert "899 of 900" in verdict["reasons"][0] and "899 of 900" in done.html
    bench.write_dataset("d4", known=ROWS // 3)
    done, verdict = bench.evaluate("r1", "d4")
    assert done.blessed and "300 of 900" in done.html


def test_a_champion_that_was_trained_on_the_test_rows_is_not_compared(bench: Bench) -> None:
    bench.crown("r1", 0.5)
    # The champion's dataset has a shard for training that is a test shard of the next one.
    bench.write_dataset("d1", trained_on=True)
    bench.write_dataset("d2", known=0)
    done, verdict = bench.judge("next", 0.0, packed, "d2")
    assert not done.blessed
    # A folder with a name of its own is known by its content.
    manifest = bench.store.read_manifest(bench.layout.dataset("d2") / "manifest.json")
    assert verdict["dataset_digest"] == manifest.digest[:32]
    assert "test/00001.parquet" in verdict["reasons"][0]


def test_a_label_outside_the_classes_is_refused(bench: Bench) -> None:
    bench.write_dataset("d2", classes=CLASSES[:2])
    problem = problem_of(bench.judge, "r1", 0.0, packed, "d2", kind=DataError)
    assert CLASSES[2] in problem.received and ", ".join(CLASSES[:2]) in problem.expected


def test_slices_of_two_models(bench: Bench) -> None:
    slices = [{"column": "column 0", "edges": [-0.5, 0.5]}, "species"]
    verdict = bench.bless("r1", 0.6, packed, slices=slices)
    names = {it["name"]: it for it in verdict["slices"]}
    assert {"column 0 < -0.5", "-0.5 ≤ column 0 < 0.5", "species = cat"} < set(names)
    assert sum(it["rows"] for it in names.values() if it["column"] == "species") == ROWS
    assert names["species = cat"]["champion"] is None
    bench.publish("r1")
    bench.train("better", 0.0, packed)
    limits = {"column": "column 0", "edges": [0], "thresholds": {"accuracy": {"min": 0.999}}}
    done, verdict = bench.evaluate("better", slices=[*slices, limits])
    assert not done.blessed
    checks = {check["name"]: check for check in verdict["checks"]}
    assert not checks["slice_threshold"]["pass"]
    assert checks["slices"]["pass"] and checks["champion"]["pass"]
    assert all(0 <= it["chance"] <= 1 for it in verdict["slices"])
    assert done.metrics["slice/column 0 ≥ 0.5/accuracy"] > 0.8
    assert "column 0 ≥ 0.5" in done.html and "&lt;b&gt;owl" in done.html
    html = unescape(done.html)
    assert "champion 1" in html


def test_a_damaged_champion_fails_closed(bench: Bench) -> None:
    version = S3Address.parse(bench.crown("r1", 0.5).version_uri)
    bench.store.write(version / "model" / "saved_model.pb", b"damaged")
    done, verdict = bench.judge("next", 0.0, packed)
    assert not done.blessed
    assert "champion 1" in verdict["reasons"][0]
    assert "saved_model.pb" in verdict["champion"]["obstacle"]


def test_equal_weights_do_not_hide_a_damaged_champion(bench: Bench) -> None:
    version = S3Address.parse(bench.crown("r1", 0.5).version_uri)
    bench.store.delete(version / "model" / "saved_model.pb")
    done, verdict = bench.judge("r2", 0.5, packed)  # the seed is the length of the name
    champion = verdict["champion"]
    assert champion["exported_weights_sha256"] == verdict["exported_weights_sha256"]
    assert not done.blessed and "saved_model.pb" in champion["obstacle"]
    failed = [check["name"] for check in verdict["checks"] if not check["pass"]]
    assert failed == ["champion"]
    done, verdict = bench.evaluate("r2", incompatible_champion="treat_as_first")
    assert done.blessed, verdict["reasons"]
    assert bench.publish("r2").version == 2


def test_a_champion_that_cannot_be_verified_is_replaced_as_its_error_says(bench: Bench) -> None:
    version = S3Address.parse(bench.crown("r1", 0.5).version_uri)
    bench.store.delete(version / "verdict.json")
    problem = problem_of(verify_champion, bench.store, bench.layout, MODEL, kind=DataError)
    assert "kfp-tfjob models promote" in problem.fix
    done, _ = bench.judge("worse", 0.9, packed)
    assert not done.blessed
    step = bench.step("worse")
    manual_promotion.execute(step, manual_promotion.plan(step, MODEL), "eva", "it is whole")
    verified = verify_champion(bench.store, bench.layout, MODEL)
    assert verified and verified.champion.version == 2


def test_a_regression(bench: Bench) -> None:
    bench.write_dataset("d2", "s2", "regression")
    done, verdict = bench.judge("r1", 0.05, value, "d2")
    assert done.blessed, verdict["reasons"]
    assert verdict["primary_metric"] == "rmse"
    assert verdict["metrics"]["r2"] > 0.9
    assert done.confusion is None and done.roc is None


def test_infinite_probabilities_are_not_clipped_to_certain_ones(bench: Bench) -> None:
    def infinite(features: Any, weights: Any) -> dict[str, Any]:
        import tensorflow as tf

        scores = features @ weights
        highest = tf.reduce_max(scores, axis=1, keepdims=True)
        return {"probabilities": tf.where(scores == highest, np.float32(np.inf), 0)}

    done, verdict = bench.judge("r1", 0.1, exporter(infinite))
    assert not done.blessed
    assert "finite" in verdict["reasons"][0]


@pytest.mark.parametrize("is_random", [False, True])
def test_a_model_that_needs_other_rows_beside_a_row_is_refused(
    bench: Bench, is_random: bool
) -> None:
    def centred(features: Any, weights: Any) -> dict[str, Any]:
        import tensorflow as tf

        scores = features @ weights
        if is_random:  # as with dropout, which is not an error
            scores += tf.random.normal(tf.shape(scores))
        else:
            scores -= tf.reduce_mean(scores, axis=0)
        return {"probabilities": tf.nn.softmax(scores)}

    bench.train("r1", 0.1, exporter(centred))
    if is_random:
        assert bench.evaluate("r1")[0].metrics
        return
    with pytest.raises(DataError, match="rows"):
        bench.evaluate("r1")


def test_a_model_that_does_not_fit_is_refused(bench: Bench) -> None:
    bench.train("logits", 0.1, partial(keras_model, activation=None))
    with pytest.raises(DataError, match="probabilities"):
        bench.evaluate("logits")
    bench.train("regression", 0.1, value)
    with pytest.raises(DataError, match="classification"):
        bench.evaluate("regression")
    with pytest.raises(DataError, match="manifest"):
        bench.evaluate("never-trained")


@pytest.mark.parametrize("torn", ["variables/variables.index", "saved_model.pb"])
def test_a_model_of_two_exports_is_refused_with_a_way_out(bench: Bench, torn: str) -> None:
    """Its files are those of the manifest; only loading it shows that they do not belong together.

    A retry of the step finds the same files.
    """
    output = bench.layout.run("torn").base
    bench.train("torn", 0.1, packed)
    keras_model(np.ones((FEATURES, len(CLASSES)), np.float32), bench.folder / "other")
    other = (bench.folder / "other" / torn).read_bytes()
    (bench.folder / "torn" / "output" / "model" / torn).write_bytes(other)
    push(bench.store, bench.folder / "torn", output, "output", "torn", 1)
    assert problem_of(bench.evaluate, "torn", kind=DataError).fix == EXPORT_AGAIN


def test_the_component_hands_kfp_what_it_can_store(
    bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    from kfp import dsl

    from kfp_tfjob.components.evaluate.component import evaluate
    from kfp_tfjob.components.publish.component import publish as publish_component

    bench.train("r1", 0.3, packed)
    bench.store.write(bench.dataset / SUSPICIOUS, b"the label is predicted by 'id'")
    run = {"run_id": "r1", "output_uri": str(bench.layout.root)}
    metrics, classification = dsl.Metrics(), dsl.ClassificationMetrics()
    report = dsl.HTML(uri=str(tmp_path / "report.html"))
    summary = dsl.Markdown(uri=str(tmp_path / "summary.md"))
    blessed = evaluate.python_func(
        **run,
        dataset_uri=str(bench.dataset),
        model_name=MODEL,
        model_uri=bench.model_uri("r1"),
        gate=DEFAULT_GATE,
        evaluation_metrics=metrics,
        confusion_and_roc=classification,
        evaluation_report=report,
        verdict_summary=summary,
    )
    assert blessed is True
    metadata = [metrics.metadata, classification.metadata]
    assert len(json.dumps(metadata, allow_nan=False)) < 32 * 1024
    assert metrics.metadata["test_rows"] == ROWS
    assert metrics.metadata["baseline_accuracy"] < metrics.metadata["accuracy"]
    assert len(classification.metadata["confusionMatrix"]["rows"]) == len(CLASSES)
    assert Path(report.path).read_text().startswith("<!doctype html>")
    assert Path(summary.path).read_text().startswith(f"# Blessed: `{MODEL}`")
    assert str(ROWS) in capsys.readouterr().out
    card = dsl.Markdown(uri=str(tmp_path / "card.md"))
    published = dsl.Model(uri=str(tmp_path / "published.md"))
    version, version_uri, champion_uri, outcome = publish_component.python_func(
        **run,
        model_name=MODEL,
        model_uri=bench.model_uri("r1"),
        dataset_uri=str(bench.dataset),
        model_card=card,
        published_model=published,
        publish_summary=summary,
    )
    assert (version, outcome) == (1, "published")
    assert (published.metadata["uri"], published.metadata["champion"]) == (version_uri, True)
    assert version_uri == str(bench.layout.model(MODEL).version(1))
    assert champion_uri == str(bench.layout.model(MODEL).champion(1))
    assert Path(card.path).read_text().startswith("# `pets`, version 1")
    assert card.metadata == {"version_uri": version_uri, "champion_uri": champion_uri}
    text = Path(summary.path).read_text()
    assert text.startswith(f"# Published: `{MODEL}`, version 1")
    for address in (version_uri, champion_uri, bench.model_uri("r1"), bench.dataset):
        assert f"`{address}`" in text
    # Whoever reads only the verdict, or only the card, learns that a column reveals the label.
    for page in (report, summary, card):
        assert "SUSPICIOUS" in Path(page.path).read_text()
