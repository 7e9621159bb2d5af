"""The mirror, pass by pass, on the real server."""

import mmap
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kfp_tfjob.common.errors import DataError, ObjectExistsError, ObjectNotFoundError
from kfp_tfjob.storage.checksum import file_crc64nvme
from kfp_tfjob.storage.layout import RunLayout
from kfp_tfjob.storage.retry import Patience
from kfp_tfjob.storage.store import PART, Store
from kfp_tfjob.uploader import ownership, verify
from kfp_tfjob.uploader.local_files import scan
from kfp_tfjob.uploader.mirror import Mirror, unnumbered
from kfp_tfjob.uploader.ownership import FencedError, Ownership
from tests.faults.proxy import Exchange, Fault, FaultProxy, midway, refuse, slow_down
from tests.faults.world import EVER, unfinished, write_files


@pytest.fixture
def run(base) -> RunLayout:
    return RunLayout(base)


@pytest.fixture
def start(store, run, tmp_path) -> Callable[..., Mirror]:
    """Return a mirror of tmp_path as a sidecar that has just started has it."""
    return lambda attempt=1, **more: Mirror(store, tmp_path, run, "r", attempt, **more)


def write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def remove(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()


def settle(mirror: Mirror, folder: Path) -> None:
    mirror.store(scan(folder), scan(folder))


def made(proxy: FaultProxy) -> list[str]:
    with proxy.lock:
        methods = [seen.method for seen in proxy.seen]
        proxy.seen.clear()
    return methods


def test_a_pass_without_changes_makes_no_request(proxy, run, tmp_path):
    write(tmp_path / "checkpoints/5/data", b"five")
    write(tmp_path / "logs/events.out.tfevents.1", b"event")
    mirror = Mirror(Store(proxy.endpoint), tmp_path, run, "r", 1)
    settle(mirror, tmp_path)
    assert mirror.missing(scan(tmp_path)) == []
    assert made(proxy)
    settle(mirror, tmp_path)
    mirror.prune(scan(tmp_path), scan(tmp_path))
    assert made(proxy) == []
    write(tmp_path / "new", b"file")
    settle(mirror, tmp_path)
    assert made(proxy) == ["PUT"]


def test_a_file_that_still_changes_is_left_for_later(store, run, start, tmp_path):
    mirror = start()
    write(tmp_path / "model.keras", b"half")
    before = scan(tmp_path)
    write(tmp_path / "model.keras", b"whole")
    mirror.store(scan(tmp_path), before)
    assert mirror.missing(scan(tmp_path)) == ["model.keras"]
    settle(mirror, tmp_path)
    assert store.read(run.output / "model.keras") == b"whole"


def test_a_write_through_a_mapping_is_stored_at_the_end(proxy, store, run, tmp_path):
    def at_end() -> None:
        mirror.store(scan(tmp_path), scan(tmp_path), everything=True)

    mirror = Mirror(Store(proxy.endpoint), tmp_path, run, "r", 1)
    write(tmp_path / "other", b"as it is")
    (tmp_path / "scores").write_bytes(bytes(100))
    with open(tmp_path / "scores", "r+b") as file, mmap.mmap(file.fileno(), 100) as mapped:
        mapped[:50] = bytes([1] * 50)
        settle(mirror, tmp_path)
        seen = scan(tmp_path)
        mapped[50:] = bytes([2] * 50)
        if scan(tmp_path) != seen:
            pytest.skip("this file system shows every write")
    made(proxy)
    at_end()
    assert store.read(run.output / "scores") == bytes([1] * 50 + [2] * 50)
    assert made(proxy).count("PUT") == 1
    at_end()
    assert made(proxy) == []
    manifest = mirror.publish(scan(tmp_path))
    assert {it.key: it.crc64nvme for it in manifest.objects} == {
        f"output/{name}": file_crc64nvme(tmp_path / name) for name in ("other", "scores")
    }


def test_a_growing_file_is_sent_as_snapshots(store, run, start, tmp_path):
    log = tmp_path / "progress.jsonl"
    mirror = start(snapshot_seconds=3600)
    write(log, b"1\n")
    settle(mirror, tmp_path)
    write(log, b"1\n2\n")
    settle(mirror, tmp_path)
    assert store.read(run.output / "progress.jsonl") == b"1\n"
    mirror.store(scan(tmp_path), scan(tmp_path), everything=True)
    assert store.read(run.output / "progress.jsonl") == b"1\n2\n"
    assert mirror.missing(scan(tmp_path)) == []


def test_a_checkpoint_has_a_manifest_of_its_own(store, run, start, tmp_path):
    write(tmp_path / "checkpoints/7/shard 0", b"a")
    write(tmp_path / "checkpoints/7/deep/index", b"b")
    for path in ("own/best.keras", "progress.jsonl", os.fsdecode(b"\xff")):
        write(tmp_path / path, b"beside")
    settle(start(attempt=3), tmp_path)
    manifest = store.read_manifest(run.checkpoints / "7" / "manifest.json")
    assert [item.key for item in manifest.objects] == ["deep/index", "shard 0"]
    assert (manifest.kind, manifest.run_id, manifest.attempt) == ("checkpoint", "r", 3)
    assert manifest.details == {"step": 7, "files": ["own/best.keras", "progress.jsonl"]}


def test_a_pod_that_was_replaced_sends_only_files_beside_checkpoints_again(proxy, run, tmp_path):
    write(tmp_path / "checkpoints/7/data", b"a" * 100)
    write(tmp_path / "model.keras", b"b" * 100)
    store = Store(proxy.endpoint)
    first = Mirror(store, tmp_path, run, "r", 1)
    settle(first, tmp_path)
    first.publish(scan(tmp_path))
    made(proxy)

    restarted = Mirror(store, tmp_path, run, "r", 1)
    settle(restarted, tmp_path)

    assert restarted.missing(scan(tmp_path)) == []
    assert made(proxy).count("PUT") == 1
    assert restarted.publish(scan(tmp_path)).attempt == 1


@pytest.mark.parametrize("path", ["checkpoints/7/data", "model.keras"])
def test_an_error_that_is_not_known_ends_no_pass_before_the_last(proxy, run, tmp_path, path):
    """It ended the sidecar. Then checkpoints were stored only after the pod was restarted."""
    write(tmp_path / path, b"data")
    store = Store(proxy.endpoint, patience=Patience(0.1))
    settle(Mirror(store, tmp_path, run, "r", 1), tmp_path)
    made(proxy)
    restarted = Mirror(store, tmp_path, run, "r", 1)
    proxy.faults = [Fault(refuse(405, "NotOfS3"), "GET", "list-type", EVER)]
    for _ in range(2):
        settle(restarted, tmp_path)
        assert "NotOfS3" in restarted.trouble["the store"]
        assert restarted.missing(scan(tmp_path))
    assert "PUT" not in made(proxy)
    proxy.faults = []
    settle(restarted, tmp_path)
    assert not restarted.trouble and not restarted.missing(scan(tmp_path))
    assert len(proxy.of("PUT", path)) == (path == "model.keras")  # the checkpoint was recognized


def test_an_error_of_the_owners_check_is_reported(proxy, run, tmp_path, monkeypatch):
    monkeypatch.setattr(ownership, "_FRESH", 0)
    store = Store(proxy.endpoint, patience=Patience(0.1))
    owner = Ownership(store, run, "r", 1, None)
    owner.claim()
    mirror = Mirror(store, tmp_path, run, "r", 1, check_owner=owner.check)
    settle(mirror, tmp_path)
    for number in range(20):
        write(tmp_path / f"file {number}", b"data")
    for after in (0, 4):  # before the first file, and within the batch
        proxy.faults = [Fault(refuse(405, "NotOfS3"), "GET", "attempts", EVER, after)]
        settle(mirror, tmp_path)
        assert "NotOfS3" in mirror.trouble["the store"]
        assert mirror.missing(scan(tmp_path))
    proxy.faults = []
    settle(mirror, tmp_path)
    assert not mirror.trouble and not mirror.missing(scan(tmp_path))


@pytest.fixture
def first_attempt(proxy, run, tmp_path) -> Mirror:
    """The mirror of attempt 1, whose next check of the owner is several seconds away."""
    store = Store(proxy.endpoint, patience=Patience(5))
    owner = Ownership(store, run, "r", 1, None)
    owner.claim()
    return Mirror(store, tmp_path, run, "r", 1, check_owner=owner.check)


def test_a_fenced_mirror_ends_within_its_batch(
    proxy, store, run, tmp_path, first_attempt, monkeypatch
):
    """A node that was frozen sent all files, over those of the next attempt."""
    for number in range(40):
        write(tmp_path / f"own/{number:02}", b"attempt 1")
    settle(first_attempt, tmp_path / "nothing")
    monkeypatch.setattr(ownership, "_FRESH", 0)

    def thaw(exchange: Exchange) -> bool:
        store.create(run.attempt(2), b'{"run_id": "r", "attempt": 2}')
        return False

    proxy.faults = [Fault(thaw, target="/own/")]
    with pytest.raises(FencedError):
        settle(first_attempt, tmp_path)
    assert len(proxy.of("PUT", "/own/")) < 20


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PUT", "own"),
        ("PUT", "own/large"),
        ("PUT", "checkpoints/1/manifest.json"),
        ("DELETE", "checkpoints/1/manifest.json"),
    ],
)
def test_a_fenced_mirror_repeats_no_request(
    proxy, store, run, tmp_path, first_attempt, method, path
):
    write(tmp_path / "checkpoints/1/data", b"attempt 1")
    if method == "DELETE":
        settle(first_attempt, tmp_path)
        write(tmp_path / "checkpoints/1/data", b"attempt 1 again")
    elif path.startswith("own"):
        write(tmp_path / path, b"attempt 1" * (PART // 5 if "large" in path else 1))

    def thaw(exchange: Exchange) -> bool:
        store.create(run.attempt(2), b'{"run_id": "r", "attempt": 2}')
        store.write(run.output / path, b"attempt 2")
        return exchange.reset()

    proxy.faults = [Fault(thaw, method, f"/output/{path}")]
    with pytest.raises(FencedError):
        settle(first_attempt, tmp_path)
    assert proxy.faults[0].happened
    assert store.read(run.output / path) == b"attempt 2"


def test_a_pod_that_was_replaced_publishes_its_own_output(store, run, tmp_path):
    """Its output had replaced the objects that the first pod's manifest lists."""
    for pod in ("first", "second"):
        write(tmp_path / pod / "model.keras", pod.encode())
        mirror = Mirror(store, tmp_path / pod, run, "r", 1)
        settle(mirror, tmp_path / pod)
        mirror.publish(scan(tmp_path / pod))
    manifest = store.read_manifest(run.manifest)
    assert verify(store, run.base, manifest) == []
    for run_id, attempt in (("r", 2), ("other", 1)):
        write(tmp_path / run_id / "model.keras", b"other")
        mirror = Mirror(store, tmp_path / run_id, run, run_id, attempt)
        settle(mirror, tmp_path / run_id)
        with pytest.raises(ObjectExistsError):
            mirror.publish(scan(tmp_path / run_id))
    assert store.read_manifest(run.manifest) == manifest


def test_what_was_there_before_a_checkpoint_is_stored_before_it(proxy, run, tmp_path):
    write(tmp_path / "logs/events.out.tfevents.1", b"1")
    write(tmp_path / "own/best.keras", b"best")
    write(tmp_path / "completion.json", b"{}")
    mirror = Mirror(Store(proxy.endpoint), tmp_path, run, "r", 1, snapshot_seconds=3600)
    mirror.store(scan(tmp_path), scan(tmp_path / "nowhere"))
    write(tmp_path / "logs/events.out.tfevents.1", b"12")
    write(tmp_path / "checkpoints/7/data", b"seven")
    made(proxy)
    settle(mirror, tmp_path)
    order = [seen.target.partition("/output/")[2] for seen in proxy.of("PUT", "/output/")]
    assert sorted(order[:2]) == ["logs/events.out.tfevents.1", "own/best.keras"]
    assert order[2:] == ["checkpoints/7/data", "checkpoints/7/manifest.json", "completion.json"]


MODEL = {
    "model/saved_model.pb": b"graph 1",
    "model/variables/variables.data-00000-of-00001": b"data 1",
    "model/variables/variables.index": b"index 1",
    "model/fingerprint.pb": b"fingerprint 1",
}


def test_a_saved_model_is_never_half_of_two_exports(proxy, store, run, tmp_path):
    write_files(tmp_path, MODEL)
    mirror = Mirror(Store(proxy.endpoint, patience=Patience(0.1)), tmp_path, run, "r", 1)
    settle(mirror, tmp_path)
    assert proxy.of("PUT", "/model/")[-1].target.endswith("saved_model.pb")

    proxy.faults = [Fault(slow_down, target="/model/variables/variables.index", times=9e9)]
    write_files(tmp_path, {path: data.replace(b"1", b"2") for path, data in MODEL.items()})
    settle(mirror, tmp_path)
    assert store.read(run.output / "model/saved_model.pb") == b""
    assert "model/saved_model.pb" in mirror.missing(scan(tmp_path))

    proxy.faults = []
    settle(mirror, tmp_path)
    assert mirror.missing(scan(tmp_path)) == []
    assert store.read(run.output / "model/saved_model.pb") == b"graph 2"


def test_no_part_of_a_saved_model_is_replaced_beside_its_graph(proxy, store, run, tmp_path):
    write_files(tmp_path, MODEL)
    mirror = Mirror(Store(proxy.endpoint, patience=Patience(0.1)), tmp_path, run, "r", 1)
    settle(mirror, tmp_path)
    proxy.faults = [Fault(slow_down, target="saved_model.pb", times=float("inf"))]
    write(tmp_path / "model/variables/variables.index", b"index 2")
    settle(mirror, tmp_path)
    assert store.read(run.output / "model/variables/variables.index") == b"index 1"
    proxy.faults = []
    settle(mirror, tmp_path)
    assert mirror.missing(scan(tmp_path)) == []
    assert store.read(run.output / "model/saved_model.pb") == b"graph 1"


def test_a_saved_model_of_an_earlier_attempt_is_no_part_of_a_new_one(store, run, tmp_path):
    """TensorFlow writes saved_model.pb last, so the other parts may be stored long before it."""
    write_files(tmp_path / "first", MODEL)
    settle(Mirror(store, tmp_path / "first", run, "r", 1), tmp_path / "first")
    output = tmp_path / "second"
    write_files(output, {"model/variables/variables.index": b"index 2"})
    second = Mirror(store, output, run, "r", 2)
    settle(second, output)
    assert store.read(run.output / "model/variables/variables.index") == b"index 2"
    assert store.read(run.output / "model/saved_model.pb") == b""
    write_files(output, {"model/saved_model.pb": b"graph 2"})
    settle(second, output)
    assert store.read(run.output / "model/saved_model.pb") == b"graph 2"


def test_a_saved_model_inside_another_may_be_deleted(store, run, start, tmp_path):
    nested = {f"model/assets/tokenizer/{path}": data for path, data in MODEL.items()}
    write_files(tmp_path, MODEL | nested)
    mirror = start()
    settle(mirror, tmp_path)
    shutil.rmtree(tmp_path / "model/assets")
    write_files(tmp_path, {path: data.replace(b"1", b"2") for path, data in MODEL.items()})
    settle(mirror, tmp_path)
    assert mirror.missing(scan(tmp_path)) == []
    assert store.read(run.output / "model/saved_model.pb") == b"graph 2"


def test_a_restored_saved_model_stays_complete_in_the_store(proxy, store, run, start, tmp_path):
    """The second attempt would lose it if its pod died while the same bytes are sent again."""
    write_files(tmp_path, MODEL)
    settle(start(), tmp_path)
    made(proxy)
    second = Mirror(Store(proxy.endpoint), tmp_path, run, "r", 2)
    settle(second, tmp_path)
    assert second.missing(scan(tmp_path)) == []
    assert not [method for method in made(proxy) if method in ("PUT", "DELETE")]


def test_a_file_that_fails_holds_back_no_checkpoint(proxy, run, tmp_path):
    proxy.faults = [Fault(slow_down, target="best", times=float("inf"))]
    write(tmp_path / "best.keras", b"best")
    write(tmp_path / "checkpoints/7/data", b"seven")
    store = Store(proxy.endpoint, patience=Patience(0.1))
    mirror = Mirror(store, tmp_path, run, "r", 1)
    settle(mirror, tmp_path)
    assert store.read_manifest(run.checkpoints / "7" / "manifest.json")
    assert mirror.missing(scan(tmp_path)) == ["best.keras"]
    proxy.faults = []
    settle(mirror, tmp_path)
    assert mirror.missing(scan(tmp_path)) == []


def test_a_step_that_was_written_anew_replaces_the_old_one(store, run, start, tmp_path):
    write(tmp_path / "checkpoints/7/data", b"old")
    write(tmp_path / "checkpoints/7/same", b"same")
    settle(start(), tmp_path)
    write(tmp_path / "checkpoints/7/data", b"new!")
    settle(start(attempt=2), tmp_path)
    manifest = store.read_manifest(run.checkpoints / "7" / "manifest.json")
    assert manifest.attempt == 2
    for item in manifest.objects:
        store.verify(run.checkpoints / "7" / item.key, item)
    assert store.read(run.checkpoints / "7" / "data") == b"new!"


def test_a_damaged_step_that_is_written_anew_is_sent_anew(store, run, start, tmp_path):
    """A resumed training writes the same bytes again, so the old manifest would match them."""
    write(tmp_path / "checkpoints/7/data", b"data")
    settle(start(), tmp_path)
    store.write(run.checkpoints / "7" / "data", b"DATA")
    remove(tmp_path / "checkpoints/7")
    second = start(attempt=2)
    settle(second, tmp_path)

    write(tmp_path / "checkpoints/7/data", b"data")
    settle(second, tmp_path)

    assert store.read(run.checkpoints / "7" / "data") == b"data"
    assert store.read_manifest(run.checkpoints / "7" / "manifest.json").attempt == 2


def test_a_step_is_removed_only_when_it_is_safe(store, run, start, tmp_path):
    mirror = start()
    for step in (9, 10):
        write(tmp_path / f"checkpoints/{step}/data", b"x")
    settle(mirror, tmp_path)
    full = scan(tmp_path)

    remove(tmp_path / "checkpoints/10")
    mirror.prune(scan(tmp_path), scan(tmp_path))
    assert store.numbers(run.checkpoints) == [9, 10], "no newer step is stored"

    remove(tmp_path / "checkpoints/9")
    gone = scan(tmp_path)
    mirror.prune(gone, full)
    mirror.prune(replace(gone, errors=("a directory could not be read",)), gone)
    assert store.numbers(run.checkpoints) == [9, 10], "seen twice without an error"

    mirror.prune(gone, gone)
    assert [item.address.key for item in store.list(run.checkpoints / "9")] == []
    assert store.numbers(run.checkpoints) == [10]


@pytest.mark.parametrize(("name", "left"), [("checkpoint.json", [2]), ("data", [1, 2])])
def test_steps_that_were_never_here_are_removed_if_the_projects_trainer_wrote_them(
    store, run, start, tmp_path, name, left
):
    """A new pod gets only the newest step of another program, which may want the others."""
    for step in (1, 2):
        write(tmp_path / f"checkpoints/{step}/{name}", b"x")
    settle(start(), tmp_path)
    remove(tmp_path / "checkpoints/1")
    second = start(attempt=2)
    settle(second, tmp_path)
    second.prune(scan(tmp_path), scan(tmp_path))
    assert store.numbers(run.checkpoints) == left
    assert store.read_manifest(run.checkpoints / "2" / "manifest.json").attempt == 1


def test_steps_are_removed_after_an_outage(proxy, store, run, tmp_path):
    """The outage comes when everything is stored, so no file is due that would end it."""
    for step in (9, 10):
        write(tmp_path / f"checkpoints/{step}/data", b"x")
    mirror = Mirror(Store(proxy.endpoint, patience=Patience(0.1)), tmp_path, run, "r", 1)
    settle(mirror, tmp_path)
    remove(tmp_path / "checkpoints/9")
    settle(mirror, tmp_path)
    proxy.faults = [Fault(slow_down, "DELETE", times=float("inf"))]
    mirror.prune(scan(tmp_path), scan(tmp_path))
    assert mirror.away
    proxy.faults = []

    settle(mirror, tmp_path)
    mirror.prune(scan(tmp_path), scan(tmp_path))

    assert store.numbers(run.checkpoints) == [10]
    assert not mirror.away


def test_a_step_that_vanishes_while_it_is_sent_is_removed(proxy, store, run, tmp_path):
    """No checkpoint is stored before it, and no later scan shows it."""
    for name in ("data", "index"):
        write(tmp_path / f"checkpoints/1/{name}", name.encode())

    def vanish() -> None:
        remove(tmp_path / "checkpoints/1")

    proxy.faults = [Fault(midway(vanish), target="/checkpoints/1/")]
    mirror = Mirror(Store(proxy.endpoint), tmp_path, run, "r", 1)
    full = scan(tmp_path)
    mirror.store(full, full)
    mirror.prune(full, full)
    assert store.numbers(run.checkpoints) == [1]

    for step in (2, 3):
        write(tmp_path / f"checkpoints/{step}/data", b"x")
    for _ in range(2):
        settle(mirror, tmp_path)
        mirror.prune(scan(tmp_path), scan(tmp_path))

    assert store.numbers(run.checkpoints) == [2, 3]


def test_half_of_a_step_that_is_being_deleted_is_not_published(proxy, store, run, tmp_path):
    for name in ("data", "index"):
        write(tmp_path / f"checkpoints/1/{name}", name.encode())
    mirror = Mirror(Store(proxy.endpoint), tmp_path, run, "r", 1)
    settle(mirror, tmp_path)
    made(proxy)
    (tmp_path / "checkpoints/1/data").unlink()

    for everything in (False, True):
        mirror.store(scan(tmp_path), scan(tmp_path), everything)

    assert made(proxy) == []
    assert mirror.missing(scan(tmp_path)) == []
    manifest = store.read_manifest(run.checkpoints / "1" / "manifest.json")
    assert verify(store, run.checkpoints / "1", manifest) == []
    assert [item.key for item in manifest.objects] == ["data", "index"]


def test_a_step_with_a_file_called_manifest_is_mirrored_as_it_is(store, run, start, tmp_path):
    write(tmp_path / "checkpoints/7/data", b"a")
    write(tmp_path / "checkpoints/7/manifest.json", b"{}")
    mirror = start()
    settle(mirror, tmp_path)
    assert mirror.missing(scan(tmp_path)) == []
    assert store.read(run.checkpoints / "7" / "manifest.json") == b"{}"
    with pytest.raises(DataError, match="manifest"):
        store.read_manifest(run.checkpoints / "7" / "manifest.json")


def test_one_file_that_cannot_be_sent_stops_no_other(store, run, start, tmp_path):
    write(tmp_path / os.fsdecode(b"\xff"), b"x")
    write(tmp_path / "a" / ("b" * 250) / ("c" * 250) / ("d" * 250) / ("e" * 250), b"x")
    write(tmp_path / "checkpoints/3" / os.fsdecode(b"\xfe"), b"x")
    write(tmp_path / "checkpoints/2/data", b"x")
    write(tmp_path / "z", b"x")
    mirror = start()
    settle(mirror, tmp_path)
    assert len(mirror.trouble) == 3
    assert len(mirror.missing(scan(tmp_path))) == 4, "three files and the manifest of step 3"
    assert store.read(run.output / "z") == b"x"
    assert store.read_manifest(run.checkpoints / "2" / "manifest.json")
    with pytest.raises(ObjectNotFoundError):
        store.read_manifest(run.checkpoints / "3" / "manifest.json")


@pytest.mark.parametrize("fate", ["stayed", "grew", "was pruned"])
def test_an_upload_that_an_outage_ended_goes_on_if_its_file_stayed(
    proxy, store, run, tmp_path, fate
):
    path = "logs/events.out.tfevents.1" if fate == "grew" else "checkpoints/1/data"
    write(tmp_path / path, b"x" * (PART + 5))
    proxy.faults = [Fault(slow_down, target="partNumber=2", times=float("inf"))]
    mirror = Mirror(Store(proxy.endpoint, patience=Patience(0.2)), tmp_path, run, "r", 1)
    settle(mirror, tmp_path)
    assert len(unfinished(store, run.output)) == 1
    sent = len(proxy.of("PUT", "partNumber=1"))
    proxy.faults = []
    if fate == "grew":
        write(tmp_path / path, b"x" * (PART + 9))
    elif fate == "was pruned":
        remove(tmp_path / "checkpoints/1")
        write(tmp_path / "checkpoints/2/data", b"y")
    settle(mirror, tmp_path)
    mirror.prune(scan(tmp_path), scan(tmp_path))
    assert mirror.missing(scan(tmp_path)) == []
    assert unfinished(store, run.output) == []
    assert len(proxy.of("PUT", "partNumber=1")) - sent == (fate == "grew")


def test_entries_among_the_checkpoints_that_are_not_restored_are_named(tmp_path):
    names = ["5/data", "0/data", "cp-0001.weights.h5", "checkpoint", "epoch_1/w.bin", "007/data"]
    names += ["6.orbax-checkpoint-tmp-17/data", "ckpt_temp/part-0", "8"]
    for name in names:
        write(tmp_path / "checkpoints" / name, b"x")
    write(tmp_path / "epoch_2", b"not among them")
    assert unnumbered(scan(tmp_path)) == [
        *("checkpoints/007", "checkpoints/8", "checkpoints/checkpoint"),
        *("checkpoints/cp-0001.weights.h5", "checkpoints/epoch_1"),
    ]
