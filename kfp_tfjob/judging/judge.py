"""Evaluates a model: scores it and the champion on the same test rows in one pass, and decides.

The evaluate step calls `judge`. publish calls it again if another run has been promoted since,
because the verdict compares with a champion that has been replaced. `judge` writes nothing to the
store, so it can run again at any time.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from kfp_tfjob.common.errors import ConfigurationError, DataError, Problem, Problems
from kfp_tfjob.common.names import check_model_name
from kfp_tfjob.features.served_model import ServedModel
from kfp_tfjob.features.tensorflow_import import load
from kfp_tfjob.options.gate import GateOptions, parse_gate
from kfp_tfjob.options.metric_names import is_own
from kfp_tfjob.registry.champion import Champion, read_champion
from kfp_tfjob.registry.rollback import taken_back
from kfp_tfjob.registry.verdict_record import Check, EvaluatedModel, ModelVerdict
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import RUN_MODEL, Layout
from kfp_tfjob.storage.manifest import Manifest
from kfp_tfjob.storage.store import Store
from kfp_tfjob.uploader import pull

from .baseline import baseline_outputs
from .champion_scoring import ChampionScorer
from .evaluator_code import EvaluatorCode
from .gate import ChampionResult, GateDecision, decide
from .gate_columns import check_gate
from .metrics import Measures
from .model import exported_weights_sha256
from .own_metrics import Evaluator
from .predictions import Predictions
from .rows import TestData
from .scoring import score
from .slices import Slices
from .train_test_overlap import leaked_rows, overlap_checks
from .verdict_document import build_verdict

log = logging.getLogger(__name__)

_INTERVAL_CONFIDENCE = 0.9  # for an empty gate, which sets none


@dataclass(frozen=True)
class EvaluationRequest:
    """The model, dataset and gate of an evaluation.

    Attributes:
        model_name: The name used to look up the champion.
        model: The SavedModel of a run.
        dataset: The dataset with the test rows.
        gate: The gate as the user wrote it.
        options: The parsed gate; None for an empty one.
    """

    model_name: str
    model: S3Address
    dataset: S3Address
    gate: Mapping[str, Any]
    options: GateOptions | None

    @classmethod
    def parse(
        cls, model_name: str, model_uri: str, dataset_uri: str, gate: Mapping[str, Any]
    ) -> EvaluationRequest:
        """Parse a step's parameters.

        Args:
            model_name: The model's name.
            model_uri: The SavedModel, `<output_uri>/runs/<run_id>/output/model`.
            dataset_uri: The prepared dataset.
            gate: The gate as the user wrote it.

        Raises:
            ConfigurationError: A parameter is invalid; it lists every problem.
        """
        problems = Problems(check_model_name(model_name))
        options = problems.of(lambda: parse_gate(gate))
        model = problems.of(lambda: S3Address.parse(model_uri, "model_uri"))
        if model:
            problems.of(lambda: run_of(model))
        dataset = problems.of(lambda: S3Address.parse(dataset_uri, "dataset_uri"))
        if problems or not (model and dataset):
            raise ConfigurationError(*problems)
        return cls(model_name, model, dataset, dict(gate), options)


@dataclass(frozen=True)
class Evaluation:
    """The outcome of an evaluation.

    Attributes:
        verdict: The verdict on the model, as it is stored.
        decision: The gate's decision.
        measured: Metrics of `model`, of the champion by its name if it was compared, and of
            `baseline`.
        data: The test rows.
    """

    verdict: ModelVerdict
    decision: GateDecision
    measured: dict[str, Measures]
    data: TestData


def judge(
    store: Store, layout: Layout, request: EvaluationRequest, folder: Path, gpus: int = 0
) -> Evaluation:
    """Evaluate a model on the test rows, and decide whether it becomes the champion.

    Args:
        store: The store.
        layout: The addresses of datasets and models.
        request: The model, the dataset and the gate.
        folder: An empty folder for downloads.
        gpus: The number of GPUs for the models; with 0, TensorFlow sees none.

    Raises:
        ConfigurationError: There are fewer GPUs, or the gate does not fit the data.
        DataError: The model or the dataset is missing or damaged, or they do not match.
    """
    _load_tensorflow(gpus)
    data = TestData.fetch(store, request.dataset, folder / "data")
    classes = list(data.schema.classes)
    check_gate(request.gate, data.schema)
    manifest = _fetch_model(store, request.model, folder / "run")
    challenger_folder = folder / "run" / RUN_MODEL
    digest = exported_weights_sha256(challenger_folder)
    champion = read_champion(store, layout, request.model_name)
    challenger = ServedModel(challenger_folder, data.schema, "the model")

    def load_champion(record: Champion, name: str) -> ChampionScorer:
        return ChampionScorer(
            store, layout, request.model_name, record, digest, data, folder / name
        )

    champion_scorer = load_champion(champion, "champion") if champion else None
    options = request.options
    slices = Slices(options.slices if options else [], data.schema)
    evaluator = _read_evaluator(store, options, data, champion_scorer)
    predictions, baseline = score(data, challenger, champion_scorer, slices, evaluator)
    confidence = options.interval_confidence if options else _INTERVAL_CONFIDENCE
    champion_result = (
        champion_scorer.champion_result(classes, confidence) if champion_scorer else None
    )
    measures = Measures(predictions, classes, confidence)
    baseline_measures = Measures(baseline, classes, confidence)
    if evaluator and options and predictions.finite:
        baseline_output = baseline_outputs(data)
        measures, champion_result, baseline_measures = _add_user_metrics(
            evaluator, options, measures, champion_result, baseline_measures, baseline_output
        )
    champions = (
        {champion_result.name: champion_result.measures}
        if champion_result and champion_result.measures
        else {}
    )
    measured = {"model": measures, **champions, "baseline": baseline_measures}
    extra_checks = overlap_checks(data)
    rolled_back = taken_back(store, layout, request.model_name, digest)
    # With another schema, the same weights may belong to other columns or classes.
    if rolled_back and rolled_back[0].schema_digest == data.schema.schema_digest:
        scorer = load_champion(rolled_back[0], "taken_back")
        for batch in data.batches():
            scorer.predict(batch, challenger.predict(batch.features))
        extra_checks += [_rolled_back_check(*rolled_back)] if scorer.same else []
    decision = decide(options, measures, baseline_measures, champion_result, slices, extra_checks)
    if comparison := decision.comparison:
        interval = measures.estimate(comparison.metric).interval(confidence)
        measures.settle(comparison.metric, comparison.without_contradiction(interval))
    evaluated_model = EvaluatedModel(
        model_name=request.model_name,
        model_uri=str(request.model),
        run_id=manifest.run_id,
        model_digest=manifest.digest,
        exported_weights_sha256=digest,
        dataset_uri=str(request.dataset),
        dataset_digest=data.digest,
        schema_digest=data.schema.schema_digest,
        gate=request.gate,
        evaluator_digest=evaluator.code.digest if evaluator else "",
        grouped_by=_group_column(data),
        also_in_train=leaked_rows(data),
    )
    verdict = build_verdict(decision, evaluated_model, measured, champion, champion_result)
    return Evaluation(verdict, decision, measured, data)


def _group_column(data: TestData) -> str:
    """Return the column of data_options.split.group; empty without one.

    Log a warning if the dataset does not contain the rows' groups.
    """
    column = str(data.schema.split.get("group", ""))
    if column and not data.schema.group:  # earlier versions did not store the rows' groups
        log.warning(
            "rows with the same %r may be similar, but are treated as independent, so intervals"
            " are too narrow, and the gate passes more models that are merely as good as the"
            " champion",
            column,
        )
    return column


def _load_tensorflow(gpus: int) -> None:
    """Load TensorFlow with `gpus` GPUs; a model that needs none must not claim one.

    Raises:
        ConfigurationError: TensorFlow sees fewer GPUs.
    """
    load(gpus)
    if not gpus:
        return
    import tensorflow as tf

    devices = tf.config.list_physical_devices("GPU")
    for device in devices:
        tf.config.experimental.set_memory_growth(device, True)  # two models share it
    if len(devices) < gpus:
        raise ConfigurationError(
            Problem(
                "evaluate cannot see its GPUs",
                received=f"{len(devices)} GPUs",
                expected=f"{gpus}, as pod.evaluate.gpus requests",
                fix="compile the YAML with an image for GPUs (--gpu), and check"
                " pod.evaluate.gpu_resource, the node's device plugin, and that the image's"
                " LD_LIBRARY_PATH contains the driver's folder (on GKE /usr/local/nvidia/lib64)",
                path="pod.evaluate.gpus",
                name="gpu-not-usable",
            )
        )


def run_of(model: S3Address) -> S3Address:
    """Return the run that a model belongs to; its manifest verifies the model.

    Raises:
        ConfigurationError: The address is not a model in a run's output.
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


def _read_evaluator(
    store: Store,
    options: GateOptions | None,
    data: TestData,
    champion_scorer: ChampionScorer | None,
) -> Evaluator | None:
    """Return the evaluator of the user's metrics; None without `gate.evaluator`."""
    if not (options and options.evaluator):
        return None
    evaluator = Evaluator(EvaluatorCode.read(options.evaluator, store), data, options)
    if champion_scorer:
        champion_scorer.on_outputs = evaluator.add_champion
    return evaluator


def _competes_with_baseline(champion: ChampionResult | None, options: GateOptions) -> bool:
    """Return whether the model must beat the baseline instead of a champion."""
    replaced = options.incompatible_champion == "treat_as_first"
    first = champion is None or (replaced and not champion.same)
    return first and options.first_model == "beat_baseline"


def _add_user_metrics(
    evaluator: Evaluator,
    options: GateOptions,
    model: Measures,
    champion: ChampionResult | None,
    baseline: Measures,
    baseline_output: np.ndarray,
) -> tuple[Measures, ChampionResult | None, Measures]:
    """Return model, champion and baseline with the user's metrics.

    Args:
        evaluator: The user's function.
        options: The gate.
        model: The model's metrics.
        champion: The champion's result.
        baseline: The baseline's metrics; the user's metrics are NaN unless the baseline decides.
        baseline_output: The baseline's prediction, which is the same for each row.
    """
    classes, confidence = model.classes, model.confidence

    def measure(predictions: Predictions, numbers: Mapping[str, float]) -> Measures:
        return Measures(predictions, classes, confidence, numbers)

    model = measure(*evaluator.model_metrics(model.predictions))
    undefined = dict.fromkeys(filter(is_own, model.names), math.nan)
    baseline_metrics = (baseline.predictions, undefined)
    if champion and champion.measures:
        champion_metrics = evaluator.reference_metrics(champion.name, champion.measures.predictions)
        champion = replace(champion, measures=measure(*champion_metrics))
    elif is_own(options.primary_metric) and _competes_with_baseline(champion, options):
        baseline_metrics = evaluator.reference_metrics(
            "the baseline", baseline.predictions, baseline_output
        )
    return model, champion, measure(*baseline_metrics)


def _rolled_back_check(withdrawn: Champion, rollback: Champion) -> Check:
    """Return the check that fails for a model that a user has rolled back."""
    text = (
        f"same model as version {withdrawn.version}, which {rollback.by} rolled back to version"
        f" {rollback.version} on {rollback.at[:10]}: {rollback.why}"
    )
    return Check("taken_back", False, text)


def _fetch_model(store: Store, model: S3Address, folder: Path) -> Manifest:
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
