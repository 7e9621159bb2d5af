"""Makes an earlier champion the champion again, with the same bytes, under the next numbers.

A rollback only adds: a new champion record and a new folder for servers. So it can race with a run
that publishes, and exactly one of them gets the record's number. A plan is computed and shown
first, and then executed. Called by `kfp-tfjob models rollback`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from kfp_tfjob.common.errors import ConfigurationError, DataError, Problem, SurpassedError
from kfp_tfjob.common.formatting import listed
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.store import Store
from kfp_tfjob.uploader import verify

from .chain import VerifiedChampion, verify_champion
from .champion import ROLLBACK, Champion, no_champion, read_champion
from .champion_records import champions
from .promotion import promote
from .servable import publish_newest, servers_see

# Champion records. A user's decision against a model no longer applies after so many later ones.
_REMEMBERED = 20


@dataclass(frozen=True)
class RollbackPlan:
    """A rollback that has not been executed yet.

    Attributes:
        model_name: The model.
        now: The champion.
        back_to: The record of the champion that comes back.
    """

    model_name: str
    now: Champion
    back_to: Champion

    @property
    def is_done(self) -> bool:
        """Whether the version is the champion already, for example after a killed rollback."""
        return self.now.version == self.back_to.version


def walk_back(now: Champion, earlier: Iterable[Champion]) -> Iterator[Champion]:
    """Yield the champions before this version was first promoted, the newest first.

    A rollback restores the first of them that was not pruned. So a second rollback goes further
    back, instead of returning to the version that the first one left. A version's first promotion
    is its record by a verdict or by a person; its later records are rollbacks to it. Records are
    read only as far as the caller needs them.

    Args:
        now: The champion.
        earlier: The records before its own, the newest first.
    """
    passed_promotion, skipped = now.action != ROLLBACK, []
    for record in earlier:
        if record.version == now.version:
            passed_promotion, skipped = passed_promotion or record.action != ROLLBACK, []
        elif passed_promotion:
            yield record
        else:
            skipped.append(record)
    # A user removed the record of its first promotion, so its oldest rollback marks the place.
    yield from skipped


def plan(store: Store, layout: Layout, model_name: str, version: int = 0) -> RollbackPlan:
    """Plan a rollback, after verifying the version to restore.

    Args:
        store: The store.
        layout: Everything below output_uri.
        model_name: The model.
        version: The version; 0 for the champion before this one. A version that a rollback replaced
            is not chosen, so a second rollback goes further back.

    Raises:
        ConfigurationError: There is no such champion of the model, or the version was pruned.
        DataError: The version or a record is damaged.
    """
    now = read_champion(store, layout, model_name)
    if now is None:
        raise ConfigurationError(no_champion(layout, model_name))
    if version == now.version or (not version and _is_unfinished(store, layout, model_name, now)):
        return RollbackPlan(model_name, now, now)
    pruned = set(store.numbers(layout.model(model_name).tombstones))
    earlier = champions(store, layout, model_name, below=now.number)
    if version:
        candidates = (record for record in earlier if record.version == version)
    else:
        candidates = walk_back(now, earlier)
    back_to = next((record for record in candidates if record.version not in pruned), None)

    # Reads all records, so it is called only for an error's message.
    def restorable() -> list[Champion]:
        records = champions(store, layout, model_name)
        return [record for record in records if record.version not in pruned]

    if back_to is None:
        raise ConfigurationError(_no_target(model_name, now, version, restorable(), pruned))
    try:
        _verify_files(store, layout, model_name, back_to)
    except DataError as error:
        raise DataError(_damaged(model_name, back_to, restorable(), error)) from error
    return RollbackPlan(model_name, now, back_to)


def execute(store: Store, layout: Layout, planned: RollbackPlan, by: str, why: str) -> Champion:
    """Make the version the champion again, and put it where servers look.

    Args:
        store: The store.
        layout: Everything below output_uri.
        planned: From `plan`.
        by: Who does it.
        why: The reason, for the history.

    Returns:
        The champion's record.

    Raises:
        SurpassedError: The champion has changed since the plan; nothing was done.
    """
    champion = planned.now
    if not planned.is_done:
        record = replace(
            planned.back_to,
            number=planned.now.number + 1,
            serving=0,
            action=ROLLBACK,
            by=by,
            why=why,
        )
        try:
            champion = promote(store, layout, planned.model_name, record)
        except SurpassedError as error:
            raise SurpassedError(
                Problem(
                    f"the champion of {planned.model_name} changed during the rollback",
                    received=error.received,
                    expected=f"version {planned.now.version}, as the plan showed",
                    fix="look at the new champion: kfp-tfjob models show. To roll back anyway,"
                    " repeat the command",
                )
            ) from error
    publish_newest(store, layout, planned.model_name)
    return champion


def taken_back(
    store: Store, layout: Layout, model_name: str, exported_weights_sha256: str
) -> tuple[Champion, Champion] | None:
    """Return the champion with these weights that a rollback replaced, and the rollback's record.

    If that champion was restored later, or a better model replaced it, no rollback applies.

    Args:
        store: The store.
        layout: Everything below output_uri.
        model_name: The model.
        exported_weights_sha256: The digest of the weights.

    Returns:
        Both records; None if no rollback in the newest records replaced these weights. The models'
        graphs may differ, so the caller compares both models' predictions.
    """
    successor = None
    for record in champions(store, layout, model_name, most=_REMEMBERED):
        if record.exported_weights_sha256 == exported_weights_sha256:
            return (record, successor) if successor and successor.action == ROLLBACK else None
        successor = record
    return None


def _is_unfinished(store: Store, layout: Layout, model_name: str, now: Champion) -> bool:
    """Return whether a rollback was killed between its record and the folder for servers.

    If the command is repeated, it then completes this rollback instead of going further back. A
    damaged champion cannot be served, so the next rollback leaves it.
    """
    if now.action != ROLLBACK:
        return False
    try:
        return not servers_see(store, layout, _verify_files(store, layout, model_name, now))
    except DataError:
        return False


def _verify_files(
    store: Store, layout: Layout, model_name: str, champion: Champion
) -> VerifiedChampion:
    """Verify a champion's records and the checksums of its files.

    Raises:
        DataError: A record or a file is damaged.
    """
    verified = verify_champion(store, layout, model_name, champion.number)
    assert verified is not None
    DataError.raise_if(verify(store, verified.version, verified.manifest))
    return verified


def _damaged(
    model_name: str, back_to: Champion, restorable: list[Champion], error: DataError
) -> Problem:
    alternatives = _alternatives(restorable, back_to.version)
    problems = [problem for problem in error.problems if isinstance(problem, Problem)]
    return Problem(
        f"version {back_to.version} of {model_name} cannot be restored, because it is damaged",
        received="; ".join(f"{problem.what}: {problem.received}" for problem in problems),
        expected="a version whose records agree and whose files match their checksums",
        fix=f"choose another with --to: {alternatives}; or promote a run: kfp-tfjob models promote",
    )


def _alternatives(restorable: list[Champion], version: int) -> str:
    """Return the restorable versions without `version` as a phrase, such as `version 3, 2`."""
    versions = dict.fromkeys(record.version for record in restorable if record.version != version)
    return f"version {listed(map(str, versions), 8)}" if versions else "none"


def _no_target(
    model_name: str, now: Champion, version: int, restorable: list[Champion], pruned: set[int]
) -> Problem:
    alternatives = _alternatives(restorable, now.version)
    if not version:
        return Problem(
            f"no champion of {model_name} before version {now.version} is left",
            expected="an earlier champion that was not pruned",
            fix=f"choose one with --to: {alternatives}"
            if alternatives != "none"
            else "to replace it, promote a run: kfp-tfjob models promote",
        )
    state = "was pruned" if version in pruned else "was never the champion"
    return Problem(
        f"version {version} of {model_name} {state}",
        received=f"--to {version}",
        expected=f"a champion that still exists: {alternatives}",
        fix="choose one of these"
        if version in pruned
        else "choose one of these, or promote its run: kfp-tfjob models promote",
    )
