"""npz files: arrays as columns, and what is refused."""

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

from kfp_tfjob.storage.errors import DataError
from tests.fuzz.bounds import bounded
from tests.unit.prepared_files import check, data_of, faults_of, header_of

ROWS = 3_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "f.npz"


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_are_columns(path: Path, save) -> None:
    index = np.arange(ROWS)
    save(
        path,
        x=np.stack([index, index / 4], 1),
        image=np.stack([index % 5] * 4, 1).reshape(ROWS, 2, 2).astype(np.uint8),
        flag=index % 2 == 0,
        big=(index % 9).astype(">i4"),
        y=np.array(["no", "yes"])[index % 2],
    )
    assert check(path) == []
    assert header_of(path) == [
        "x[0]",
        "x[1]",
        *(f"image[{i}]" for i in range(4)),
        "flag",
        "big",
        "y",
    ]
    features, labels, faults = data_of(path)
    assert features[7].tolist() == [7, 1.75, 2, 2, 2, 2, 0, 7]
    assert len(features) == ROWS and labels[:2] == ["no", "yes"] and not faults.bad
    assert data_of(path, columns=["image"])[0].shape == (ROWS, 4)


def test_gaps_are_faults_with_their_row(path: Path) -> None:
    np.savez(path, a=np.array([1, np.nan, np.inf, 4]), y=np.array([1, 2, 1, 2]))
    features, _, faults = data_of(path)
    assert features.tolist() == [[1], [4]]
    assert [(line, rule) for line, _, _, rule in faults_of(faults)][1] == (3, "not finite")


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.array([{"a": 1}] * 4), "Python objects"),
        (np.zeros(4, [("u", "f4"), ("v", "f4")]), "the type"),
        (np.zeros(4, complex), "the type complex128"),
        (np.array(1.0), "a single value"),
        (np.asfortranarray(np.zeros((4, 2))), "np.ascontiguousarray"),
        (np.zeros(5), "different numbers of rows"),
    ],
    ids=["objects", "records", "complex", "single", "fortran", "length"],
)
def test_other_arrays_are_refused_by_name(path: Path, array: np.ndarray, words: str) -> None:
    np.savez(path, a=np.zeros(4), y=np.arange(4) % 2, odd=array)
    (said,) = check(path)
    assert words in said and "'odd'" in said
    assert check(path, drop=["odd"]) == []


def test_an_array_never_runs_code(path: Path, tmp_path: Path) -> None:
    class Harm:
        def __reduce__(self):
            return open, (str(tmp_path / "harm"), "w")

    np.savez(path, a=np.array([Harm()] * 4, object), y=np.arange(4))
    assert check(path)
    assert not (tmp_path / "harm").exists()


def test_damage_is_named(path: Path) -> None:
    np.savez_compressed(path, a=np.random.default_rng(0).normal(size=ROWS), y=np.arange(ROWS) % 2)
    data = path.read_bytes()
    for harmed in (data[: len(data) // 2], data[:5_000] + b"\0" * 9 + data[5_009:]):
        path.write_bytes(harmed)
        with pytest.raises(DataError, match=r"f\.npz is damaged"):
            data_of(path)


@pytest.mark.parametrize(
    "header",
    [
        {"shape": (1 << 40,), "descr": "<f8"},
        {"shape": (1 << 40, 3), "descr": "<f8"},
        {"shape": (10, 1 << 40), "descr": "<f8"},
        {"shape": (-1,), "descr": "<f8"},
        {"shape": (4,), "descr": "<U1000000000"},
    ],
    ids=str,
)
def test_a_header_that_asks_for_much_costs_nothing(path: Path, header: dict) -> None:
    body = io.BytesIO()
    np.lib.format.write_array_header_1_0(body, {"fortran_order": False, **header})
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("a.npy", body.getvalue() + bytes(100))
        file.writestr("y.npy", body.getvalue() + bytes(100))
    with bounded(seconds=3, memory=100 << 20), pytest.raises(DataError):
        data_of(path)


def test_many_wide_arrays_without_rows_cost_nothing(path: Path) -> None:
    np.savez(path, **{f"a{i}": np.zeros((0, 60_000), np.uint8) for i in range(50)})
    with bounded(seconds=3, memory=200 << 20), pytest.raises(DataError, match="too many columns"):
        header_of(path)


def test_one_column_of_a_wide_array_is_read_in_bounded_memory(path: Path) -> None:
    rows = 2_000
    x = np.zeros((rows, 20_000), np.float32)
    x[:, 7] = np.arange(rows)
    np.savez_compressed(path, x=x, y=np.arange(rows) % 2)
    del x
    with bounded(seconds=10, memory=120 << 20):  # all of it has 153 MiB
        features, _, faults = data_of(path, columns=["x[7]"])
    assert features[:, 0].tolist() == list(range(rows)) and not faults.bad


def test_long_texts_are_read_in_bounded_memory(path: Path) -> None:
    rows = 40_000
    y = np.array(["no", "yes"], "<U1000")[np.arange(rows) % 2]
    np.savez_compressed(path, x=np.arange(rows), y=y)
    del y
    with bounded(seconds=10, memory=120 << 20):  # all of it has 153 MiB
        features, labels, _ = data_of(path)
    assert features[-1] == rows - 1 and labels == ["no", "yes"] * (rows // 2)


def test_other_zips_are_named(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("xl/workbook.xml", "<x/>")
    (said,) = check(path)
    assert "a zip or an Excel file" in said
