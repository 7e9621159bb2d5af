"""Datasets judged against that of a champion: contracts, drift, leaks, the page."""

import csv
import io
import json
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from examples import people
from kfp_tfjob.common.errors import DataError, Problem
from kfp_tfjob.common.escaping import html
from kfp_tfjob.components.prepare_data import leaking_columns, reference, sample, split_rules
from kfp_tfjob.components.prepare_data.data_validation import Validation, validate
from kfp_tfjob.components.prepare_data.distributions import Distributions
from kfp_tfjob.components.prepare_data.engine import run
from kfp_tfjob.components.prepare_data.report import page_of, render
from kfp_tfjob.components.step import Step
from kfp_tfjob.components.summary import suspicious_columns
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import DISTRIBUTIONS, MANIFEST, SCHEMA, STATISTICS
from tests.local.published import publish_trained_on
from tests.unit.picture_files import animals, drawn, encoded, tree

Rows = list[dict[str, str]]
MODEL = "income"


class Data:
    """Prepares tables, and publishes a champion that was trained on one."""

    def __init__(self, step: Step, folder: Path) -> None:
        self.step, self.folder = step, folder

    def table(self, rows: int = 1000, seed: int = 0) -> Rows:
        path = self.folder / f"people-{seed}.csv"
        people.write(path, rows, seed)
        return list(csv.DictReader(io.StringIO(path.read_text())))

    def prepare(self, table: Rows, label: str = "income", **options):
        path = self.folder / "table.csv"
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, table[0])
            writer.writeheader()
            writer.writerows(table)
        return run(self.step, str(path), label, options)

    def publish(self, done, **more) -> None:
        publish_trained_on(self.step.store, self.step.layout, MODEL, done, **more)

    def validate(self, done, **contract) -> Validation:
        return validate(self.step, done, MODEL, {"contract": contract})


@pytest.fixture
def data(step: Step, tmp_path: Path) -> Data:
    return Data(step, tmp_path)


def page(done, validation: Validation) -> str:
    text = render(done.schema, done.statistics, done.reused, validation)
    assert len(text.encode()) < 1_000_000
    return text


def changed(table: Rows, change: Callable[[dict[str, str], int], None]) -> Rows:
    for i, row in enumerate(table):
        change(row, i)
    return table


def test_no_champion_is_one_line(data: Data, caplog) -> None:
    done = data.prepare(data.table(600))
    with caplog.at_level(logging.INFO):
        validation = data.validate(done, changes="fail", limits="fail")
    assert validation.comparison is None
    assert suspicious_columns(data.step.store, done.dataset_uri) == ""
    assert "income" in caplog.text and validation.alone in page(done, validation)
    assert validate(data.step, done, "", {}).alone.startswith("without a model_name")


def test_new_rows_of_the_same_kind_keep_the_contract(data: Data, caplog) -> None:
    first = data.prepare(data.table(seed=1))
    data.publish(first)
    own = data.validate(first)
    assert own.comparison is None and "champion 1 of income" in own.alone
    done = data.prepare(data.table(seed=2))
    with caplog.at_level(logging.INFO):
        validation = data.validate(done, changes="fail", limits="fail")
    assert "champion 1 of income" in caplog.text
    comparison = validation.comparison
    assert not comparison.changes and not comparison.beyond and not validation.errors
    assert set(comparison.drift) == set(people.HEADER[:-1])
    assert all(item.psi < 0.05 or item.is_chance for item in comparison.drift.values())
    assert comparison.label.psi < 0.05
    assert (
        validation.metrics["contract_problems"] == 0 and validation.metrics["champion_version"] == 1
    )
    page(done, validation)
    # The same data again: reused, and judged again with the same result.
    again = data.prepare(data.table(seed=2))
    assert again.reused and data.validate(again).comparison == comparison


def test_the_counts_of_a_dataset_are_those_of_its_shards(data: Data) -> None:
    for done in (
        data.prepare(data.table(800)),
        data.prepare([row | {"hours": row["hours"] or "1"} for row in data.table(500)], "hours"),
    ):
        base = S3Address.parse(done.dataset_uri)
        file = reference.distributions(data.step.store, base)
        rows = {
            split: sample.read(data.step.store, base, done.schema, split)
            for split in ("train", "validation", "test")
        }
        train, label = rows["train"], done.schema.label
        values = train.labels if label.classes is None else None
        counts = Distributions.of(done.schema.encoding, train.rows, values, label.name)
        for split, part in rows.items():
            counts.add(split, part.rows, part.labels)
        assert counts.document() == file
        for name, document in ((DISTRIBUTIONS, file), (STATISTICS, done.statistics)):
            stored = data.step.store.read(base / name)
            assert type(document).from_bytes(stored) == document
            assert document.to_bytes() == stored
        assert [item.name for item in file.columns] == done.schema.names
        assert bool(file.label) == (done.schema.task == "regression")
        assert sum(file.columns[0].counts["test"]) <= done.rows["test"]


def test_every_change_is_named_with_its_remedy(data: Data) -> None:
    data.publish(data.prepare(data.table(seed=1)))

    def change(row: dict[str, str], i: int) -> None:
        del row["hours"]  # missing
        row["height"] = str(150 + i % 50)  # new
        row["age"] = f"{row['age']} years" if row["age"] else ""  # another kind
        row["city"] = f"{row['city']}-{i}"  # left out: every value differs
        row["income"] = "100K" if i % 10 == 0 else "<=50K"  # the classes

    table = changed(data.table(seed=2), change)
    done = data.prepare(table, split={"train": 0.8, "validation": 0.1, "test": 0.1})
    with pytest.raises(DataError) as caught:
        page_of(data.step, done, data.validate(done, changes="fail"))
    problems = caught.value.problems

    def about(part: str) -> Problem:
        (found,) = (it for it in problems if part in f"{it.what} {it.received} {it.fix}")
        return found

    assert "'hours'" in about("'hours'").what
    assert 'data_options.types={"city": "category"}' in about("'city'").fix
    about('data_options.drop=["height"]')
    kind = about('data_options.types={"age": "number"}')
    assert (kind.received, kind.expected) == ("category", "number")
    assert about("'>50K'").received
    assert about("100K").received == "'100K'"
    about('"train": 0.7')
    assert "incompatible_champion" in caught.value.problems[-2].fix
    assert len(problems) == 9
    # By default, they are warnings, and on the page.
    validation = data.validate(done)
    assert len(validation.comparison.changes) == 7
    text = page(done, validation)
    assert "it differs" in text and html("'age'") in text


def test_a_champion_whose_rows_another_version_divided(
    data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No option restores its split, so none is suggested."""
    with monkeypatch.context() as earlier:
        earlier.setattr(split_rules, "ROW_HASH_REVISION", 1)
        data.publish(data.prepare(data.table(seed=1)))
    (problem,) = data.validate(data.prepare(data.table(seed=2))).comparison.changes
    assert "in another way" in problem.what and not problem.path
    assert (problem.received, problem.expected) == ('{"row_revision": 2}', '{"row_revision": 1}')


def test_order_label_and_task(data: Data) -> None:
    data.publish(data.prepare(data.table(600)))
    turned = [dict(reversed(row.items())) for row in data.table(600)]
    (problem,) = data.validate(data.prepare(turned)).comparison.changes
    assert "order" in problem.what
    fix = json.loads(problem.fix.partition("data_options.columns=")[2])
    assert not data.validate(data.prepare(turned, columns=fix)).comparison.changes
    found = data.validate(data.prepare(data.table(600), "age", columns=["city"], on_bad_row="drop"))
    words = " ".join(problem.what for problem in found.comparison.changes)
    assert "label" in words and "task" in words
    assert found.comparison.label is None


def test_unseen_values_gaps_and_drift(data: Data) -> None:
    data.publish(data.prepare(data.table(seed=1)))

    def change(row: dict[str, str], i: int) -> None:
        if i % 5 == 0:
            row["city"] = "Oslo"
        if i % 50 == 0:
            row["occupation"] = "florist"  # below the limit
        if i % 4 == 0:
            row["hours"] = ""
        row["age"] = row["age"] and str(float(row["age"]) + 15)
        row["income"] = ">50K" if i % 20 else "<=50K"
        row["signed_up"] = row["signed_up"] and row["signed_up"].replace("20", "21", 1)

    done = data.prepare(changed(data.table(seed=2), change))
    with pytest.raises(DataError) as caught:
        page_of(data.step, done, data.validate(done, limits="fail"))
    *problems, where = caught.value.problems
    place = data.step.run.data_report
    assert where.what == f"data_report is {place}"
    assert b"Oslo" in data.step.store.read(place)
    assert len(problems) == 3
    assert "'city' has values" in problems[0].what and "'Oslo'" in problems[0].received
    assert problems[0].received.startswith(("18.", "19.", "20."))
    assert "'hours'" in problems[1].what
    assert "income" in problems[2].received and "city" in problems[2].received
    assert "signed_up" not in problems[2].received  # a date moves on
    validation = data.validate(done)
    assert not validation.comparison.changes and len(validation.comparison.beyond) == 3
    assert not any("occupation" in it.what for it in validation.comparison.beyond)
    assert (
        validation.comparison.drift["signed_up"].psi > 1 > validation.comparison.drift["member"].psi
    )
    metrics = validation.metrics
    assert metrics["psi/age"] > 1 and metrics["psi_label"] > 1 and metrics["contract_problems"] == 3
    text = page(done, validation)
    assert "Oslo" in text
    # Columns and limits can be left out.
    ignored = ["city", "hours", "age", "occupation", "income"]
    assert not data.validate(done, limits="fail", ignore=ignored).errors
    bold = page(done, data.validate(done, max_psi=100))
    assert text.count('class="bad"') > bold.count('class="bad"')
    none = dict.fromkeys(("max_unseen", "max_gap_rise", "max_psi"))
    assert not data.validate(done, limits="fail", **none).errors


def test_a_column_that_alone_predicts_the_label(data: Data, caplog) -> None:
    def change(row: dict[str, str], i: int) -> None:
        rich = row["income"] == ">50K"
        row["tax"] = f"{(30_000 if rich else 9_000) + i % 700}"  # no copy: many values
        row["refund"] = "" if rich else f"{i % 11}"  # its missing values tell it
        row["id"] = f"{i % 991}"

    done = data.prepare(changed(data.table(), change))
    with caplog.at_level(logging.WARNING):
        validation = data.validate(done)
    assert {item.name for item in validation.suspicious} == {"tax", "refund"}
    assert {item.measure for item in validation.suspicious} == {leaking_columns.AUC}
    stored = suspicious_columns(data.step.store, done.dataset_uri)
    assert "'refund' (AUC 1.000), 'tax' (AUC 0" in stored and f"SUSPICIOUS: {stored}" in caplog.text
    assert 'data_options.drop=["refund", "tax"]' in stored
    text = page(done, validation)
    assert "2 suspicious columns" in text and "refund" in text


def test_a_champion_without_distributions(data: Data) -> None:
    first = data.prepare(data.table(seed=1))
    data.publish(first, copies=(SCHEMA, STATISTICS))
    done = data.prepare(data.table(seed=2))
    validation = data.validate(done)
    assert not validation.comparison.drift and not validation.comparison.changes
    assert validation.comparison.obstacle.endswith("distributions.json")
    page(done, validation)
    # Limits that cannot be checked are not kept.
    (problem,) = data.validate(done, limits="fail").errors
    assert "champion 1 of income" in problem.what
    assert not data.validate(done, limits="fail", max_psi=None).errors
    # A version without a schema is not compared at all.
    version = data.step.layout.model(MODEL).version(1)
    data.step.store.delete(version / MANIFEST)
    validation = data.validate(done)
    assert validation.alone and not validation.errors
    # Then a contract that ends the run is not kept: the rows could be any.
    for policy in ("changes", "limits"):
        (problem,) = data.validate(done, **{policy: "fail"}).errors
        assert "champion 1 of income" in problem.what


def test_rows_of_test_that_are_in_train(data: Data) -> None:
    table = data.table(600)
    for i, row in enumerate(table):
        row["part"] = ("train", "train", "validation", "test")[i % 4]
    table += [dict(row, part="test") for row in table[:40]]
    done = data.prepare(table, split={"column": "part"})
    validation = data.validate(done)
    assert done.statistics.also_in_train["test"] >= 20
    text = page(done, validation)
    assert "two splits" in text


def test_pictures(data: Data, tmp_path: Path) -> None:
    data.publish(run(data.step, str(tree(tmp_path / "one", animals(20))), "", {}))
    files = animals(20, first=50) | {f"cow/{i}.jpg": encoded(drawn(i)) for i in range(20)}
    done = run(data.step, str(tree(tmp_path / "two", files)), "", {})
    validation = data.validate(done)
    (problem,) = validation.comparison.changes
    assert problem.received == "'cow'"
    assert validation.comparison.label.psi > 0.25 and not validation.suspicious
    assert html("'cow'") in page(done, validation)
