"""The verdict on the model of a run, and the race that the run may have lost.

evaluate writes the first verdict. If another run is promoted after that, publish judges the model
again and writes the second one, which is in force from then on. If yet another run is promoted
meanwhile, the run has lost the race: it ends without a failure and publishes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.champion import Champion
from kfp_tfjob.storage.errors import ObjectExistsError, ObjectNotFoundError
from kfp_tfjob.storage.layout import Layout, RunLayout
from kfp_tfjob.storage.store import Store
from kfp_tfjob.supervisor.exit_codes import SURPASSED

LOST = "lost_race"
_AGAIN = "again"  # the key of a second verdict


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
            f" {model_name} after this model was judged again; start the run again to compare it"
            " with that champion"
        )
        return cls(winner.number, winner.version, winner.run_id, said)

    def to_bytes(self) -> bytes:
        """Return the record as JSON."""
        return (json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n").encode()


def verdict_in_force(store: Store, run: RunLayout) -> dict[str, Any]:
    """Return the verdict on the model of a run: the second, if there is one.

    Raises:
        ObjectNotFoundError: The model was not judged.
        ValueError: The verdict is no JSON.
    """
    first = json.loads(store.read(run.verdict))
    return (second_verdict(store, run) or first) if first["blessed"] else first


def second_verdict(store: Store, run: RunLayout) -> dict[str, Any] | None:
    """Return the verdict of publish; None if the model was judged only once."""
    try:
        return json.loads(store.read(run.second_verdict))
    except ObjectNotFoundError:
        return None


def dataset_of(verdict: Mapping[str, Any], layout: Layout) -> S3Address:
    """Return the dataset that a verdict is about; older verdicts do not name its address."""
    known = verdict.get("dataset_uri")
    return S3Address.parse(known) if known else layout.dataset(verdict["dataset_digest"])


def is_second(verdict: Mapping[str, Any]) -> bool:
    """Tell whether a verdict is the second one."""
    return _AGAIN in verdict


def as_second(verdict: Mapping[str, Any]) -> dict[str, Any]:
    """Return a verdict as the second one; `again` names the champion that it met."""
    met = verdict["champion"] or {}
    return {**verdict, _AGAIN: {name: met.get(name) for name in ("number", "version", "run_id")}}


def address_of(verdict: Mapping[str, Any], run: RunLayout) -> S3Address:
    """Return where a verdict of a run is stored."""
    return run.second_verdict if is_second(verdict) else run.verdict


def keep_second(store: Store, run: RunLayout, verdict: Mapping[str, Any]) -> None:
    """Store the second verdict, unless there is one: the first that is stored counts."""
    body = json.dumps(verdict, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    _create(store, run.second_verdict, body.encode())


def lost_race(store: Store, run: RunLayout) -> LostRace | None:
    """Return the record that a run lost the race; None if it did not."""
    try:
        body = json.loads(store.read(run.lost_race))
        known = {field.name for field in fields(LostRace)}
        return LostRace(**{name: value for name, value in body.items() if name in known})
    except ObjectNotFoundError:
        return None


def keep_lost_race(store: Store, run: RunLayout, lost: LostRace) -> None:
    """Store the record that a run lost the race; a retry of the run changes nothing."""
    _create(store, run.lost_race, lost.to_bytes())


def _create(store: Store, address: S3Address, body: bytes) -> None:
    try:
        store.create(address, body, "application/json")
    except ObjectExistsError:
        pass
