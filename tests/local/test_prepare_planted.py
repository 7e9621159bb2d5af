"""Faults as they occur in real files, one in each small table: each is named where it stands.

Other faults: tests/unit/test_prepare_*.py.
"""

from __future__ import annotations

import pyarrow as pa
import pytest

from tests.local.planted import (
    BAD,
    LINE,
    NUMBERS,
    ROWS,
    Text,
    day,
    parquet,
    planted,
    refusal,
    small,
    table,
    where,
    word,
    write,
)

# What is written instead of a value in some rows, at most ten of them: the other values, the rule.
CELLS: dict[str, tuple[Text, str, list[str]]] = {
    "digits of other scripts": (small, "text", ["٣", "１２", "−5", "½", "Ⅷ"]),
    "numbers of programs": (
        small,
        "text",
        ["0x1F", "1_000", "1e", "1.2.3", "--1", "5-", "nan(0x1)"],
    ),
    "numbers of people": (
        small,
        "text",
        ["1 000", "(5)", "$5", "5 %", "1'000", "TRUE1", "\ufeff1"],
    ),
    "numbers beyond float32": (small, "not finite", ["1e400", "-1e39", "inf", "-Infinity", "iNf"]),
    "dates of people": (
        day,
        "date",
        ["31.13.2024", "01/02/2024", "2024-1-2", "today", "12", "2024-02-20 10:00 Europe/Berlin"],
    ),
    "dates that do not exist": (
        day,
        "date",
        ["2024-02-30", "2024-13-01", "0000-01-01", "10000-01-01", "2024-02-20T25:00"]
        + ["2016-12-31T23:59:60Z", "2024-02-20T10:00+25:00"],
    ),
    "NULs in numbers": (small, "nul", ["1\0", "\0"]),
    "NULs in texts": (word, "nul", ["a\0b"]),
    "long texts": (word, "long", ["x" * 1001]),
}


@pytest.mark.parametrize("name", CELLS)
def test_a_value_is_named_where_it_stands(step, tmp_path, name):
    among, rule, bad = CELLS[name]
    data = table(lambda i: bad[i - BAD] if 0 <= i - BAD < len(bad) else among(i))
    said = refusal(step, write(tmp_path, data))
    assert f"({rule} {len(bad)})" in said
    for i, value in enumerate(bad):
        assert where("b", value[:200], rule, line=LINE + i) in said


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("Köln".encode("latin-1"), "K\ufffdln"),
        (b"\x93x\x94", "\ufffdx\ufffd"),
        (b"\xc0\xaf", "\ufffd\ufffd"),
    ],
    ids=["latin-1", "windows-1252", "a long form"],
)
def test_a_value_in_another_encoding_is_named(step, tmp_path, value, shown):
    data = table(planted("HERE", word)).replace(b"HERE", value)
    assert where("b", shown, "encoding") in refusal(step, write(tmp_path, data))


# What is wrong: the files, the options, what is said.
TABLES: dict[str, tuple[bytes | dict[str, bytes], dict, str]] = {
    "a text among the numbers of the second file": (
        {"1.csv": NUMBERS, "2.csv": table(planted("oops", small))},
        {},
        where("b", "oops", "text", "2.csv"),
    ),
    "a second file of empty lines": ({"1.csv": NUMBERS, "2.csv": b"\n"}, {}, "2.csv is empty"),
    "line ends of an old Mac": (
        NUMBERS.replace(b"\n", b"\r"),
        {},
        "the header cannot be read (misplaced quotes or line ends)",
    ),
    "NULs after the last row": (
        NUMBERS + b"\0" * 4096,
        {},
        where("", "\0" * 200, "columns", line=ROWS + 2),
    ),
    "a last line that is cut": (NUMBERS[:-3], {}, where("", "139,6", "columns", line=ROWS + 1)),
    "a row without its group": (
        table(planted("", lambda i: i // 10)),
        {"split": {"group": "b"}},
        where("b", "", "missing"),
    ),
    "a decimal that float32 cannot hold": (
        {"f.parquet": parquet(lambda i: str(planted("9" * 45, small)(i)), pa.decimal256(60, 2))},
        {},
        where("b", f"{10**45 - 1}.00", "not finite", "f.parquet", BAD + 1),
    ),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_fault_is_named(step, tmp_path, name):
    files, options, said = TABLES[name]
    assert said in refusal(step, write(tmp_path, files), **options)
