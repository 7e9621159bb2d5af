"""What prepare_data stores of an office table is what it stores of the same plain values."""

import json
import random
from pathlib import Path

import pytest

from kfp_tfjob.components.prepare_data.engine import run
from kfp_tfjob.components.step import Step
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import MANIFEST, SCHEMA, Layout
from kfp_tfjob.storage.store import Store
from tests.local.prepared import objects
from tests.typed_schema import typed

FORMATS = {
    "english": ("1,234.5", "31.12.2024"),
    "german": ("1.234,5", "31.12.2024"),
    "swiss": ("number 1'234.5", "date %d/%m/%Y or %d %b %y"),
    "french": ("number 1 234,5", "date %Y%m%d"),
}
# Nothing in these columns proves a format, so the user names it.
NAMED = {
    "swiss": {"amount": {"number": {"thousands": "'"}}, "day": {"date": ["%d/%m/%Y", "%d %b %y"]}},
    "french": {"amount": {"number": {"decimal": ",", "thousands": " "}}, "day": {"date": "%Y%m%d"}},
}
MONTHS = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()


def office(number: int, style: str, rows: int = 200) -> str:
    """Return a CSV with amounts, days and missing values of both."""
    draw = random.Random(number)
    lines = ["amount;day;id;y"]
    for i in range(rows):
        amount, year, month, day = draw.lognormvariate(7, 2), 2022 + i % 3, i % 12 + 1, i % 28 + 1
        text, date = f"{amount:.2f}", f"{year}-{month:02}-{day:02}"
        if style == "swiss":
            text = f"CHF {amount:,.2f}".replace(",", "'")
            date = f"{day}/{month}/{year}" if i % 2 else f"{day} {MONTHS[month - 1]} {year % 100}"
        elif style == "french":
            text = f"{amount:,.2f}".translate(str.maketrans(",.", "\u202f,")) + " €"
            date = f"{year}{month:02}{day:02}"
        elif style != "plain":
            text, date = f"{amount:,.2f}", f"{day:02}.{month:02}.{year}"
        if style == "german":
            text = text.translate(str.maketrans(",.", ".,"))
        missing = draw.random() < 0.05
        lines.append(";".join(["n/a" if missing else text, date, str(i % 37), "uv"[i % 2]]))
    return "\n".join([*lines, ""])


@pytest.mark.parametrize("style", FORMATS)
def test_every_object_is_that_of_plain_values(
    store: Store, base: S3Address, tmp_path: Path, style: str
) -> None:
    """So training, statistics, the exported model and evaluate cannot tell the difference."""
    found, schemas = {}, {}
    for name in ("plain", style):
        (tmp_path / f"{name}.csv").write_text(office(1, name))
        step = Step("prepare_data", "r1", Layout(base / name), store)
        options = {"delimiter": ";", "types": NAMED.get(name, {})}
        done = run(step, str(tmp_path / f"{name}.csv"), "y", options)
        found[name] = objects(store, done)
        schemas[name] = json.loads(found[name].pop(SCHEMA))
        found[name].pop(MANIFEST)
    assert found["plain"] == found[style] and "test/00000.parquet" in found[style]
    formats = schemas[style].pop("formats")
    assert formats == dict(zip(("amount", "day"), FORMATS[style], strict=True))
    assert schemas["plain"] == schemas[style]
    features = typed(schemas[style]).encoding.features
    assert [item.kind for item in features] == ["number", "date", "number"]
