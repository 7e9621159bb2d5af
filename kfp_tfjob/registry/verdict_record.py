"""The verdict on a run's model, and the race that the run may have lost.

evaluate writes the first verdict. If another run is promoted after that, publish evaluates the
model again and writes a second verdict, which then applies. If yet another run is promoted
meanwhile, the run has lost the race: it ends without a failure and publishes nothing. Called by
evaluate and publish, which write it, and by the programs that show it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Annotated, Any

from pydantic import Field

from kfp_tfjob.common.errors import DataError, ObjectExistsError, ObjectNotFoundError, Problem
from kfp_tfjob.storage import documents
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import RunLayout
from kfp_tfjob.storage.store import Store
from kfp_tfjob.supervisor.exit_codes import SURPASSED

from .champion import Champion

FORMAT = "kfp-tfjob/verdict/1"
LOST = "lost_race"
# None stands for a number that is not finite.
Values = Mapping[str, float | None]
Interval = tuple[float | None, float | None]


@dataclass(frozen=True)
class MetChampion:
    """The champion that evaluate compared a model with, or could not compare it with.

    Attributes:
        number: The number of its record.
        version: Its version.
        run_id: The run that trained it.
        exported_weights_sha256: The digest of its variables.
        schema_digest: The digest of the schema of its dataset.
        compared: Whether they were compared.
        obstacle: Why they could not be compared; empty if they could.
        metrics: Its metrics for the same rows; none if they were not compared.
    """

    number: int
    version: int | None = None
    run_id: str | None = None
    exported_weights_sha256: str | None = None
    schema_digest: str | None = None
    compared: bool = False
    obstacle: str = ""
    metrics: Values = field(default_factory=dict)


@dataclass(frozen=True)
class Check:
    """One check of the gate.

    Attributes:
        name: What is checked: `threshold`, `slices`, `champion`, `same_model`, `taken_back`, ...
        passed: Whether it passes.
        explanation: The result as a clause for people.
        metric: The metric that is checked; empty if none.
        value: The value that is checked; for a comparison, the gain (above 0 is better).
        interval: Its confidence interval; for a comparison, the two one-sided bounds.
        threshold: The limit for the value.
    """

    name: str
    passed: Annotated[bool, Field(alias="pass")]
    explanation: str
    metric: str = ""
    value: float | None = None
    interval: Interval = (None, None)
    threshold: Any = None


@dataclass(frozen=True)
class VerdictSlice:
    """The evaluation of one slice of the test rows.

    Attributes:
        name: Its name, for example `city = Rome`.
        column: Its column.
        rows: The number of its rows.
        state: `pass`, `fail`, or `insufficient`: too few rows for the primary metric, or one class
            where it needs several.
        metric: The primary metric.
        value: Its value for the model; None if insufficient.
        interval: Its confidence interval.
        champion: Its value for the champion; None if they were not compared.
        gain: How much better the model is.
        chance: The p-value of the loss after Holm's correction: how often chance alone shows such a
            loss in any slice.
        thresholds: The value of each metric with a threshold.
    """

    name: str
    column: str
    rows: int
    state: str
    metric: str
    value: float | None
    interval: Interval
    champion: float | None
    gain: float | None
    chance: float | None
    thresholds: Values


@dataclass(frozen=True)
class EvaluatedModel:
    """The model that a verdict judges; publish rejects the verdict for any other.

    Attributes:
        model_name: The name used to look up the champion.
        model_uri: The SavedModel.
        run_id: The run that trained it.
        model_digest: The digest of that run's manifest.
        exported_weights_sha256: The digest of the variables in the SavedModel.
        dataset_uri: The dataset.
        dataset_digest: Its digest.
        schema_digest: The digest of its schema.
        gate: As in the form.
        evaluator_digest: The digest of the code of `gate.evaluator`; empty without one.
        grouped_by: The column whose equal values data_options.split.group keeps in one split.
        also_in_train: How many test rows are also in train; None if it was not counted.
    """

    model_name: str
    model_uri: str
    run_id: str
    model_digest: str
    exported_weights_sha256: str
    dataset_uri: str
    dataset_digest: str
    schema_digest: str
    gate: Mapping[str, Any]
    evaluator_digest: str = ""
    grouped_by: str = ""
    also_in_train: int | None = None


@dataclass(frozen=True, kw_only=True)
class ModelVerdict(EvaluatedModel):
    """The content of verdict.json, which judging/verdict_document.py makes.

    Attributes:
        blessed: Whether the model passed the gate.
        reasons: Why, for people.
        primary_metric: The metric by which models are compared.
        mode: The mode of the gate; empty for an empty gate.
        confidence: The confidence of the intervals.
        checks: The checks of the gate.
        slices: The evaluation of each slice, the worst first.
        minimum_detectable_gain: The gain that this many rows would show 8 times in 10; None without
            a comparison.
        rows: The number of test rows.
        weighted: Whether rows count by weights.
        ranking: `exact`, or the number of bins in which the outputs were counted.
        metrics: The model's metrics.
        class_metrics: Its metrics of single classes.
        intervals: The confidence interval of each metric.
        baseline: The metrics of the trivial model.
        champion: The champion at the time of the evaluation; None if there was none.
        again: In a second verdict, the champion that was promoted after the first verdict.
        stored: The bytes of verdict.json, which are copied to a published version.
    """

    blessed: bool
    reasons: tuple[str, ...]
    primary_metric: str = ""
    mode: str = ""
    confidence: float
    checks: tuple[Check, ...]
    slices: tuple[VerdictSlice, ...] = ()
    minimum_detectable_gain: float | None = None
    rows: int
    weighted: bool = False
    ranking: str = "exact"
    metrics: Values
    class_metrics: Values = field(default_factory=dict)
    intervals: Mapping[str, Interval]
    baseline: Values = field(default_factory=dict)
    champion: MetChampion | None
    again: Mapping[str, int | str | None] | None = None
    stored: bytes = field(default=b"", repr=False, compare=False)

    @property
    def reason(self) -> str:
        """The reasons in one line."""
        return "; ".join(self.reasons)

    @property
    def is_second(self) -> bool:
        """Whether publish, not evaluate, wrote this verdict."""
        return self.again is not None

    @property
    def met(self) -> int:
        """The number of the champion that the model was compared with; 0 if there was none.

        Only one of the models evaluated against the same champion can create the next record.
        """
        return self.champion.number if self.champion else 0

    @classmethod
    def read(cls, store: Store, address: S3Address) -> ModelVerdict:
        """Return a stored verdict.

        Raises:
            ObjectNotFoundError: There is no object at the address.
            DataError: The object is not a verdict.
        """
        data = store.read(address)
        try:
            return replace(documents.read(cls, data), stored=data)
        except documents.InvalidDocumentError as error:
            raise DataError(
                Problem(
                    f"{address} is not a verdict",
                    received=str(error),
                    expected="the JSON that evaluate writes",
                    fix="start a new run",
                )
            ) from error

    def to_bytes(self) -> bytes:
        """Return the verdict as JSON."""
        body = asdict(self)
        del body["stored"]
        for check in body["checks"]:
            passed, explanation = check.pop("passed"), check.pop("explanation")
            check |= {"pass": passed, "explanation": explanation}
        model = {part.name: body.pop(part.name) for part in fields(EvaluatedModel)}
        again = {"again": again} if (again := body.pop("again")) else {}
        body = {"format": FORMAT} | body | model | again
        return (json.dumps(body, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()

    def address(self, run: RunLayout) -> S3Address:
        """Return the address at which this verdict is stored."""
        return run.second_verdict if self.is_second else run.verdict


@dataclass(frozen=True)
class LostRace:
    """The content of lost-race.json.

    Attributes:
        number: The number of the champion record that the run wanted.
        version: The version that has it.
        run_id: The run that published that version.
        message: What happened, for people.
        code: Always 6; programs find the same number in the table of exit codes.
        verdict: Always `lost_race`.
    """

    number: int
    version: int
    run_id: str
    message: str
    code: int = SURPASSED
    verdict: str = LOST

    @classmethod
    def to(cls, winner: Champion, model_name: str) -> LostRace:
        """Return the record of a race that another run has won."""
        message = (
            f"lost the race: version {winner.version} of run {winner.run_id} became the champion of"
            f" {model_name} after this model was evaluated again; start a new run to compare its"
            " model with that champion"
        )
        return cls(winner.number, winner.version, winner.run_id, message)


def verdict_in_force(store: Store, run: RunLayout) -> ModelVerdict:
    """Return the verdict that applies to a run's model: the second one if there are two.

    Raises:
        ObjectNotFoundError: The model was not evaluated.
        DataError: The document is not a verdict.
    """
    first = ModelVerdict.read(store, run.verdict)
    return (second_verdict(store, run) or first) if first.blessed else first


def second_verdict(store: Store, run: RunLayout) -> ModelVerdict | None:
    """Return the verdict of publish; None if the model was evaluated only once."""
    try:
        return ModelVerdict.read(store, run.second_verdict)
    except ObjectNotFoundError:
        return None


def save_second(store: Store, run: RunLayout, verdict: ModelVerdict) -> None:
    """Store a run's second verdict; if one exists already, it is left as it is.

    The verdict's `again` is set to the champion that it was compared with.
    """
    met = verdict.champion
    again = {name: getattr(met, name, None) for name in ("number", "version", "run_id")}
    _create(store, run.second_verdict, replace(verdict, again=again).to_bytes())


def lost_race(store: Store, run: RunLayout) -> LostRace | None:
    """Return the record that a run lost the race; None if it did not lose."""
    try:
        return documents.read(LostRace, store.read(run.lost_race))
    except ObjectNotFoundError:
        return None


def save_lost_race(store: Store, run: RunLayout, lost: LostRace) -> None:
    """Store the record that a run lost the race; an existing record is left as it is."""
    _create(store, run.lost_race, documents.to_bytes(lost))


def _create(store: Store, address: S3Address, body: bytes) -> None:
    try:
        store.create(address, body, "application/json")
    except ObjectExistsError:
        pass  # a retry of the step: the record of the first try is in force
