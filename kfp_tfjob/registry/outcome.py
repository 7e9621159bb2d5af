"""How a run ended without a failure, derived from the records that its steps stored.

Every page, command and message asks this module, so they never disagree. Called by the steps'
summary, finish, notifications and the run list.
"""

from __future__ import annotations

from dataclasses import dataclass

from kfp_tfjob.common.errors import ObjectNotFoundError
from kfp_tfjob.storage.layout import Layout, RunLayout
from kfp_tfjob.storage.store import Store

from .champion import Champion
from .champion_records import record_of
from .run_folder import note
from .training_cache import TrainedRun
from .verdict_record import LostRace, ModelVerdict, lost_race, verdict_in_force

PUBLISHED, NOT_BLESSED, LOST_RACE = "published", "not blessed", "lost the race"
BLESSED = "blessed"  # publish has not made it the champion yet, or ended before it did
UNCHANGED, NOT_EVALUATED = "unchanged", "not evaluated"
_FINAL = (PUBLISHED, NOT_BLESSED, LOST_RACE, UNCHANGED, NOT_EVALUATED)


@dataclass(frozen=True)
class Outcome:
    """A run's outcome, or the part that is stored so far.

    Attributes:
        word: PUBLISHED, BLESSED, NOT_BLESSED, LOST_RACE, UNCHANGED, NOT_EVALUATED, or empty.
        verdict: The verdict in force; None if the run's newest attempt did not evaluate a model.
        record: The newest record that made its model the champion.
        lost: The record that another run was promoted first.
        earlier: The run whose result still applies, because its inputs are unchanged.
        why_not_evaluated: Why the run ended after its output was verified, without an evaluation.
    """

    word: str = ""
    verdict: ModelVerdict | None = None
    record: Champion | None = None
    lost: LostRace | None = None
    earlier: TrainedRun | None = None
    why_not_evaluated: str = ""

    @property
    def is_final(self) -> bool:
        """Whether every step is finished, so the outcome no longer changes."""
        return self.word in _FINAL


def outcome_of(
    store: Store, layout: Layout, run: RunLayout, trained_by: tuple[str, str]
) -> Outcome:
    """Return a run's outcome; its verdict names the model.

    Two notes say that the newest attempt did not train or did not evaluate. They are read first,
    because a verdict next to such a note belongs to an earlier attempt.

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
    if reason := note(store, run.not_evaluated):
        return Outcome(NOT_EVALUATED, why_not_evaluated=reason["why"])
    try:
        verdict = verdict_in_force(store, run)
    except ObjectNotFoundError:
        return Outcome()
    if record := record_of(store, layout, verdict.model_name, trained_by, verdict.met):
        # Read before `blessed`, because a person may have promoted a model that was not blessed.
        return Outcome(PUBLISHED, verdict, record)
    if not verdict.blessed:
        return Outcome(NOT_BLESSED, verdict)
    if lost := lost_race(store, run):
        return Outcome(LOST_RACE, verdict, lost=lost)
    return Outcome(BLESSED, verdict)
