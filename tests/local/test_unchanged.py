"""A run whose inputs are those of an earlier run does not train, if the user has chosen that."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kfp_tfjob.cluster.backend import BACKEND_VARIABLE
from kfp_tfjob.common.errors import ObjectNotFoundError
from kfp_tfjob.components import notify
from kfp_tfjob.components.finish import engine as finish
from kfp_tfjob.components.launch_tfjob.attempt_budget import Claim
from kfp_tfjob.components.notify_end import of_end
from kfp_tfjob.components.preflight import engine as preflight
from kfp_tfjob.components.preflight.engine import Checked
from kfp_tfjob.components.preflight.parameters import defaults
from kfp_tfjob.components.prepare_data.source.readers.own_reader import OwnReader
from kfp_tfjob.components.step import FAILURE_FILE, FailureReport, open_step, reported
from kfp_tfjob.jobs.failure_record import Failure
from kfp_tfjob.options.data import DataOptions
from kfp_tfjob.pipelines.local.ending import Ending
from kfp_tfjob.pipelines.local.home import Home
from kfp_tfjob.registry.champion import ROLLBACK, Champion
from kfp_tfjob.registry.training_cache import TrainedRun, newest, remember
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import MANIFEST, Layout
from kfp_tfjob.storage.store import Store
from tests.local.published import VERDICT
from tests.problems import problem_of

ROWS = ("a,b,y\n" + "".join(f"{i},{i * 3 % 7},{i % 2}\n" for i in range(120))).encode()
OWN = "def build_model(dataset, units=8):\n    return None\n"
# With a program of one's own, preflight does not build the model, which would take seconds.
COMMAND = {"command": ["python3", "train.py"]}
SKIP = COMMAND | {"when_unchanged": "skip"}


class World:
    """The store of one model, and runs of it that were judged."""

    def __init__(self, store: Store, base: S3Address, folder: Path) -> None:
        self.store, self.base, self.layout = store, base, Layout(base)
        self.model = self.layout.model("m")
        self.code = folder / "model.py"
        self.code.write_text(OWN)
        store.write(base / "in/rows.csv", ROWS)

    def check(self, run_id: str, **changed: object) -> Checked:
        given = {"data_uri": f"{self.base}/in/", "data_label": "y", "model_name": "m"}
        given |= {"output_uri": str(self.base), "train_options": SKIP}
        given |= {"model_code": f"{self.code}:build_model", "train_workers": 0}
        return preflight.run(FailureReport(), run_id, defaults() | given | changed)

    def train(self, blessed: bool = True) -> Checked:
        """Let the run r1 train, and be judged as the first one."""
        found = self.check("r1")
        self.judge("r1", found.inputs_digest, blessed, None)
        return found

    def judge(self, run_id: str, digest: str, blessed: bool, against: Champion | None) -> None:
        """Leave what evaluate and publish leave."""
        run = self.layout.run(run_id)
        number = (against.number if against else 0) + 1
        judged = {"number": against.number, "run_id": against.run_id} if against else None
        verdict = VERDICT | {"blessed": blessed, "champion": judged, "reasons": ["it is good"]}
        verdict["gate"] = defaults()["gate"]
        self.store.write(run.verdict, json.dumps(verdict).encode())
        trained = TrainedRun(run_id, str(run.base), str(run.verdict))
        remember(self.store, self.layout, "m", digest, trained)
        if blessed:
            self.store.write(self.model.champion(number), self.champion(number, run_id).to_bytes())
            self.store.write(self.model.version(number) / MANIFEST, b"{}")

    def champion(self, number: int, run_id: str) -> Champion:
        uri = str(self.model.version(number))
        return Champion(number, number, uri, run_id, "w", "s", "d", {}, "v")


@pytest.fixture
def world(store: Store, base: S3Address, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setenv(BACKEND_VARIABLE, "local")
    # Fifty preflights need not race for objects each time: test_store.py does.
    monkeypatch.setattr(preflight, "check_store", lambda *_: [])
    return World(store, base, tmp_path)


def test_the_same_inputs_are_not_trained_again(world: World) -> None:
    first = world.train()
    assert first.changed and first.code_uri
    again = world.check("r2")
    assert not again.changed and again.inputs_digest == first.inputs_digest
    assert again.code_uri == ""
    assert again.table.startswith("# ") and "`m`" in again.table.splitlines()[0]
    for part in ("`r1`", "it is good", "version 1", str(world.model.version(1))):
        assert part in again.table
    # The exit task says the same, and the run is no failure.
    ended = finish.run(open_step("finish", "r2", str(world.base)), "m")
    assert ended.failure is None and "`r1`" in ended.markdown
    # A retry of the run that trained continues; by default every run trains.
    assert world.check("r1").changed
    assert world.check("r3", train_options=COMMAND).changed


def test_without_data_the_inputs_are_those_of_the_program(world: World) -> None:
    given = {"data_uri": " ", "data_label": "", "train_options": COMMAND}
    first = world.check("r1", **given)
    assert (first.source_digest, first.changed, first.evaluate) == ("", True, False)
    assert first.inputs_digest == world.check("r2", **given).inputs_digest
    world.code.write_text(OWN + "# another\n")
    assert world.check("r3", **given).inputs_digest != first.inputs_digest
    problem = problem_of(world.check, "r4", **given | {"train_options": SKIP})
    assert problem.path == "train_options.when_unchanged"


def test_a_run_that_was_judged_again_counts(world: World) -> None:
    """The champion of its first verdict is another run's."""
    first = world.check("r1")
    other = world.champion(1, "other")
    world.store.write(world.model.champion(1), other.to_bytes())
    world.store.write(world.model.version(1) / MANIFEST, b"{}")
    world.judge("r1", first.inputs_digest, False, None)
    run = world.layout.run("r1")
    met = {"number": 1, "version": 1, "run_id": "other"}
    verdicts = [
        {"blessed": True, "champion": None, "reasons": ["it is the first one"]},
        {"blessed": False, "champion": met, "reasons": ["the other is better"], "again": met},
    ]
    for address, verdict in zip((run.verdict, run.second_verdict), verdicts, strict=True):
        verdict["gate"] = defaults()["gate"]
        world.store.write(address, json.dumps(VERDICT | verdict).encode())
    again = world.check("r2")
    assert not again.changed
    world.store.delete(run.second_verdict)
    assert world.check("r3").changed


def test_each_input_counts(world: World) -> None:
    world.train()
    for changed in (
        {"data_label": "a"},
        {"data_options": {"drop": ["a"]}},
        {"model_hyperparameters": {"units": 9}},
        {"train_epochs": 21},
        {"train_batch_size": 32},
        {"train_workers": 1},
        {"train_image": "other:1"},
        {"train_options": SKIP | {"seed": 1}},
        {"train_options": SKIP | {"command": ["python3", "other.py"]}},
        {"gate": {"mode": "point"}},
        {"data_options": {"contract": {"changes": "fail"}}},
        {"pod": {"all": {"env": {"A": "1"}}}},
        {"pod": {"all": {"volumes": [{"claim": "october", "path": "/data"}]}}},
    ):
        assert world.check("r2", **changed).changed, changed
    # What decides nothing does not.
    options = SKIP | {"checkpoint_keep": 9, "max_attempts": 1, "seed": 0.0}
    assert not world.check("r2", train_options=options, pod={"all": {"cpu": "2"}}).changed


def test_changed_code_and_data_count_and_names_of_folders_do_not(world: World) -> None:
    world.train()
    world.code.write_text(OWN + "# more\n")
    assert world.check("r2").changed
    world.code.write_text(OWN)
    world.store.write(world.base / "in/rows.csv", ROWS + b"1,2,1\n")
    assert world.check("r3").changed
    # Yesterday's folder with the same content.
    world.store.write(world.base / "before/rows.csv", ROWS)
    assert not world.check("r4", data_uri=f"{world.base}/before/").changed


def test_a_run_that_continues_counts_with_the_code_that_it_trains(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """It uses its copy of the code, whatever the file says by now."""
    first = world.check("r1")
    world.code.write_text(OWN + "# corrected\n")
    again = world.check("r1")
    assert "model_code" in caplog.text
    assert (again.code_uri, again.inputs_digest) == (first.code_uri, first.inputs_digest)
    world.judge("r1", again.inputs_digest, True, None)
    assert world.check("r2").changed, "the corrected code was never trained"
    world.code.write_text(OWN)
    assert not world.check("r3").changed


def test_a_run_that_continues_does_not_count(world: World) -> None:
    """Its output, or its newest checkpoint, may be of another image, or of other variables."""
    first = world.check("r1")
    assert world.check("r1").inputs_digest == first.inputs_digest  # nothing has been trained yet
    world.store.write(world.layout.run("r1").attempt(1), b"{}")
    again = world.check("r1", train_image="other:1")
    assert again.changed and again.inputs_digest == ""


def test_a_run_that_has_trained_does_not_continue_with_other_inputs(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither its records nor its result change: it was complete before."""
    monkeypatch.setenv(FAILURE_FILE, str(tmp_path / "failure.json"))
    first = world.train()
    step = open_step("launch_tfjob", "r1", str(world.base))
    data = DataOptions().dataset_digest(first.source_digest, "y")
    claim = replace(Claim.first(1, 0), inputs={"data": data, "train_epochs": 10})
    world.store.create(step.run.attempt(1), claim.to_bytes("r1", "job", "hash"))
    world.store.write(step.run.checkpoints / "3" / MANIFEST, b"{}")
    stored = {it.address: it.etag for it in world.store.list(step.run.base)}
    assert world.check("r1", train_epochs=10).changed
    record = tmp_path / "failure.json"
    for rows, epochs, path in ((ROWS, 5, "train_epochs"), (ROWS + b"1,2,0\n", 10, "")):
        world.store.write(world.base / "in/rows.csv", rows)
        with pytest.raises(SystemExit), reported("preflight") as report:
            report.step = step
            world.check("r1", train_epochs=epochs)
        failure = Failure.from_bytes(record.read_bytes())
        assert (failure.code, [it.path for it in failure.problems]) == (2, [path])
        assert {it.address: it.etag for it in world.store.list(step.run.base)} == stored
        record.unlink()


def test_a_run_that_has_trained_keeps_the_numbers_that_its_defaults_meant(world: World) -> None:
    """It may continue on other replicas, or with a version that has other defaults."""
    data = DataOptions().dataset_digest(world.check("r1").source_digest, "y")
    inputs = {"data": data, "train_batch_size": 66, "train_options.sync_batch_norm": True}
    step = open_step("launch_tfjob", "r1", str(world.base))
    claim = replace(Claim.first(1, 0), inputs=inputs)
    world.store.create(step.run.attempt(1), claim.to_bytes("r1", "job", "hash"))
    assert "**`train_batch_size`:** `64`" in world.check("r1").table  # it has not trained yet
    world.store.write(step.run.checkpoints / "3" / MANIFEST, b"{}")
    assert "**`train_batch_size`:** `66`" in world.check("r1", train_workers=1).table
    for changed, path in (
        ({"train_batch_size": 64}, "train_batch_size"),
        ({"train_options": COMMAND | {"sync_batch_norm": False}}, "train_options.sync_batch_norm"),
    ):
        assert problem_of(world.check, "r1", **changed).path == path


def test_a_run_that_was_evaluated_with_another_gate_since_does_not_count(world: World) -> None:
    world.train(blessed=False)
    assert not world.check("r2").changed
    run = world.layout.run("r1")
    verdict = json.loads(world.store.read(run.verdict))
    for other in ({"gate": {"mode": "point"}}, {"evaluator_digest": "e"}):
        world.store.write(run.verdict, json.dumps(verdict | other).encode())
        assert world.check("r2").changed, other


def test_a_run_that_continues_and_does_not_train_does_not_end_with_an_earlier_verdict(
    world: World, tmp_path: Path
) -> None:
    """Its own verdict is on a model of other inputs."""
    world.train(blessed=False)
    world.judge("r2", world.check("r2", train_epochs=21).inputs_digest, True, None)
    assert not world.check("r2").changed
    step = open_step("finish", "r2", str(world.base))
    assert of_end(step, "m").outcome == notify.SKIPPED
    said: list[str] = []
    home = Home(tmp_path / "home")
    home.run("r2").mkdir(parents=True)
    assert Ending(step, "m", home, False, said.append).tell(0, 0) == 0
    assert "r1" in said[0]
    # A try that trains ends with its own verdict again.
    assert world.check("r2", train_options=COMMAND).changed
    assert of_end(step, "m").outcome == notify.PUBLISHED
    world.store.write(step.run.not_evaluated, b'{"why": "evaluate is false"}')
    assert of_end(step, "m").outcome == notify.SUCCEEDED


def test_the_package_of_a_module_of_the_image_counts(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the module imports from its package decides, too."""
    deep = tmp_path / "image/own_package/deep"
    deep.mkdir(parents=True)
    (deep.parent / "__init__.py").touch()
    (deep.parent / "code.py").write_text(f"{OWN}def read(stream, name):\n    yield 1\n")
    (tmp_path / "image/other.py").touch()
    monkeypatch.syspath_prepend(tmp_path / "image")
    (deep / "settings.py").write_text("UNITS = 8\n")

    def seen() -> tuple[str, str]:
        reader = OwnReader.read("own_package.code:read", None)
        code = "own_package.code:build_model"
        return reader.digest, world.check("r1", model_code=code).inputs_digest

    first = seen()
    (tmp_path / "image/other.py").write_text("# another package\n")
    assert seen() == first
    (deep / "settings.py").write_text("UNITS = 9\n")
    assert all(new != old for new, old in zip(seen(), first, strict=True))


@pytest.mark.parametrize(
    "forget",
    [
        lambda world: world.layout.run("r1").verdict,
        lambda world: world.model.champion(1),
        lambda world: world.model.version(1) / MANIFEST,
    ],
    ids=["run", "champion", "version"],
)
def test_what_was_deleted_makes_a_run_train(
    world: World, forget: Callable[[World], S3Address]
) -> None:
    digest = world.train().inputs_digest
    assert not world.check("r2").changed
    world.store.delete(forget(world))
    assert world.check("r2").changed
    with pytest.raises(ObjectNotFoundError):  # no record says any more that r2 did not train
        world.store.read(world.layout.run("r2").unchanged)
    # The run that trained instead is remembered beside the first one.
    world.judge("r2", digest, True, None)
    assert newest(world.store, world.layout, "m", digest).run_id == "r2"
    assert len(world.store.numbers(world.model.trained_with(digest))) == 2


def test_a_model_that_was_blessed_but_never_published_is_trained_again(world: World) -> None:
    world.train()
    world.store.write(world.model.champion(1), world.champion(1, "other").to_bytes())
    assert world.check("r2").changed


def test_a_model_that_lost_is_not_trained_again_while_its_champion_is_there(world: World) -> None:
    digest = world.check("r1").inputs_digest
    world.judge("r0", "0" * 32, True, None)
    world.judge("r1", digest, False, world.champion(1, "r0"))
    assert not world.check("r2").changed
    world.store.delete(world.model.champion(1))
    assert world.check("r2").changed


def test_a_model_that_lost_to_a_champion_that_was_rolled_back_trains_again(world: World) -> None:
    digest = world.check("r1").inputs_digest
    world.judge("r0", "0" * 32, True, None)
    world.judge("better", "1" * 32, True, world.champion(1, "r0"))
    world.judge("r1", digest, False, world.champion(2, "better"))
    assert not world.check("r2").changed
    # A later champion was better than the one it lost to.
    world.judge("best", "2" * 32, True, world.champion(2, "better"))
    assert not world.check("r3").changed
    # A champion after a rollback may be worse.
    back = replace(world.champion(4, "r0"), version=1, action=ROLLBACK, by="a", why="b")
    world.store.write(world.model.champion(4), back.to_bytes())
    assert world.check("r4").changed
    world.judge("next", "3" * 32, True, back)
    assert world.check("r5").changed


def test_a_retry_of_evaluate_adds_no_second_record(world: World) -> None:
    for _ in range(2):
        world.judge("r1", "1" * 32, False, None)
    assert len(world.store.numbers(world.model.trained_with("1" * 32))) == 1
