"""The registry on a real store: the chain, what servers read, rollbacks, pruning, kills."""

import json
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from kfp_tfjob.common.errors import (
    ConfigurationError,
    DataError,
    ObjectNotFoundError,
    StepError,
    SurpassedError,
)
from kfp_tfjob.registry import mirror, prune_versions, rollback, versions, view
from kfp_tfjob.registry.chain import fetch, verify_champion
from kfp_tfjob.registry.champion import Champion, read_champion, read_record
from kfp_tfjob.registry.history import history
from kfp_tfjob.registry.promotion import promote
from kfp_tfjob.registry.servable import publish_newest
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import VERSION_CLAIM, Layout
from kfp_tfjob.storage.store import Store
from tests.environments import ROOT, run_python
from tests.faults.proxy import FaultProxy
from tests.local.published import NAME, publish, roll_back, write_version
from tests.problems import problem_of, problems_of


def served(store: Store, layout: Layout) -> dict[int, str]:
    """The graph in each folder that a server would load."""
    place = layout.model(NAME)
    return {
        number: store.read(place.servable(number) / "saved_model.pb").decode()
        for number in store.numbers(place.serving)
        if any(it.address.name == "saved_model.pb" for it in store.list(place.servable(number)))
    }


def newest(store: Store, layout: Layout) -> Champion:
    champion = read_champion(store, layout, NAME)
    assert champion is not None
    return champion


def test_publish_and_roll_back(store: Store, layout: Layout, tmp_path: Path) -> None:
    publish(store, layout, "r1", "r2", "r3")
    assert served(store, layout) == {1: "graph of r1", 2: "graph of r2", 3: "graph of r3"}
    folder = layout.model(NAME).servable(3)
    keys = {it.address.key.removeprefix(f"{folder.key}/") for it in store.list(folder)}
    assert keys == {*("saved_model.pb", "request.json", "variables/variables.index")}

    # The old bytes get the next number; going back twice goes further back.
    champion = roll_back(store, layout)
    assert (champion.number, champion.version, champion.served_as) == (4, 2, 4)
    assert served(store, layout)[4] == "graph of r2"
    # One that was killed before servers could see it is finished, and goes no further back.
    store.delete(layout.model(NAME).servable(4) / "saved_model.pb")
    assert roll_back(store, layout) == champion and served(store, layout)[4] == "graph of r2"
    champion = roll_back(store, layout)
    assert (champion.number, champion.version, champion.served_as) == (5, 1, 5)
    with pytest.raises(ConfigurationError, match="pets.*version 1"):
        rollback.plan(store, layout, NAME)
    # Again with the same target: it is done already.
    assert roll_back(store, layout, 1) == newest(store, layout)

    # The next version is above every number that servers have seen.
    champion = publish(store, layout, "r4")
    assert (champion.number, champion.version, champion.served_as) == (6, 6, 6)
    assert max(served(store, layout)) == 6 and served(store, layout)[6] == "graph of r4"

    # The files are those of the champion, and the history knows who, when, which run and why.
    proven = verify_champion(store, layout, NAME)
    assert proven is not None and proven.serving == 6
    fetch(store, proven, tmp_path)
    assert (tmp_path / "model/saved_model.pb").read_text() == "graph of r4"
    events = history(store, layout, NAME)
    assert [
        (it.action, it.version, it.serving) for it in sorted(events, key=lambda e: e.champion)
    ] == [
        *(("publish", 1, 1), ("publish", 2, 2), ("publish", 3, 3)),
        *(("rollback", 2, 4), ("rollback", 1, 5), ("publish", 6, 6)),
    ]
    undone = next(it for it in events if it.champion == 4)
    assert (undone.by, undone.why, undone.run_id) == ("eva", "it is slow", "r2")
    assert next(it for it in events if it.champion == 6).why == "r4 is better"
    assert all(it.at for it in events)


@pytest.mark.slow
def test_the_last_run_to_tell_a_mirror_tells_it_the_champion(
    store: Store, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    publish(store, layout, "r1")
    told: list[int] = []

    def tell(it: mirror.Mirror, server: str, _: object, wanted: dict, *_rest: object) -> object:
        if not told:  # another run is promoted just before this one tells the mirror
            publish(store, layout, "r2")
        told.append(wanted["champion"])
        return mirror.Outcome(it.name, server, wanted["model"], True, "")

    monkeypatch.setattr(mirror, "_sync", tell)
    (outcome,) = mirror.sync(store, layout, NAME)
    assert outcome.done and told == [1, 2]


@pytest.mark.slow
def test_the_copy_of_a_record_that_was_surpassed_is_not_kept(
    store: Store, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, write = layout.model(NAME), store.write

    def late(address: S3Address, *more: object) -> str:
        if address == place.champion_copy:  # another run is promoted just before this write
            monkeypatch.setattr(store, "write", write)
            publish(store, layout, "r4")
        return write(address, *more)

    monkeypatch.setattr(store, "write", late)
    publish(store, layout, "r3")
    assert newest(store, layout).run_id == "r4"
    assert json.loads(store.read(place.champion_copy))["run_id"] == "r4"


@pytest.mark.slow
def test_a_late_champion_gets_a_number_above_the_others(store: Store, layout: Layout) -> None:
    late = write_version(store, layout, "late")
    publish(store, layout, "early")  # version 2, record 1
    found = promote(store, layout, NAME, replace(late, number=2))
    assert (found.version, found.served_as) == (1, 3)
    publish_newest(store, layout, NAME)
    assert served(store, layout) == {2: "graph of early", 3: "graph of late"}


def test_a_folder_for_servers_that_was_altered_is_copied_again(
    store: Store, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(store, layout, "r1")
    folder = layout.model(NAME).servable(1)
    right = {it.address: store.read(it.address) for it in store.list(folder)}
    names = [address.key.removeprefix(f"{folder.key}/") for address in right]
    first, second, third = right
    store.write(first, right[first][:-1] + b"!")  # the same size
    store.write(second, right[second] + b"!")
    store.delete(third)
    shown = view.show(store, layout, NAME, 1)
    assert shown.serving_uri == shown.proof == "" and list(shown.not_served) == names
    assert publish_newest(store, layout, NAME) == folder
    assert {it.address: store.read(it.address) for it in store.list(folder)} == right
    # What is beside the model stays, saved_model.pb is the last, and nothing is sent twice.
    extra = folder / "assets.extra" / "tf_serving_warmup_requests"
    store.write(extra, b"mine")
    sent: list[str] = []
    send = Store.send

    def watched(self: Store, path: Path, address: S3Address, key: str) -> object:
        sent.append(address.name)
        return send(self, path, address, key)

    monkeypatch.setattr(Store, "send", watched)
    assert publish_newest(store, layout, NAME) == folder and not sent
    for address in right:
        store.delete(address)
    assert publish_newest(store, layout, NAME) == folder and len(sent) == len(names) == 3
    assert sent[-1] == "saved_model.pb" and store.read(extra) == b"mine"


def test_a_damaged_record_is_named_until_it_is_removed(store: Store, layout: Layout) -> None:
    for run_id in ("r1", "r2", "r3", "r4"):
        write = write_version(store, layout, run_id)
        promote(store, layout, NAME, write)
    place = layout.model(NAME)
    # The clock of a writer was ahead: the order is that of the records all the same.
    _alter(store, place.champion(2), _set(at="2099-01-01T00:00:00+00:00"))
    right = json.loads(store.read(place.champion(3)))
    for body in (b"{", b"[]", b"{}", *(json.dumps(right | it).encode() for it in WRONG_TYPES)):
        store.write(place.champion(3), body)
        with pytest.raises(DataError, match="champions/3.json"):
            read_record(store, layout, NAME, 3)
    (row,) = view.rows(store, layout)
    assert (row.version, row.trouble) == (4, "")
    for call in (
        lambda: view.show(store, layout, NAME, 0),
        lambda: rollback.plan(store, layout, NAME),
        lambda: prune_versions.plan(store, layout, NAME, 3, 24),
    ):
        with pytest.raises(DataError, match=r"champions/3.json"):
            call()
    assert publish(store, layout, "r5").number == 5
    store.write(place.champion(3), json.dumps(right).encode())
    shown = view.show(store, layout, NAME, 0)
    assert shown.champion == newest(store, layout) and shown.proof == ""
    assert [it.champion for it in shown.history] == [5, 4, 3, 2, 1]
    assert [it.state for it in shown.versions][:2] == ["champion", "earlier champion"]
    # If it is the newest, it does not guess; once it is removed, the one before counts again.
    store.write(place.champion(5), b"{")
    with pytest.raises(DataError, match=r"champions/5.json"):
        view.show(store, layout, NAME, 0)
    store.delete(place.champion(5))
    assert rollback.plan(store, layout, NAME).back_to.version == 3


WRONG_TYPES = (
    *({"version": "3"}, {"version": True}, {"metrics": None}, {"metrics": {"accuracy": "high"}}),
    *({"weights_digest": 3}, {"why": None}, {"serving": 1.5}),
)


def _alter(store: Store, address: S3Address, change: Callable[[dict], None]) -> None:
    body = json.loads(store.read(address))
    change(body)
    store.write(address, json.dumps(body, indent=1, sort_keys=True).encode())


def _set(**values: object) -> Callable[[dict], None]:
    return lambda body: body.update(values)


TAMPERED: dict[str, tuple[str, Callable[[dict], None] | bytes | None]] = {
    "another graph": ("versions/1/model/saved_model.pb", b"graph of r9"),
    "another size": ("versions/1/model/saved_model.pb", b""),
    "no weights": ("versions/1/model/variables/variables.index", None),
    "another verdict": ("versions/1/verdict.json", _set(run_id="r9")),
    "no verdict": ("versions/1/verdict.json", None),
    "no manifest": ("versions/1/manifest.json", None),
    "a manifest of another run": ("versions/1/manifest.json", _set(run_id="r9")),
    "an empty manifest": ("versions/1/manifest.json", _set(objects=[])),
    "a record of another run": ("champions/1.json", _set(run_id="r9")),
    "a record of another version": ("champions/1.json", _set(version=2)),
    "a record of another model": (
        "champions/1.json",
        _set(version_uri="s3://b/models/x/versions/1"),
    ),
    "other weights": ("champions/1.json", _set(weights_digest="w")),
    "other metrics": ("champions/1.json", _set(metrics={"accuracy": 1.0})),
    "another manifest": ("champions/1.json", _set(manifest_sha256="0" * 64)),
    "a record without the manifest": ("champions/1.json", lambda body: body.pop("manifest_sha256")),
    "no record": ("champions/1.json", b"{"),
}


def test_nothing_is_served_on_trust(store: Store, layout: Layout, tmp_path: Path) -> None:
    publish(store, layout, "r1")
    for what, (path, change) in TAMPERED.items():
        address = layout.model(NAME).base / path
        before = store.read(address)
        if change is None:
            store.delete(address)
        elif isinstance(change, bytes):
            store.write(address, change)
        else:
            _alter(store, address, change)
        with pytest.raises(DataError):
            proven = verify_champion(store, layout, NAME)
            assert proven is not None, what
            fetch(store, proven, tmp_path / what)
            raise AssertionError(what)
        store.write(address, before)
    proven = verify_champion(store, layout, NAME)
    assert proven is not None
    fetch(store, proven, tmp_path / "right")


@pytest.mark.parametrize(
    ("path", "unseen"),
    [("versions/2/verdict.json", False), ("versions/2/model/saved_model.pb", True)],
)
def test_a_damaged_champion_of_a_rollback_is_left(
    store: Store, layout: Layout, path: str, unseen: bool
) -> None:
    publish(store, layout, "r1", "r2", "r3")
    assert roll_back(store, layout).version == 2
    store.write(layout.model(NAME).base / path, b"damaged")
    if unseen:  # killed before servers could see it, so it would be finished if it were whole
        store.delete(layout.model(NAME).servable(4) / "saved_model.pb")
    champion = roll_back(store, layout)
    assert (champion.number, champion.version, champion.action) == (5, 1, "rollback")
    assert served(store, layout)[champion.served_as] == "graph of r1"
    # None before it is left: the message names one that is whole, and not the same command.
    store.write(layout.model(NAME).version(1) / "verdict.json", b"damaged")
    problem = problem_of(rollback.plan, store, layout, NAME, kind=StepError)
    assert "--to" in problem.fix and "3" in problem.fix
    assert roll_back(store, layout, 3).version == 3
    # The next one back is damaged too: it is passed by only if a person names another.
    broken = problems_of(rollback.plan, store, layout, NAME, 1, kind=DataError)
    assert "--to" in broken[0].fix and not any("models rollback" in it.fix for it in broken)


def test_an_unblessed_version_needs_a_person(store: Store, layout: Layout) -> None:
    record = write_version(store, layout, "r1", blessed=False)
    promote(store, layout, NAME, record)
    with pytest.raises(DataError, match="bless"):
        verify_champion(store, layout, NAME)
    second = replace(record, number=2, action="promote", by="eva", why="it is needed")
    promote(store, layout, NAME, second)
    assert publish_newest(store, layout, NAME) == layout.model(NAME).servable(2)
    # A rollback brings it back, but overrules no verdict by itself.
    publish(store, layout, "r2")
    assert roll_back(store, layout).version == 1
    store.write(layout.model(NAME).champion(2), b"{")
    with pytest.raises(DataError, match="champions/2.json"):
        verify_champion(store, layout, NAME)
    store.delete(layout.model(NAME).champion(2))
    with pytest.raises(DataError, match="record"):
        verify_champion(store, layout, NAME)


@pytest.mark.slow
def test_a_rollback_while_runs_publish(store: Store, layout: Layout) -> None:
    """The one that creates the next record wins; the other is told, and nothing is torn."""
    publish(store, layout, "r1", "r2")
    records = [write_version(store, layout, f"run-{at}") for at in range(3)]
    planned = rollback.plan(store, layout, NAME)

    def attempt(call: Callable[[], Champion]) -> Champion | StepError:
        try:
            return call()
        except SurpassedError as error:
            return error

    calls: list[Callable[[], Champion]] = [
        lambda it=it: promote(Store(), layout, NAME, it) for it in records
    ]
    calls.append(lambda: rollback.execute(Store(), layout, planned, "eva", "why"))
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(attempt, calls))
    (won,) = [it for it in results if isinstance(it, Champion)]
    assert newest(store, layout) == won and won.number == 3
    publish_newest(store, layout, NAME)
    assert served(store, layout)[max(served(store, layout))] == f"graph of {won.run_id}"
    for record in (planned.back_to, *records):
        with pytest.raises(ObjectNotFoundError):
            store.head(layout.model(NAME).hold(record.version))
    if won.action != "rollback":
        assert "the rollback" in str(results[3])


# Each case runs in processes that die at their Nth write, for N from 1 until one survives.
_KILLED = """
import json, sys
from kfp_tfjob.registry import prune_versions
from kfp_tfjob.registry.chain import verify_champion
from kfp_tfjob.storage.layout import VERSION_CLAIM, Layout
from kfp_tfjob.storage.store import Store
from tests.local.dying import apart, die_at
from tests.local.published import NAME, publish, roll_back

def prune_all(store):
    planned = prune_versions.plan(store, layout, NAME, 1, 24)
    list(prune_versions.execute(store, layout, planned, 1, "eva"))

DO = {"rollback": lambda store: roll_back(store, layout, 1).number, "prune": prune_all}

def make():
    publish(Store(), layout, "r1", "r2", "r3")

def do(at):
    die_at(at)
    return DO[what](Store())

def check():
    store = Store()
    proven = verify_champion(store, layout, NAME)
    place = layout.model(NAME)
    numbers = [
        n for n in store.numbers(place.serving)
        if any(it.address.name == "saved_model.pb" for it in store.list(place.servable(n)))
    ]
    graph = store.read(place.servable(max(numbers)) / "saved_model.pb").decode()
    files = len(list(store.list(place.servable(max(numbers)))))
    copy = json.loads(store.read(place.champion_copy))["version"]
    return proven.champion.version, graph, files, copy

def sure(*given):
    code, found = apart(*given)
    assert code == 0, "a try without a kill fails"
    return found

what, root = sys.argv[1:]
for at in range(1, 100):
    layout = Layout.parse(f"{root}/{what}-{at}")
    sure(make)
    code, _ = apart(do, str(at))
    seen = sure(check)
    sure(do, "")
    print(at, code, *seen, "|", *sure(check), sep=";", flush=True)
    if code == 0:
        break
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "before", "after"),
    [
        ("rollback", (3, "graph of r3"), (1, "graph of r1")),
        ("prune", (3, "graph of r3"), (3, "graph of r3")),
    ],
)
def test_a_kill_at_every_write_leaves_a_champion(
    store: Store, layout: Layout, what: str, before: tuple, after: tuple
) -> None:
    done = run_python("-c", _KILLED, what, layout.root, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    lines = [line.split(";") for line in done.stdout.splitlines()]
    assert len(lines) > 8 and lines[-1][1] == "0"
    for at, code, version, graph, files, _, _, *finished in lines:
        assert int(code) in (-signal.SIGKILL, 0), at
        # Readable at any time, whole, and one of the two.
        assert files == "3" and int(version) in (before[0], after[0])
        assert graph in (before[1], after[1])
        assert finished == [str(after[0]), after[1], "3", str(after[0])], at


def claim_others(store: Store, layout: Layout, numbers: range) -> None:
    for number in numbers:
        body = f'{{"run_id": "other-{number}"}}\n'.encode()
        store.create(layout.model(NAME).version(number) / VERSION_CLAIM, body)


def test_a_claim_costs_the_same_among_few_and_many_versions(
    proxy: FaultProxy, store: Store, layout: Layout
) -> None:
    place, counting = layout.model(NAME), Store(proxy.endpoint)

    def claim(run_id: str) -> tuple[int, list[str]]:
        """Return the number, and the requests that claiming it took."""
        counting.probe(layout.root)
        with proxy.lock:
            proxy.seen.clear()
        number = versions.claim(counting, place, run_id)
        with proxy.lock:
            return number, sorted(seen.method for seen in proxy.seen)

    claim_others(store, layout, range(1, 3))
    number, few = claim("first")
    claim_others(store, layout, range(4, 60))
    assert (number, claim("second")) == (3, (60, few))
    assert len(few) <= 5

    # Retries, with other versions since then; and a version that was pruned meanwhile.
    claim_others(store, layout, range(61, 100))
    for run_id, expected in (("first", 3), ("second", 60)):
        number, again = claim(run_id)
        assert (number, len(again)) == (expected, len(few) + 2)
    store.create(place.tombstone(3), b"x")
    number, _ = claim("first")
    assert number == 100
    claim_others(store, layout, range(101, 120))
    number, again = claim("first")
    assert number == 100
    assert len(again) <= 2 * len(few) + 4
    assert versions.claimed_by(store, place, 100) == ("first", "")


def test_a_claim_is_found_without_a_listing(store: Store, layout: Layout) -> None:
    class Blind(Store):
        """A store whose listings lack the newest folders."""

        def folders(self, prefix: S3Address) -> list[str]:
            return [it for it in super().folders(prefix) if it in ("1", "2")]

    place = layout.model(NAME)
    claim_others(store, layout, range(1, 4))
    assert versions.claim(store, place, "mine") == 4
    claim_others(store, layout, range(5, 7))
    assert versions.claim(Blind(), place, "mine") == 4
    assert versions.claim(Blind(), place, "another") == 7
    assert versions.claim(store, place, "another") == 7
