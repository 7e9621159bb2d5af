"""A new column type is one file and one line: a place, which the product does not have."""

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

LAST = '    ColumnType(image_options.PICTURE, "image", "Image", ()),\n'
LINE = '    ColumnType("geo point", "geo_point", "GeoPoint", ("fail", "drop", "most_frequent"),'
LINE += ' "most_frequent"),\n'
FOUND = """
import sys
from pathlib import Path
from tests.unit.prepared_files import read

found = read(Path(sys.argv[1]), on_bad_row="drop")
print(*(item.kind for item in found.kinds.features), sep=", ")
for fault in found.faults.examples:
    print(fault.example())
"""
PROGRAM = """
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

from kfp_tfjob.registry.chain import verify_champion
from kfp_tfjob.serving.loaded_model import LoadedModel
from kfp_tfjob.serving.monitor import monitor
from kfp_tfjob.serving.refusal import RefusedRequest
from kfp_tfjob.serving.sampler import Sampler
from tests.local.local_run import stored


def serve(layout, store):
    loaded = LoadedModel.of(store, verify_champion(store, layout, "places"))
    assert loaded.columns.types["where"].kind == "geo point"
    north = [{"where": f"{60 + i % 9}.25, 11.575", "size": 0.5} for i in range(60)]
    gaps = [{"where": None, "size": 0.5}, {"where": "", "size": 0.5}]
    rows = loaded.columns.of_rows(north + gaps)
    found = loaded.predict(rows)
    assert (found[:60].argmax(1) == found[0].argmax()).all(), found
    south = loaded.columns.of_rows([{"where": "-33.9, 151.2", "size": 0.5}])
    assert loaded.predict(south).argmax() != found[0].argmax()
    try:
        loaded.columns.of_rows([{"where": "there", "size": 0.5}])
    except RefusedRequest as error:
        assert "no place" in str(error) and "48.137" in str(error), error
    else:
        raise AssertionError("a string that is no place was read")
    sampler = Sampler(store, layout, 100, (), SimpleNamespace(sampled=print))
    sampler.add(loaded, rows, found)
    sampler.flush()
    until = datetime.now(UTC) + timedelta(minutes=1)
    seen = monitor(store, layout, "places", until)
    (column,) = [it for it in seen.columns if it.name == "where"]
    assert (column.kind, column.rows) == ("geo point", 62) and not seen.bad_rows, seen
    assert 0.03 < column.gaps_now < 0.04, column


stored(Path(sys.argv[1]), serve)
"""


@pytest.fixture
def copied(repository: Path, tmp_path: Path) -> Path:
    """The code with one file and one line more."""
    copy = tmp_path / "code"
    for name in ("kfp_tfjob", "components", "pipelines", "trainer", "uploader", "tests"):
        shutil.copytree(repository / name, copy / name, symlinks=True)
    shutil.copy(repository / "pyproject.toml", copy)
    shutil.move(copy / "tests/local/geo_point.py", copy / "kfp_tfjob/features/types")
    options = copy / "kfp_tfjob/options/data.py"
    text = options.read_text()
    assert LAST in text
    options.write_text(text.replace(LAST, LINE + LAST))
    return copy


@pytest.fixture
def places(tmp_path: Path) -> Path:
    """A table with a place in each row."""
    choose = random.Random(3)
    rows = ["where,size,y"]
    for i in range(600):
        north = choose.uniform(-80, 80)
        where = "" if i % 40 == 7 else f'"{north:.4f}, {choose.uniform(-180, 180):.6f}"'
        rows.append(f"{where},{choose.random()},{'north' if north > 0 else 'south'}")
    (tmp_path / "places.csv").write_text("\n".join([*rows, ""]))
    return tmp_path / "places.csv"


def run(code: Path, *words: str) -> str:
    env = os.environ | {"PYTHONPATH": str(code)}
    done = subprocess.run(
        [sys.executable, *words], cwd=code, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_new_column_type_is_read(copied: Path, places: Path) -> None:
    places.write_text(f"{places.read_text()}there,0.5,north\n")
    kinds, fault = run(copied, "-c", FOUND, str(places)).splitlines()
    assert kinds == "geo point, number"
    assert "line 602, column 'where': not a geo point such as 48.137, 11.575" in fault


@pytest.mark.slow
def test_a_new_column_type_is_one_file_and_one_line(
    copied: Path, places: Path, tmp_path: Path
) -> None:
    words = ["run", "--home", str(tmp_path / "home"), "--data", str(places)]
    words += ["--label", "y", "--workers", "0", "--epochs", "20"]
    assert "verdict    blessed:" in run(copied, "-m", "kfp_tfjob.pipelines", *words)
    run(copied, "-c", PROGRAM, str(tmp_path / "home"))
