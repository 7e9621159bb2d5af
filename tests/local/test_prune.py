"""What a prune deletes, and what a rollback at the same time keeps."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from kfp_tfjob.common.errors import ConfigurationError, DataError
from kfp_tfjob.registry import prune_versions, rollback, view
from kfp_tfjob.registry.chain import verify_champion
from kfp_tfjob.registry.champion import read_champion
from kfp_tfjob.registry.history import history
from kfp_tfjob.registry.promotion import Hold, promote
from kfp_tfjob.storage import documents
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import MANIFEST, Layout
from kfp_tfjob.storage.store import Listed, Store
from kfp_tfjob.uploader import verify
from tests.local.published import NAME, publish, roll_back, write_version

HOLD = documents.to_bytes(Hold("another process", champion=4))


def prune(
    store: Store, layout: Layout, planned: prune_versions.PruningPlan, by: str = "eva"
) -> list[str]:
    """Delete what is planned; return why something stays after all."""
    return [why for _, why in prune_versions.execute(store, layout, planned, 1, by) if why]


@pytest.mark.slow
def test_prune(store: Store, layout: Layout) -> None:
    publish(store, layout, "r1", "r2", "r3", "r4")
    write_version(store, layout, "in flight")
    place = layout.model(NAME)
    planned = prune_versions.plan(store, layout, NAME, keep=1, hours=24)
    assert [(it.version, it.serving) for it in planned.candidates] == [
        *((1, 0), (2, 0), (0, 1), (0, 2))
    ]
    assert planned.kept.keys() >= {3, 4}
    assert "in flight" in planned.kept[5]
    assert store.numbers(place.tombstones) == []  # a plan changes nothing

    # Version 1 comes back between plan and deletion: it stays.
    roll_back(store, layout, 1)
    notes = prune(store, layout, planned)
    assert [note.partition(":")[0] for note in notes] == ["version 1 is kept"]
    assert store.numbers(place.tombstones) == [2]
    assert [it.address.name for it in store.list(place.version(2))] == ["claim.json"]
    assert store.numbers(place.serving) == [3, 4, 6]
    with pytest.raises(ConfigurationError, match="pets"):
        rollback.plan(store, layout, NAME, 2)
    champion = read_champion(store, layout, NAME)
    assert champion is not None
    record = replace(champion, number=6, version=2)
    with pytest.raises(DataError, match="was pruned"):
        promote(store, layout, NAME, record)
    event = next(it for it in history(store, layout, NAME) if it.action == "prune")
    assert (event.version, event.by, event.run_id) == (2, "eva", "r2")
    # A run whose version was pruned publishes under a new number.
    assert write_version(store, layout, "r2").version == 7
    states = {it.version: it.state for it in view.show(store, layout, NAME, 0).versions}
    assert states == {
        **{1: "champion", 2: "pruned", 3: "earlier champion", 4: "earlier champion"},
        **{5: "complete", 7: "complete"},
    }


@pytest.mark.slow
def test_a_version_that_is_held_is_not_pruned(store: Store, layout: Layout) -> None:
    publish(store, layout, "r1", "r2", "r3")
    place = layout.model(NAME)
    planned = prune_versions.plan(store, layout, NAME, keep=1, hours=1)
    store.create(place.hold(1), HOLD)  # a rollback of another process
    assert 1 in prune_versions.plan(store, layout, NAME, keep=1, hours=1).kept
    (note,) = prune(store, layout, planned)
    assert note.startswith("version 1 is kept: ")
    assert store.numbers(place.tombstones) == []
    assert rollback.plan(store, layout, NAME, 1).back_to.version == 1


def test_a_rollback_that_stands_still_for_hours_keeps_its_version(
    store: Store, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A laptop sleeps between the rollback's look for a tombstone and its record."""
    publish(store, layout, "r1", "r2", "r3")
    place = layout.model(NAME)
    notes: list[str] = []

    class Sleeping(Store):
        def create(self, address: S3Address, data: bytes, content_type: str = "") -> str:
            if address == place.champion(4):
                with monkeypatch.context() as hours_later:
                    hours_later.setattr(prune_versions, "age", lambda *_: 1e6)
                    planned = prune_versions.plan(store, layout, NAME, keep=1, hours=1)
                    assert 1 in planned.kept
                    old = prune_versions.Candidate(1, 0, "an earlier champion", 1, 1)
                    planned = replace(planned, candidates=(old,))
                    notes.extend(prune(store, layout, planned))
            return super().create(address, data, content_type)

    roll_back(Sleeping(), layout, 1)
    (note,) = notes
    assert note.startswith("version 1 is kept: ")
    proven = verify_champion(store, layout, NAME)
    assert proven is not None and proven.champion.version == 1
    assert verify(store, proven.version, proven.manifest) == []
    assert not store.has(place.hold(1))


def test_a_hold_is_void_once_another_record_has_its_number(store: Store, layout: Layout) -> None:
    """A rollback was killed; time does not show that, but it can no longer succeed."""
    publish(store, layout, "r1", "r2", "r3")
    place = layout.model(NAME)
    store.create(place.hold(1), HOLD)
    assert 1 in prune_versions.plan(store, layout, NAME, keep=1, hours=1).kept
    publish(store, layout, "r4")
    planned = prune_versions.plan(store, layout, NAME, keep=1, hours=1)
    assert 1 in [it.version for it in planned.candidates]
    assert prune(store, layout, planned) == []
    assert not store.has(place.version(1) / MANIFEST)


def test_a_promotion_that_fails_keeps_its_hold_for_another_of_the_same_version(
    store: Store, layout: Layout
) -> None:
    """Two launches of publish: one has looked for a tombstone, and the other one fails."""
    publish(store, layout, "r1", "r2")
    place = layout.model(NAME)
    store.create(place.tombstone(1), b"x")  # of a prune that looks for holds next
    champion = read_champion(store, layout, NAME)
    assert champion is not None
    with pytest.raises(DataError, match="was pruned"):
        promote(store, layout, NAME, replace(champion, number=3, version=1))
    assert store.has(place.hold(1))


class Interrupted(Store):
    """A store in which others act before the first object is deleted."""

    def __init__(self, act: Callable[[], None]) -> None:
        super().__init__()
        self._act = act

    def delete(self, address: S3Address) -> None:
        act, self._act = self._act, lambda: None
        act()
        super().delete(address)


def test_a_tombstone_that_another_prune_takes_back_is_not_trusted(
    store: Store, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The version was deleted without a tombstone, so a rollback could still choose it."""
    publish(store, layout, "r1", "r2", "r3")
    place = layout.model(NAME)
    planned = prune_versions.plan(store, layout, NAME, keep=1, hours=1)
    store.create(place.hold(1), HOLD)  # a rollback that finds the tombstone, and gives up
    whys: list[str] = []

    def another() -> None:
        store.delete(place.hold(1))
        whys.extend(prune(store, layout, planned))

    prune(Interrupted(another), layout, planned, "ann")
    (why,) = whys
    assert why.startswith("version 1 is kept: ") and "10 minutes" in why
    assert rollback.plan(store, layout, NAME, 1).back_to.version == 1
    # One of a prune that was killed is.
    store.create(place.tombstone(1), b"x")
    # A store may round the time of an object up to the next second.
    monkeypatch.setattr(prune_versions, "TOMBSTONE_SECONDS", -2)
    assert not prune(store, layout, planned)
    assert not store.has(place.version(1) / MANIFEST)


class Late(Store):
    """A store whose listings are those of a moment ago; what is read by its key is exact."""

    def __init__(self, seen: set[S3Address]) -> None:
        super().__init__()
        self._seen = seen

    def list(self, prefix: S3Address) -> Iterator[Listed]:
        return (it for it in super().list(prefix) if it.address in self._seen)


def test_a_listing_that_is_late_costs_no_champion(store: Store, layout: Layout) -> None:
    publish(store, layout, "r1", "r2", "r3", "r4")
    late = Late({it.address for it in store.list(layout.root)})
    planned = prune_versions.plan(late, layout, NAME, keep=1, hours=1)
    assert [it.version for it in planned.candidates if it.version] == [1, 2]
    roll_back(store, layout, 2)
    assert prune_versions.plan(late, layout, NAME, keep=1, hours=1).kept[2]
    notes = prune(late, layout, planned)
    assert [note.partition(":")[0] for note in notes] == ["version 1 is kept", "version 2 is kept"]
    assert verify_champion(store, layout, NAME) is not None
