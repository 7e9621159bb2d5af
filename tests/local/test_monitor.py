"""Requests compared with the champion's data: drift, missing values, weights, bad files."""

import csv
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from examples import people
from kfp_tfjob.common.errors import ConfigurationError, DataError
from kfp_tfjob.components.prepare_data.engine import run
from kfp_tfjob.components.step import Step
from kfp_tfjob.options.data_contract import Contract
from kfp_tfjob.pipelines.cli import main
from kfp_tfjob.pipelines.local.s3_server import Server
from kfp_tfjob.serving.monitor import monitor
from kfp_tfjob.serving.request_counts import Monitored
from kfp_tfjob.serving.requests_sample import About, put
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.store import Store
from tests.local.published import publish_trained_on
from tests.problems import problem_of

MODEL = "income"
# The newest half past midnight, so samples of the hour before it are of two days.
NOW = (datetime.now(UTC) - timedelta(minutes=30)).replace(
    hour=0, minute=30, second=0, microsecond=0
)
FEATURES = people.HEADER[:-1]


class World:
    """A champion that was trained on people, and samples of requests about others."""

    def __init__(self, s3: Server, folder: Path) -> None:
        self.store, self.layout, self.folder = s3.store(), Layout(S3Address("test", "mon")), folder
        people.write(folder / "train.csv", 2000, 1)
        step = Step("prepare_data", "r1", self.layout, self.store)
        done = run(step, str(folder / "train.csv"), people.LABEL, {})
        self.schema_digest = done.schema.schema_digest
        publish_trained_on(self.store, self.layout, MODEL, done)

    def people(self, rows: int, seed: int) -> list[dict[str, str]]:
        path = self.folder / "others.csv"
        people.write(path, rows, seed)
        return list(csv.DictReader(path.open(newline="")))

    def send(
        self,
        rows: list[dict[str, str]],
        began: datetime = NOW - timedelta(hours=1),
        requested: int = 0,
        left_out: tuple[str, ...] = (),
        schema_digest: str = "",
        version: int = 1,
    ) -> None:
        """Store a sample as a server does."""
        about = About(
            MODEL,
            version,
            1,
            schema_digest or self.schema_digest,
            began.isoformat(),
            (began + timedelta(minutes=1)).isoformat(),
            requested or len(rows),
            left_out,
        )
        chances = np.linspace(0, 1, len(rows))
        put(
            self.store,
            self.layout.model(MODEL),
            {key: values for key, values in columns(rows).items() if key not in left_out},
            [began + timedelta(milliseconds=at) for at in range(len(rows))],
            [[chance] for chance in chances],
            about,
        )

    def ask(self, *options: str) -> Result:
        asked = ["monitor", MODEL, "--output", str(self.layout.root), *options]
        return CliRunner().invoke(main, asked)

    def look(self, days: float = 1, **limits) -> Monitored:
        return monitor(self.store, self.layout, MODEL, NOW, days, Contract(**limits))


def columns(rows: list[dict[str, str]]) -> dict[str, pa.Array]:
    """Return the columns of a request in the types that a server has."""

    def texts(name: str) -> list[str | None]:
        return [row[name] or None for row in rows]

    dates = [text and datetime.fromisoformat(text) for text in texts("signed_up")]
    return {
        "age": pa.array([text and float(text) for text in texts("age")], pa.float64()),
        "hours": pa.array([text and float(text) for text in texts("hours")], pa.float32()),
        "occupation": pa.array(texts("occupation")),
        "city": pa.array(texts("city")).dictionary_encode(),
        "signed_up": pa.array(dates, pa.timestamp("us", "UTC")),
        "member": pa.array([text and text == "yes" for text in texts("member")], pa.bool_()),
    }


@pytest.fixture(scope="module")
def prepared(s3: Server, tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(s3, tmp_path_factory.mktemp("people"))


@pytest.fixture
def world(prepared: World, store: Store) -> World:
    """The same champion without a sample."""
    for item in list(prepared.store.list(prepared.layout.model(MODEL).requests)):
        prepared.store.delete(item.address)
    return prepared


def test_requests_like_the_training_data_have_not_moved(world: World) -> None:
    for minute in range(3):
        # Before midnight and after it: two folders.
        world.send(world.people(400, 10 + minute), NOW - timedelta(minutes=10 + 20 * minute))
    found = world.look()
    assert (found.files, found.rows, found.requested, found.bad_rows) == (3, 1200, 1200, 0)
    assert {column.name for column in found.columns} == set(FEATURES)
    assert not found.moved and not found.unreadable and not found.left_out and found.judged
    assert all(column.psi < 0.1 or column.chance for column in found.columns)
    occupation = next(column for column in found.columns if column.name == "occupation")
    assert occupation.gaps_before == pytest.approx(0.05, abs=0.02)
    assert occupation.gaps_now == pytest.approx(0.05, abs=0.02)


def test_what_has_moved_is_named(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = world.people(600, 20)
    for at, row in enumerate(rows):
        row["age"] = str(min(float(row["age"] or 40) + 15, 99))
        row["hours"] = "" if at % 3 == 0 else row["hours"]
        row["city"] = "Atlantis" if at % 4 == 0 else row["city"]
    world.send(rows)
    found = world.look()
    by_name = {column.name: column for column in found.columns}
    assert {column.name: column.beyond for column in found.moved} == {
        "age": ("psi",),
        "hours": ("psi", "gaps"),
        "city": ("psi", "unseen"),
    }
    assert by_name["city"].unseen == pytest.approx(0.25) and by_name["city"].examples == (
        "Atlantis",
    )
    assert by_name["hours"].gaps_now == pytest.approx(1 / 3, abs=0.03)
    assert {it.name for it in world.look(ignore=("age", "hours", "city")).moved} == set()
    assert not world.look(max_psi=None, max_unseen=None, max_gap_rise=None).moved
    with monkeypatch.context() as patched:
        patched.setattr("kfp_tfjob.serving.request_counts.FEWEST_ROWS", 601)
        few = world.look()
    assert not few.judged and not few.moved
    # The names of new values are bounded, because an id has a new one in every row.
    monkeypatch.setattr("kfp_tfjob.serving.request_counts._MOST_TEXTS", 0)
    (city,) = [it for it in world.look().columns if it.name == "city"]
    assert city.unseen == pytest.approx(0.25) and city.examples == ()


def test_a_row_counts_for_the_requests_that_it_stands_for(world: World) -> None:
    old, young = world.people(200, 30), world.people(200, 31)
    for rows, age in ((old, "80"), (young, "20")):
        for row in rows:
            row["age"] = age
    world.send(old, requested=19_800)  # a busy minute
    world.send(young, requested=200)
    found = world.look()
    assert (found.rows, found.requested) == (400, 20_000)
    age = {it.name: it for it in found.columns}["age"]
    assert age.beyond == ("psi",) and age.psi > 2


def test_the_time_and_the_columns_are_chosen(world: World) -> None:
    world.send(world.people(300, 50), NOW - timedelta(days=3), left_out=("city", "age"))
    with pytest.raises(DataError, match=f"{NOW - timedelta(days=1):%Y-%m-%d}"):
        world.look(days=1)
    found = world.look(days=7)
    assert found.left_out == ("age", "city") and found.rows == 300
    assert {column.name for column in found.columns} == set(FEATURES) - {"age", "city"}


def test_bad_files_are_named_and_the_others_count(world: World) -> None:
    world.send(world.people(300, 60))
    world.send(world.people(300, 61), schema_digest="f" * 64)
    place = world.layout.model(MODEL).requests_of_day(1, NOW.date() - timedelta(days=1))
    world.store.create(place / "broken.parquet", b"PAR1 nonsense PAR1")
    found = world.look()
    assert found.rows == 300 and len(found.unreadable) == 2
    assert any("another schema" in text for text in found.unreadable)
    assert any("broken.parquet" in text for text in found.unreadable)


@pytest.mark.parametrize(("bad", "good"), [(3, {197}), (200, set())])
def test_values_of_another_kind_are_counted_and_no_drift(
    world: World, bad: int, good: set[int]
) -> None:
    rows = world.people(200, 70)
    given = columns(rows)
    given["age"] = pa.array([row["age"] or None for row in rows[bad:]] + ["old"] * bad)
    began = NOW - timedelta(hours=1)
    about = About(MODEL, 1, 1, world.schema_digest, "", "", 200)
    put(world.store, world.layout.model(MODEL), given, [began] * 200, [None] * 200, about)
    found = world.look()
    assert found.bad_rows == bad and not found.moved
    assert {it.rows for it in found.columns} == good


def test_a_defect_of_the_monitor_is_no_drift(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.send(world.people(150, 12))
    monkeypatch.setattr("kfp_tfjob.serving.request_counts._measure_drift", lambda *_: 1 / 0)
    broken = world.ask()
    assert broken.exit_code == 3 and "ZeroDivisionError" in broken.output


def test_other_versions_are_named(world: World) -> None:
    world.send(world.people(300, 80), version=3)
    with pytest.raises(DataError, match="version 3"):
        world.look()
    with pytest.raises(ConfigurationError, match="nobody"):
        monitor(world.store, world.layout, "nobody", NOW)
    with pytest.raises(ConfigurationError, match="model_name"):
        monitor(world.store, world.layout, "a/b", NOW)
    problem = problem_of(world.look, ignore=("age", "cty"))
    assert (problem.path, problem.suggestion) == ("--ignore", "city")


def test_the_command_says_what_has_moved(world: World) -> None:
    rows = world.people(300, 90)
    for row in rows:
        row["occupation"] = "pilot"
    world.send(rows)
    shown = world.ask()
    assert shown.exit_code == 1, shown.output
    assert "MOVED, NEW VALUES such as 'pilot'" in shown.output
    assert "Moved: occupation. Check" in shown.output
    plain = world.ask("--ignore", "occupation", "--json")
    assert plain.exit_code == 0 and json.loads(plain.output)["requested"] == 300
    late = world.ask("--days", "0.001")
    assert late.exit_code == 3 and "--days" in late.output


@pytest.mark.parametrize(("long", "code"), [(4, 0), (150, 1)])
def test_a_string_longer_than_any_of_train_is_a_new_value(
    world: World, long: int, code: int
) -> None:
    rows = world.people(150, 12)
    for at, row in enumerate(rows[:long]):
        row["occupation"] = f"{at}" + "ä" * 1001
    world.send(rows)
    found = world.look()
    assert (found.rows, found.bad_rows, found.unreadable) == (150, 0, ())
    moved = {column.name: column.unseen for column in found.moved}
    assert moved == ({"occupation": pytest.approx(1)} if code else {})
    shown = world.ask()
    assert shown.exit_code == code and not isinstance(shown.exception, IndexError), shown.output
