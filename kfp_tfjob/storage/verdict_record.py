"""The verdict on the model of a run, and the race that the run may have lost.

evaluate writes the first verdict. If another run is promoted after that, publish judges the model
again and writes the second one, which is in force from then on. If yet another run is promoted
meanwhile, the run has lost the race: it ends without a failure and publishes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from pydantic import Field

from kfp_tfjob.storage import documents
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.champion import Champion
from kfp_tfjob.storage.errors import ObjectExistsError, ObjectNotFoundError
from kfp_tfjob.storage.layout import RunLayout
from kfp_tfjob.storage.store import Store
from kfp_tfjob.supervisor.exit_codes import SURPASSED

LOST = "lost_race"
_AGAIN = "again"  # the key of a second verdict


@dataclass(frozen=True)
class MetChampion:
    """The champion that a model was compared with.

    Attributes:
        number: The number of its record.
        version: Its version.
        run_id: The run that trained it.
        obstacle: Why they could not be compared; empty if they could.
    """

    number: int
    version: int | None = None
    run_id: str | None = None
    obstacle: str = ""


@dataclass(frozen=True)
class VerdictCheck:
    """One check of the gate: its name, whether it passed, and its result as a clause."""

    name: str
    explanation: str
    passed: Annotated[bool, Field(alias="pass")]


@dataclass(frozen=True)
class EvaluatedModel:
    """The model that a verdict judges; publish refuses the verdict for any other.

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
    """What other steps read of verdict.json; judging/verdict.py writes it.

    Attributes:
        blessed: Whether the model passed the gate.
        reasons: Why, for people.
        champion: The champion that it was compared with; None if there was none.
        metrics: Its metrics; None for one that has no value.
        intervals: The confidence interval of each.
        confidence: The confidence of the intervals.
        checks: The checks of the gate.
        rows: The number of test rows.
        again: In a second verdict, the champion that was promoted after the first.
        stored: Its bytes, which a published version keeps a copy of.
    """

    blessed: bool
    reasons: tuple[str, ...]
    champion: MetChampion | None
    metrics: Mapping[str, float | None]
    intervals: Mapping[str, tuple[float | None, float | None]]
    confidence: float
    checks: tuple[VerdictCheck, ...]
    rows: int
    again: Mapping[str, int | str | None] | None = None
    stored: bytes = field(default=b"", repr=False, compare=False)

    @property
    def reason(self) -> str:
        """Why, as one line."""
        return "; ".join(self.reasons)

    @property
    def is_second(self) -> bool:
        """Whether publish gave it."""
        return self.again is not None

    @property
    def met(self) -> int:
        """The number of the champion that the model was compared with; 0 if there was none.

        Only one of the models judged against the same champion can create the next record.
        """
        return self.champion.number if self.champion else 0

    @classmethod
    def read(cls, store: Store, address: S3Address) -> ModelVerdict:
        """Return a stored verdict.

        Raises:
            ObjectNotFoundError: There is none.
            ValueError: It is not a verdict.
        """
        data = store.read(address)
        return replace(documents.read(cls, data), stored=data)

    def address(self, run: RunLayout) -> S3Address:
        """Return where it is stored."""
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
        said = (
            f"lost the race: version {winner.version} of run {winner.run_id} became the champion of"
            f" {model_name} after this model was evaluated again; start the run again to compare it"
            " with that champion"
        )
        return cls(winner.number, winner.version, winner.run_id, said)


def verdict_in_force(store: Store, run: RunLayout) -> ModelVerdict:
    """Return the verdict on the model of a run: the second, if there is one.

    Raises:
        ObjectNotFoundError: The model was not evaluated.
        ValueError: The document is not a verdict.
    """
    first = ModelVerdict.read(store, run.verdict)
    return (second_verdict(store, run) or first) if first.blessed else first


def verdict_or_none(store: Store, run: RunLayout) -> ModelVerdict | None:
    """Return the verdict in force; None if the newest try of the run evaluated no model.

    A verdict beside a note that a try did not train, or evaluated no model, is that of an earlier
    try.

    Raises:
        ValueError: The document is not a verdict.
    """
    if store.has(run.unchanged) or store.has(run.not_evaluated):
        return None
    try:
        return verdict_in_force(store, run)
    except ObjectNotFoundError:
        return None


def second_verdict(store: Store, run: RunLayout) -> ModelVerdict | None:
    """Return the verdict of publish; None if the model was evaluated only once."""
    try:
        return ModelVerdict.read(store, run.second_verdict)
    except ObjectNotFoundError:
        return None


def as_second(verdict: Mapping[str, Any]) -> dict[str, Any]:
    """Return a verdict as the second one; `again` names the champion that it met."""
    met = verdict["champion"] or {}
    return {**verdict, _AGAIN: {name: met.get(name) for name in ("number", "version", "run_id")}}


def keep_second(store: Store, run: RunLayout, verdict: Mapping[str, Any]) -> None:
    """Store the second verdict, unless there is one: the first that is stored counts."""
    body = json.dumps(verdict, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    _create(store, run.second_verdict, body.encode())


def lost_race(store: Store, run: RunLayout) -> LostRace | None:
    """Return the record that a run lost the race; None if it did not."""
    try:
        return documents.read(LostRace, store.read(run.lost_race))
    except ObjectNotFoundError:
        return None


def keep_lost_race(store: Store, run: RunLayout, lost: LostRace) -> None:
    """Store the record that a run lost the race; a retry changes nothing."""
    _create(store, run.lost_race, documents.to_bytes(lost))


def _create(store: Store, address: S3Address, body: bytes) -> None:
    try:
        store.create(address, body, "application/json")
    except ObjectExistsError:
        pass
