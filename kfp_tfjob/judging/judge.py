"""Judges a model: scores it and the champion on the same test rows in one pass, and decides.

evaluate calls it, and publish again if another run is promoted after that. It writes nothing to
the store.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from kfp_tfjob.features.served_model import ServedModel
from kfp_tfjob.features.tensorflow_import import load
from kfp_tfjob.judging.champion_scoring import Opponent
from kfp_tfjob.judging.evaluator_code import EvaluatorCode
from kfp_tfjob.judging.gate import GateDecision, Rival, decide
from kfp_tfjob.judging.gate_columns import check_gate
from kfp_tfjob.judging.known_rows import also_in_train, failed_checks
from kfp_tfjob.judging.metrics import Measures
from kfp_tfjob.judging.model import exported_weights_sha256
from kfp_tfjob.judging.own_metrics import Evaluator
from kfp_tfjob.judging.predictions import Predictions
from kfp_tfjob.judging.rows import TestData
from kfp_tfjob.judging.scoring import score, trivial_outputs
from kfp_tfjob.judging.slices import Slices
from kfp_tfjob.judging.verdict import build
from kfp_tfjob.options.gate import GateOptions, parse_gate
from kfp_tfjob.options.metric_names import is_own
from kfp_tfjob.registry.rollback import taken_back
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.champion import Champion, read_champion
from kfp_tfjob.storage.errors import ConfigurationError, DataError, Problem, Problems
from kfp_tfjob.storage.layout import RUN_MODEL, Layout
from kfp_tfjob.storage.manifest import Manifest
from kfp_tfjob.storage.names import check_model_name
from kfp_tfjob.storage.store import Store
from kfp_tfjob.storage.verdict_record import Check, EvaluatedModel, ModelVerdict
from kfp_tfjob.uploader import pull

log = logging.getLogger(__name__)

_INTERVAL_CONFIDENCE = 0.9  # for an empty gate, which sets none


@dataclass(frozen=True)
class Given:
    """What is judged.

    Attributes:
        model_name: The name used to look up the champion.
        model: The SavedModel of a run.
        dataset: The dataset with the test rows.
        gate: As in the form.
        options: The typed form of the gate; None for an empty one.
    """

    model_name: str
    model: S3Address
    dataset: S3Address
    gate: Mapping[str, Any]
    options: GateOptions | None

    @classmethod
    def parse(
        cls, model_name: str, model_uri: str, dataset_uri: str, gate: Mapping[str, Any]
    ) -> Given:
        """Parse a step's parameters.

        Args:
            model_name: The model's name.
            model_uri: The SavedModel, `<output_uri>/runs/<run_id>/output/model`.
            dataset_uri: The prepared dataset.
            gate: As in the form.

        Raises:
            ConfigurationError: Some are wrong; it lists every problem.
        """
        wrong = Problems(check_model_name(model_name))
        options = wrong.of(lambda: parse_gate(gate))
        model = wrong.of(lambda: S3Address.parse(model_uri, "model_uri"))
        if model:
            wrong.of(lambda: run_of(model))
        dataset = wrong.of(lambda: S3Address.parse(dataset_uri, "dataset_uri"))
        if wrong or not (model and dataset):
            raise ConfigurationError(*wrong)
        return cls(model_name, model, dataset, dict(gate), options)


@dataclass(frozen=True)
class Judged:
    """A model that was evaluated.

    Attributes:
        verdict: The verdict on it.
        decision: The decision of the gate.
        measured: `model`, the champion by its name if it was compared, and `baseline`.
        data: The test rows.
    """

    verdict: ModelVerdict
    decision: GateDecision
    measured: dict[str, Measures]
    data: TestData


def judge(store: Store, layout: Layout, given: Given, folder: Path, gpus: int = 0) -> Judged:
    """Judge a model.

    Args:
        store: The store.
        layout: Where the datasets and models are.
        given: The model, the dataset and the gate.
        folder: An empty folder for downloads.
        gpus: How many GPUs the models may use; without any, they see none.

    Raises:
        ConfigurationError: There are fewer GPUs, or the gate does not fit the data.
        DataError: The model or the dataset is missing or damaged, or they do not match.
    """
    _load(gpus)
    data = TestData.fetch(store, given.dataset, folder / "data")
    classes = list(data.schema.classes)
    check_gate(given.gate, data.schema)
    manifest = _fetched(store, given.model, folder / "run")
    challenger_folder = folder / "run" / RUN_MODEL
    digest = exported_weights_sha256(challenger_folder)
    champion = read_champion(store, layout, given.model_name)
    challenger = ServedModel(challenger_folder, data.schema, "the model")

    def against(other: Champion, name: str) -> Opponent:
        return Opponent(store, layout, given.model_name, other, digest, data, folder / name)

    opponent = against(champion, "champion") if champion else None
    options = given.options
    slices = Slices(options.slices if options else [], data.schema)
    own = _own(store, options, data, opponent)
    predictions, baseline = score(data, challenger, opponent, slices, own)
    confidence = options.interval_confidence if options else _INTERVAL_CONFIDENCE
    rival = opponent.rival(classes, confidence) if opponent else None
    ours = Measures(predictions, classes, confidence)
    trivial = Measures(baseline, classes, confidence)
    if own and options and predictions.finite:
        same = trivial_outputs(data)
        ours, rival, trivial = _with_own_metrics(own, options, ours, rival, trivial, same)
    champions = {rival.name: rival.measures} if rival and rival.measures else {}
    measured = {"model": ours, **champions, "baseline": trivial}
    more = failed_checks(data)
    if found := taken_back(store, layout, given.model_name, digest):
        left = against(found[0], "taken_back")
        for batch in data.batches():
            left.predict(batch, challenger.predict(batch.features))
        more += [_of_history(*found)] if left.same else []
    decision = decide(options, ours, trivial, rival, slices, more)
    if compared := decision.comparison:
        interval = ours.estimate(compared.metric).interval(confidence)
        ours.settle(compared.metric, compared.without_contradiction(interval))
    judged = EvaluatedModel(
        model_name=given.model_name,
        model_uri=str(given.model),
        run_id=manifest.run_id,
        model_digest=manifest.digest,
        exported_weights_sha256=digest,
        dataset_uri=str(given.dataset),
        dataset_digest=data.digest,
        schema_digest=data.schema.schema_digest,
        gate=given.gate,
        evaluator_digest=own.code.digest if own else "",
        grouped_by=_group(data),
        also_in_train=also_in_train(data),
    )
    verdict = build(decision, judged, measured, champion, rival)
    return Judged(verdict, decision, measured, data)


def _group(data: TestData) -> str:
    """Return the column of data_options.split.group, and log what it means; empty without one."""
    column = str(data.schema.split.get("group", ""))
    if column:
        log.warning(
            "rows with the same %r may be similar, but are treated as independent, so intervals"
            " are too narrow, and the gate passes more models that are merely as good as the"
            " champion",
            column,
        )
    return column


def _load(gpus: int) -> None:
    """Load TensorFlow; the CPU is fast enough for most models, and always available."""
    load(gpus)
    if not gpus:
        return
    import tensorflow as tf

    found = tf.config.list_physical_devices("GPU")
    for gpu in found:
        tf.config.experimental.set_memory_growth(gpu, True)  # two models share it
    if len(found) < gpus:
        raise ConfigurationError(
            Problem(
                "evaluate cannot see its GPUs",
                received=f"{len(found)} GPUs",
                expected=f"{gpus}, as pod.evaluate.gpus requests",
                fix="compile the YAML with an image for GPUs (--gpu), and check"
                " pod.evaluate.gpu_resource and the node's device plugin",
                path="pod.evaluate.gpus",
            )
        )


def run_of(model: S3Address) -> S3Address:
    """Return the run that a model belongs to; its manifest verifies the model.

    Raises:
        ConfigurationError: The address is not that of a model in a run's output.
    """
    key = model.key.removesuffix(f"/{RUN_MODEL}")
    if key == model.key:
        raise ConfigurationError(
            Problem(
                "model_uri is not the output of a run",
                received=str(model),
                expected=f"s3://BUCKET/PREFIX/runs/RUN_ID/{RUN_MODEL}",
                fix="pass evaluate the model_uri that sync_output returned",
            )
        )
    return S3Address(model.bucket, key)


def _own(
    store: Store, options: GateOptions | None, data: TestData, opponent: Opponent | None
) -> Evaluator | None:
    """Return what computes the user's own metrics; None without them."""
    if not (options and options.evaluator):
        return None
    own = Evaluator(EvaluatorCode.read(options.evaluator, store), data, options)
    if opponent:
        opponent.watch = own.add_champion
    return own


def _is_first(rival: Rival | None, options: GateOptions) -> bool:
    """Return whether the model must beat the baseline instead of a champion."""
    replaced = options.incompatible_champion == "treat_as_first"
    first = rival is None or (replaced and not rival.same)
    return first and options.first_model == "beat_baseline"


def _with_own_metrics(
    own: Evaluator,
    options: GateOptions,
    model: Measures,
    rival: Rival | None,
    baseline: Measures,
    same: np.ndarray,
) -> tuple[Measures, Rival | None, Measures]:
    """Return model, champion and baseline with the user's own metrics.

    Args:
        own: What computes them.
        options: The gate.
        model: The model.
        rival: The champion.
        baseline: The baseline; they have no value for it unless it decides.
        same: What it predicts for each row.
    """

    def of(found: Predictions, numbers: Mapping[str, float]) -> Measures:
        return Measures(found, model.classes, model.confidence, numbers)

    model = of(*own.of_model(model.predictions))
    if rival and rival.measures:
        found = own.of_other(rival.name, rival.measures.predictions)
        rival = replace(rival, measures=of(*found))
    elif is_own(options.primary_metric) and _is_first(rival, options):
        return model, rival, of(*own.of_other("the baseline", baseline.predictions, same))
    unknown = dict.fromkeys(filter(is_own, model.names), math.nan)
    return model, rival, of(baseline.predictions, unknown)


def _of_history(left: Champion, rollback: Champion) -> Check:
    """Return the check that fails for a model that a user has rolled back."""
    text = (
        f"same model as version {left.version}, which {rollback.by} rolled back to version"
        f" {rollback.version} on {rollback.at[:10]}: {rollback.why}"
    )
    return Check("taken_back", False, text)


def _fetched(store: Store, model: S3Address, folder: Path) -> Manifest:
    """Download a model, and return its run's manifest."""
    source = run_of(model)
    manifest = pull(store, source, folder, _is_model)
    if not any(_is_model(item.key) for item in manifest.objects):
        raise DataError(
            Problem(
                f"{source} has no SavedModel",
                received=f"{len(manifest.objects)} objects, none below {RUN_MODEL}/",
                expected="a SavedModel that training exports to $OUTPUT_DIR/model",
                fix="make the training command export its model there",
            )
        )
    return manifest


def _is_model(key: str) -> bool:
    return key.startswith(f"{RUN_MODEL}/")
