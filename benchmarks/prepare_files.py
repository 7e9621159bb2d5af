"""Writes the files that prepare_data is measured on; the same in every run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv

from benchmarks.peers import cache

LABEL = "y"
NUMBERS, MIXED, PICTURES = "numbers", "mixed", "pictures"
_CLASSES, _SIDE, _COARSE, _NOISE, _QUALITY = 10, 224, 28, 32, 85
_COLUMNS = 30  # of numbers
_KINDS = (10, 10, 5)  # numbers, categories and dates of a mixed table
_TEXTS = (2, 3, 5, 8, 12, 20, 50, 100, 300, 1000)  # different ones in each category
_GAPS = 0.05
_BLOCK = 100_000  # rows
_LAST = 1_800_000_000  # seconds since 1970


def table(kind: str, rows: int) -> Path:
    """Return a CSV in the cache; it is written at first use.

    Args:
        kind: `numbers`: 30 columns of numbers. `mixed`: 10 numbers, 10 categories and 5 dates, with
            a missing value in 5 % of the values. Both have a label of two classes.
        rows: Their number.
    """
    path = cache() / f"{kind}-{rows}.csv"
    if path.exists():
        return path
    part = path.with_suffix(".part")
    random = np.random.default_rng(13)
    draw = _numbers if kind == NUMBERS else _mixed
    with open(part, "wb") as file:
        for start in range(0, rows, _BLOCK):
            options = pa.csv.WriteOptions(include_header=not start, quoting_style="needed")
            pa.csv.write_csv(pa.table(draw(random, min(_BLOCK, rows - start))), file, options)
    part.rename(path)
    return path


def pictures(count: int) -> Path:
    """Return a folder of JPEGs of 224 x 224 pixels and about 15 kB, in the cache.

    Args:
        count: The number of images.
    """
    from PIL import Image

    folder = cache() / f"{PICTURES}-{count}"
    if folder.exists():
        return folder
    part = folder.with_suffix(".part")
    for name in range(_CLASSES):
        (part / f"class{name}").mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(13)
    for i in range(count):
        coarse = random.integers(0, 256, (_COARSE, _COARSE, 3), np.uint8)
        smooth = Image.fromarray(coarse).resize((_SIDE, _SIDE), Image.Resampling.BILINEAR)
        noise = random.integers(0, _NOISE, (_SIDE, _SIDE, 3), np.uint8)
        picture = Image.fromarray(np.asarray(smooth) // 2 + noise)
        picture.save(part / f"class{i % _CLASSES}" / f"{i:05d}.jpg", quality=_QUALITY)
    part.rename(folder)
    return folder


def _numbers(random: np.random.Generator, rows: int) -> dict[str, pa.Array]:
    values = random.standard_normal((_COLUMNS, rows)).round(6)
    found = {f"x{i}": pa.array(column) for i, column in enumerate(values)}
    return found | {LABEL: _label(random, values[0] + values[1])}


def _mixed(random: np.random.Generator, rows: int) -> dict[str, pa.Array]:
    numbers, categories, dates = _KINDS
    found, score = {}, np.zeros(rows)
    for i in range(numbers):
        values = random.standard_normal(rows).round(4)
        score += values
        found[f"number{i}"] = _gapped(random, pa.array(values))
    for i in range(categories):
        codes = random.integers(0, _TEXTS[i], rows)
        score += codes / _TEXTS[i]
        texts = np.array([f"value {at} of {_TEXTS[i]}" for at in range(_TEXTS[i])])
        found[f"category{i}"] = _gapped(random, pa.array(texts[codes]))
    for i in range(dates):
        # Two of them are whole days, the others have a time.
        unit = "D" if i < 2 else "s"
        values = random.integers(0, _LAST, rows).astype("datetime64[s]")
        texts = np.datetime_as_string(values.astype(f"datetime64[{unit}]"))
        found[f"date{i}"] = _gapped(random, pa.array(texts))
    return found | {LABEL: _label(random, score - score.mean())}


def _gapped(random: np.random.Generator, column: pa.Array) -> pa.Array:
    """Return the column with some values left out."""
    gaps = pa.array(random.random(len(column)) < _GAPS)
    return pa.compute.if_else(gaps, None, column)


def _label(random: np.random.Generator, score: np.ndarray) -> pa.Array:
    sure = score + random.standard_normal(len(score)) > 0
    return pa.array(np.where(sure, "yes", "no"))
