"""Tables of all column types: missing values, codes, dates, and what is stored of them."""

import csv
import io
import json
import random
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from statistics import median

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from examples import people
from kfp_tfjob.common.errors import DataError
from kfp_tfjob.components.prepare_data.data_validation import Validation
from kfp_tfjob.components.prepare_data.engine import run
from kfp_tfjob.components.prepare_data.report import render
from kfp_tfjob.components.step import Step
from kfp_tfjob.features.types.base import NO_DATE
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.store import Store
from kfp_tfjob.uploader import verify
from tests.local.prepared import objects, split
from tests.problems import problem_of

ROWS = 900
NULLS = ("N/A", "NA", "NULL", "NaN", "n/a", "nan", "null")


def _raw(store: Store, done) -> pa.Table:
    data = store.read(S3Address.parse(done.dataset_uri) / "test/00000.parquet")
    return pa.parquet.read_table(io.BytesIO(data))


def _microseconds(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * 1_000_000


def test_people_from_the_first_row_to_the_last(step, store, tmp_path):
    path = tmp_path / "people.csv"
    people.write(path, ROWS)
    done = run(step, str(path), "income", {})
    assert {item.name: item.type for item in done.schema.features} == {
        "age": "float32",
        "hours": "float32",
        "occupation": "category",
        "city": "category",
        "signed_up": "date",
        "member": "boolean",
    }
    coding = done.schema.encoding
    dictionaries = {it.name: it.strings for it in coding.features if it.strings}
    with open(path, newline="") as file:
        written = list(csv.DictReader(file))
    for name, texts in dictionaries.items():  # in the order in which they occur first
        assert texts == tuple(dict.fromkeys(row[name] for row in written if row[name]))
    expected = Counter(
        (
            *(float(np.float32(row[name])) if row[name] else "gap" for name in ("age", "hours")),
            float(row["member"] == "yes"),
            *(row[name] for name in dictionaries),
            _microseconds(row["signed_up"]) if row["signed_up"] else NO_DATE,
            row["income"],
        )
        for row in written
    )
    found: Counter = Counter()
    train: list[tuple] = []
    for name, count in done.rows.items():
        lists = split(store, done, name)
        assert len(lists["label"]) == count
        rows = [
            (
                *("gap" if value != value else value for value in floats.tolist()),
                *(
                    ("", *texts)[code]
                    for code, texts in zip(codes.tolist(), dictionaries.values(), strict=True)
                ),
                int(date),
                done.schema.classes[label],
            )
            for floats, codes, (date,), label in zip(
                *(lists[key] for key in ("features", "codes", "dates", "label")), strict=True
            )
        ]
        found.update(rows)
        train = rows if name == "train" else train
        if name == "test":
            raw = _raw(store, done).to_pydict()
            assert list(raw) == [*people.HEADER]
            gaps = [
                tuple("gap" if value is None else float(np.float32(value)) for value in row)
                for row in zip(raw["age"], raw["hours"], strict=True)
            ]
            assert gaps == [row[:2] for row in rows]
            assert raw["member"] == [bool(row[2]) for row in rows]
            assert raw["occupation"] == [row[3] or None for row in rows]
            assert raw["city"] == [row[4] or None for row in rows]
            days = [
                NO_DATE if day is None else _microseconds(str(day)[:10]) for day in raw["signed_up"]
            ]
            assert days == [row[5] for row in rows]
            assert raw["income"] == [row[6] for row in rows]
    assert found == expected

    learned = {item.name: item for item in coding.features}
    ages = [row[0] for row in train if row[0] != "gap"]
    assert learned["age"].missing.value == median(ages)
    assert learned["member"].missing.value == 0
    days = sorted(row[5] for row in train if row[5] != NO_DATE)
    assert learned["signed_up"].origin == days[0]
    assert learned["signed_up"].missing.value == days[(len(days) - 1) // 2]
    cities = Counter(row[4] for row in train if row[4])
    assert learned["city"].vocabulary == tuple(sorted(cities, key=lambda x: (-cities[x], x)))

    described = done.statistics.features
    assert described["age"].missing == sum(row[0] == "gap" for row in train)
    assert described["city"].top[0] == cities.most_common(1)[0]
    assert described["signed_up"].min == min(
        row["signed_up"]
        for row in written
        if _microseconds(row["signed_up"] or "1900-01-01") in days
    )
    page = render(done.schema, done.statistics, False, Validation())
    for part in ("2015-0", "true in "):
        assert part in page
    manifest = store.read_manifest(S3Address.parse(done.dataset_uri) / "manifest.json")
    assert "test/00000.parquet" in [item.key for item in manifest.objects]
    assert verify(store, S3Address.parse(done.dataset_uri), manifest) == []


def test_text_parquet_and_csv_of_the_same_rows_are_the_same_dataset(step, store, tmp_path):
    rows = 300
    choose = random.Random(3)
    table = {
        "n": [None if i % 11 == 0 else choose.randrange(1000) / 8 for i in range(rows)],
        "flag": [None if i % 13 == 0 else i % 3 == 0 for i in range(rows)],
        "word": [None if i % 7 == 0 else choose.choice(["a", "b", "ü"]) for i in range(rows)],
        "at": [
            None if i % 17 == 0 else datetime(1950 + i, 3, 4, 5, 6, 7, 890_000) for i in range(rows)
        ],
        "y": [choose.choice(["u", "v"]) for _ in range(rows)],
    }
    (tmp_path / "p").mkdir()
    (tmp_path / "c").mkdir()
    arrow = pa.table(table)
    pa.parquet.write_table(arrow, tmp_path / "p" / "t.parquet", row_group_size=90)
    with open(tmp_path / "c" / "t.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(table)
        for row in zip(*table.values(), strict=True):
            writer.writerow("" if value is None else value for value in row)
    stored = []
    for name in ("p", "c"):
        elsewhere = Step("prepare_data", "r1", Layout(step.layout.root / name), store)
        done = run(elsewhere, str(tmp_path / name), "y", {})
        kinds = [item.type for item in done.schema.features]
        assert kinds == ["float32", "boolean", "category", "date"]
        stored.append(objects(store, done))
        # Only text has strings that mean a missing value.
        assert done.schema.null_values == (() if name == "p" else NULLS)
        plain = replace(done.schema, null_values=()).to_bytes()
        stored[-1] |= {"schema.json": plain, "manifest.json": b""}
    assert stored[0] == stored[1]


def test_a_kind_that_is_said_and_texts_that_are_hashed(step, store, tmp_path):
    rows = 400
    lines = [f"{i % 5},https://x.example/{i},{i * i},{'uv'[i % 3 == 0]}" for i in range(rows)]
    (tmp_path / "a.csv").write_text("\n".join(["zip,url,n,y", *lines, ""]))
    done = run(step, str(tmp_path / "a.csv"), "y", {"types": {"zip": "category"}})
    assert [item.name for item in done.schema.left_out] == ["url"]
    assert "'url'" in done.statistics.warnings[0]
    assert [item.type for item in done.schema.features] == ["category", "float32"]
    types = {"zip": "category", "url": "text"}
    done = run(step, str(tmp_path / "a.csv"), "y", {"types": types, "hash_bins": 64})
    assert done.schema.coding[1] == {"bins": 64}
    raw = _raw(store, done)
    assert set(raw["url"].to_pylist()) <= {line.split(",")[1] for line in lines}
    codes = split(store, done, "test")["codes"]
    assert len(set(raw["url"].to_pylist())) == len(codes) and codes[:, 1].max() <= 64


def test_classes_that_look_alike_are_named(step, tmp_path):
    classes = ("Yes", "yes", "caf\u00e9", "cafe\u0301", "No", "0")
    lines = [f"{i},{classes[i % 6]}" for i in range(600)]
    (tmp_path / "a.csv").write_text("\n".join(["x,y", *lines, ""]))
    done = run(step, str(tmp_path / "a.csv"), "y", {})
    (said,) = [it for it in done.statistics.warnings if "spellings" in it]
    assert said.endswith(": Yes, cafe\u0301, caf\u00e9, yes")


def test_rules_for_gaps(step, store, tmp_path):
    lines = [f"{'' if i % 10 == 0 else i % 7},{i},{'uv'[i % 2]}" for i in range(300)]
    (tmp_path / "a.csv").write_text("\n".join(["a,b,y", *lines, ""]))
    path = str(tmp_path / "a.csv")
    done = run(step, path, "y", {"missing": {"a": "drop"}})
    assert done.schema.coding == ({}, {}) and sum(done.rows.values()) == 270
    assert done.statistics.rows_left_out == {"a": 30}
    with pytest.raises(DataError, match="30 of 300 .*no value: 30"):
        run(step, path, "y", {"missing": {"a": "fail"}})
    rule = {"rule": "constant", "value": -1, "indicator": True}
    done = run(step, path, "y", {"missing": {"a": rule}})
    assert done.schema.coding[0] == {"missing": rule | {"value": -1.0}}
    assert done.schema.encoding.names == ("a", "a.missing", "b")
    with pytest.raises(DataError, match="'a'.*number"):
        run(step, path, "y", {"missing": {"a": {"rule": "constant", "value": "x"}}})


def test_leading_zeros_are_named_with_the_option_that_keeps_them(step, tmp_path):
    """02116 was the number 2116 without a word, and the labels 7, 07 and 007 one class."""
    codes = ("02116", "10001", "007")
    rows = [
        f"{codes[i % 3]},{i % 12 + 1:02},{i / 7:.2f},0{i % 7}.5,{'7 07 007 8'.split()[i % 4]}"
        for i in range(300)
    ]
    path = tmp_path / "f.csv"
    path.write_text("\n".join(["zip,month,a,b,y", *rows, ""]))
    done = run(step, str(path), "y", {})
    (of_columns,) = [it for it in done.statistics.warnings if "zip" in it]
    (of_labels,) = [it for it in done.statistics.warnings if "'007'" in it]
    types = {"zip": "category", "month": "category"}
    assert f"data_options.types={json.dumps(types)}" in of_columns
    assert all(repr(text) in of_labels for text in ("7", "07", "007")) and "8" not in of_labels
    kept = run(step, str(path), "y", {"types": types})
    dictionaries = {it.name: it.strings for it in kept.schema.encoding.features if it.strings}
    assert dictionaries["zip"] == codes and dictionaries["month"][0] == "01"
    assert not any("zip" in text for text in kept.statistics.warnings)


@pytest.mark.parametrize(
    ("span", "digits", "refused"),
    [(300, 0, True), (30, 0, True), (3e7, 0, False), (40, 3, False)],
)
def test_a_label_that_float32_does_not_keep_is_refused(step, tmp_path, span, digits, refused):
    start = 1.7e9 if not digits else 250
    lines = [f"{i / 7:.3f},{start + i % 300 * span / 300:.{digits}f}" for i in range(900)]
    (tmp_path / "a.csv").write_text("\n".join(["a,y", *lines, ""]))
    if not refused:
        assert run(step, str(tmp_path / "a.csv"), "y", {}).schema.task == "regression"
        return
    given = (step, str(tmp_path / "a.csv"), "y", {"task": "regression"})
    assert problem_of(run, *given, kind=DataError).path == "data_label"


def test_a_label_written_like_an_amount_is_read_in_the_format_that_the_message_names(
    step, tmp_path
) -> None:
    prices = (f"{1000 + 7 * i:,}".replace(",", ".") + f",{i % 90 + 10} EUR" for i in range(300))
    lines = [f'{i / 7:.3f},"{price}"' for i, price in enumerate(prices)]
    (tmp_path / "a.csv").write_text("\n".join(["a,Preis", *lines, ""]))
    given = (step, str(tmp_path / "a.csv"), "Preis")
    format = {"Preis": {"number": {"decimal": ",", "thousands": "."}}}
    for task in ("auto", "regression"):
        problem = problem_of(run, *given, {"task": task}, kind=DataError)
        assert f"data_options.types={json.dumps(format)} for " in problem.fix
        assert "EUR'" in problem.received and "drop" not in problem.fix
    assert run(*given, {"types": format}).schema.task == "regression"
    # Nor are labels that are words dropped.
    (tmp_path / "a.csv").write_text("a,y\n" + "1,low\n2,high\n" * 50)
    given = (step, str(tmp_path / "a.csv"), "y", {"task": "regression"})
    problem = problem_of(run, *given, kind=DataError)
    assert "drop" not in problem.fix and "data_options.task" in problem.fix


def test_numbers_of_json_have_no_format(step, store, tmp_path):
    """Strings of a CSV beside them have one, and a mixed column makes JSON be read line by line."""
    rows = [f'{i},A,"1.234,{i % 10}",{"uv"[i % 2]}' for i in range(150)]
    (tmp_path / "a.csv").write_text("\n".join(["k,c,p,y", *rows, ""]))
    objects = [
        {"k": 150 + i, "c": "A" if i % 2 else 17, "p": 1.234, "y": "uv"[i % 2]} for i in range(150)
    ]
    (tmp_path / "b.jsonl").write_text("".join(json.dumps(it) + "\n" for it in objects))
    found = split(store, run(step, str(tmp_path), "y", {}), "train")["features"]
    json_rows = found[found[:, 0] >= 150, 1]
    assert len(json_rows) > 70 and np.unique(json_rows).tolist() == [np.float32(1.234)]
