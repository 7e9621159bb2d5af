"""Makes an earlier champion the champion again, with the same bytes, under the next numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from kfp_tfjob.registry.chain import Proven, prove
from kfp_tfjob.registry.champion_records import champions
from kfp_tfjob.registry.promotion import promote
from kfp_tfjob.registry.servable import publish_newest, servers_see
from kfp_tfjob.storage.champion import ROLLBACK, Champion, no_champion, read_champion
from kfp_tfjob.storage.errors import ConfigurationError, DataError, Problem, SurpassedError
from kfp_tfjob.storage.formatting import listed
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.store import Store
from kfp_tfjob.uploader import verify

_REMEMBERED = 20  # records; a user's decision does not hold indefinitely


@dataclass(frozen=True)
class RollbackPlan:
    """A rollback that was not done yet.

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
    """Yield the champions before the first time of this one, the newest first.

    A rollback goes back to the first of them that is kept. So going back twice goes further back:
    versions that a rollback left are passed by. The first time is the record of a verdict, or of a
    person who promoted it. No more records are read than the caller needs.

    Args:
        now: The champion.
        earlier: The records before its own, the newest first.
    """
    began, skipped = now.action != ROLLBACK, []
    for it in earlier:
        if it.version == now.version:
            began, skipped = began or it.action != ROLLBACK, []
        elif began:
            yield it
        else:
            skipped.append(it)
    yield from skipped  # its first record was removed


def plan(store: Store, layout: Layout, model_name: str, version: int = 0) -> RollbackPlan:
    """Return what a rollback would do, after proving the version that comes back.

    Args:
        store: The store.
        layout: Everything below output_uri.
        model_name: The model.
        version: The version; 0 for the champion before this one. Going back twice goes further
            back: a version that was left by a rollback is not chosen.

    Raises:
        ConfigurationError: The model has no such champion, or the version was pruned.
        DataError: The version or a record is damaged.
    """
    now = read_champion(store, layout, model_name)
    if now is None:
        raise ConfigurationError(no_champion(layout, model_name))
    if version == now.version or (not version and _is_unfinished(store, layout, model_name, now)):
        return RollbackPlan(model_name, now, now)
    pruned = set(store.numbers(layout.model(model_name).tombstones))
    found = champions(store, layout, model_name, below=now.number)
    if version:
        choice = (it for it in found if it.version == version)
    else:
        choice = walk_back(now, found)
    back_to = next((it for it in choice if it.version not in pruned), None)

    def kept() -> list[Champion]:
        records = champions(store, layout, model_name)
        return [it for it in records if it.version not in pruned]

    if back_to is None:
        raise ConfigurationError(_no_target(model_name, now, version, kept(), pruned))
    try:
        proven = _whole(store, layout, model_name, back_to)
    except DataError as error:
        raise DataError(_damaged(model_name, back_to, kept(), error)) from error
    back_to = replace(back_to, manifest_sha256=proven.manifest.digest)
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
        wanted = replace(
            planned.back_to,
            number=planned.now.number + 1,
            serving=0,
            action=ROLLBACK,
            by=by,
            why=why,
        )
        try:
            champion = promote(store, layout, planned.model_name, wanted)
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
    """Return the champion with these weights that a rollback replaced, and that rollback.

    A champion that came back since then, or that a better model replaced, is not taken back.

    Args:
        store: The store.
        layout: Everything below output_uri.
        model_name: The model.
        exported_weights_sha256: The digest of the weights.

    Returns:
        Both records; None if no rollback of the newest records replaced these weights. The graph
        may be another one, so the caller compares what both predict.
    """
    after = None
    for it in champions(store, layout, model_name, most=_REMEMBERED):
        if it.exported_weights_sha256 == exported_weights_sha256:
            return (it, after) if after and after.action == ROLLBACK else None
        after = it
    return None


def _is_unfinished(store: Store, layout: Layout, model_name: str, now: Champion) -> bool:
    """Return whether the champion's rollback was killed before servers could see it.

    The same command again then finishes it, and does not go further back. A damaged one cannot be
    finished, so it is left.
    """
    if now.action != ROLLBACK:
        return False
    try:
        return not servers_see(store, layout, _whole(store, layout, model_name, now))
    except DataError:
        return False


def _whole(store: Store, layout: Layout, model_name: str, champion: Champion) -> Proven:
    """Return a champion whose records agree and whose files are right.

    Raises:
        DataError: It is damaged.
    """
    proven = prove(store, layout, model_name, champion.number)
    assert proven is not None
    DataError.raise_if(verify(store, proven.version, proven.manifest))
    return proven


def _damaged(model_name: str, back_to: Champion, kept: list[Champion], error: DataError) -> Problem:
    known = [it for it in error.problems if isinstance(it, Problem)]
    return Problem(
        f"version {back_to.version} of {model_name} cannot be restored, because it is damaged",
        received="; ".join(f"{it.what}: {it.received}" for it in known),
        expected="a version whose records agree and whose files match their checksums",
        fix=f"choose another with --to: {_others(kept, back_to.version)}; or promote a run:"
        " kfp-tfjob models promote",
    )


def _others(kept: list[Champion], version: int) -> str:
    others = dict.fromkeys(it.version for it in kept if it.version != version)
    return f"version {listed(map(str, others), 8)}" if others else "none"


def _no_target(
    model_name: str, now: Champion, version: int, kept: list[Champion], pruned: set[int]
) -> Problem:
    known = _others(kept, now.version)
    if not version:
        return Problem(
            f"no champion of {model_name} before version {now.version} is left",
            expected="an earlier champion that was not pruned",
            fix=f"choose one with --to: {known}"
            if known != "none"
            else "to replace it, promote a run: kfp-tfjob models promote",
        )
    was = "was pruned" if version in pruned else "was never the champion"
    return Problem(
        f"version {version} of {model_name} {was}",
        received=f"--to {version}",
        expected=f"a champion that still exists: {known}",
        fix="choose one of these"
        if version in pruned
        else "choose one of these, or promote its run: kfp-tfjob models promote",
    )
