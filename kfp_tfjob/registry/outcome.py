"""How a run ended without a failure: read once, for every page, command and message."""

from __future__ import annotations

from dataclasses import dataclass

from kfp_tfjob.registry.champion_records import record_of
from kfp_tfjob.storage.champion import Champion
from kfp_tfjob.storage.errors import ObjectNotFoundError
from kfp_tfjob.storage.layout import Layout, RunLayout
from kfp_tfjob.storage.run_folder import note
from kfp_tfjob.storage.store import Store
from kfp_tfjob.storage.training_cache import TrainedRun
from kfp_tfjob.storage.verdict_record import LostRace, ModelVerdict, lost_race, verdict_in_force

PUBLISHED, NOT_BLESSED, LOST_RACE = "published", "not blessed", "lost the race"
BLESSED = "blessed"  # publish has still to make it the champion, or was ended before
UNCHANGED, NOT_EVALUATED = "unchanged", "not evaluated"
_RESULTS = (PUBLISHED, NOT_BLESSED, LOST_RACE, UNCHANGED, NOT_EVALUATED)


@dataclass(frozen=True)
class Outcome:
    """How a run ended, or what it has come to so far.

    Attributes:
        word: PUBLISHED, BLESSED, NOT_BLESSED, LOST_RACE, UNCHANGED, NOT_EVALUATED, or empty.
        verdict: The verdict in force; None if the newest try of the run evaluated no model.
        record: The newest record that made its model the champion.
        lost: The record that it lost the race.
        earlier: The run whose result holds, because nothing has changed since.
        why_not_evaluated: Why it ended with its verified output.
    """

    word: str = ""
    verdict: ModelVerdict | None = None
    record: Champion | None = None
    lost: LostRace | None = None
    earlier: TrainedRun | None = None
    why_not_evaluated: str = ""

    @property
    def is_final(self) -> bool:
        """Whether no step has anything left to do."""
        return self.word in _RESULTS


def outcome_of(
    store: Store, layout: Layout, run: RunLayout, trained_by: tuple[str, str]
) -> Outcome:
    """Return the outcome of a run; its verdict names the model.

    A verdict beside a note that a try did not train, or evaluated no model, is that of an earlier
    try.

    Args:
        store: The store.
        layout: Everything below output_uri.
        run: The run's folder.
        trained_by: The run and its task's key.

    Raises:
        StepError: A record cannot be read.
        ValueError, KeyError, TypeError: A record is damaged.
    """
    if earlier := note(store, run.unchanged):
        return Outcome(UNCHANGED, earlier=TrainedRun(**earlier))
    if told := note(store, run.not_evaluated):
        return Outcome(NOT_EVALUATED, why_not_evaluated=told["why"])
    try:
        verdict = verdict_in_force(store, run)
    except ObjectNotFoundError:
        return Outcome()
    if record := record_of(store, layout, verdict.model_name, trained_by, verdict.met):
        return Outcome(PUBLISHED, verdict, record)  # a person may have done it
    if not verdict.blessed:
        return Outcome(NOT_BLESSED, verdict)
    if lost := lost_race(store, run):
        return Outcome(LOST_RACE, verdict, lost=lost)
    return Outcome(BLESSED, verdict)
