"""Compares the default model with scikit-learn on tables of mixed columns.

    python -m benchmarks.tables [--splits 3] [--keep FOLDER] [TABLE ...]

Each table runs through the whole pipeline, `kfp-tfjob run --data T.csv --label L`, with different
splits into training and test rows. The accuracy is that of evaluate, on the raw test rows. On the
same split, scikit-learn trains HistGradientBoostingClassifier and LogisticRegression with their
defaults, on the same columns: the first gets missing values as such, and the second gets one-hot
vectors and standardised numbers. The tables are those of scikit-learn and statsmodels, and the
drawn people of examples/people.py. Columns that tell the label are dropped: the boat and the body
number of the Titanic, and other forms of the label. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import gzip
import importlib.util
import io
import json
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

GOAL = 0.01  # largest distance to the better of the two
_MOST_CATEGORIES = 255  # of a column, for HistGradientBoostingClassifier
_OPENML = "datasets/tests/data/openml"  # of scikit-learn


@dataclasses.dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        label: Its label.
        write: Writes it to a file as CSV.
        drop: The columns to leave out.
    """

    label: str
    write: Callable[[Path], Any]
    drop: tuple[str, ...] = ()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--splits", type=int, default=3, help="how many splits of each table")
    parser.add_argument("--keep", type=Path, help="a folder for the runs, which are then kept")
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=", ".join(TABLES))
    arguments = parser.parse_args()
    result: dict[str, Any] = {"benchmark": "tables", "goal": GOAL, "splits": arguments.splits}
    print(f"{'':12}{'rows':>7}{'ours':>8}{'boosting':>10}{'logistic':>10}{'difference':>12}")
    for name in arguments.tables or TABLES:
        found = [run(name, split, arguments.keep) for split in range(arguments.splits)]
        means = {key: statistics.mean(it[key] for it in found) for key in found[0]}
        means["difference"] = means["ours"] - max(means["boosting"], means["logistic"])
        result[name] = {key: round(value, 4) for key, value in means.items()}
        numbers = [f"{means[key]:.4f}" for key in ("ours", "boosting", "logistic")]
        print(
            f"{name:12}{means['rows']:7,.0f}{numbers[0]:>8}{numbers[1]:>10}{numbers[2]:>10}"
            f"{means['difference']:+12.4f}{'' if means['difference'] >= -GOAL else '  MISSED'}",
            flush=True,
        )
    print(json.dumps(result))


def run(name: str, split: int, keep: Path | None) -> dict[str, float]:
    """Run the pipeline on a table, and return the accuracy of each model on its test rows."""
    table = TABLES[name]
    folder = keep / f"{name}-{split}" if keep else Path(tempfile.mkdtemp(prefix="tables-"))
    folder.mkdir(parents=True, exist_ok=True)
    try:
        data = folder / f"{name}.csv"
        table.write(data)
        line = [sys.executable, "-m", "kfp_tfjob.pipelines", "run", "--home", str(folder / "home")]
        line += ["--data", str(data), "--label", table.label, "--workers", "0"]
        line += ["--set", f"data_options.split.salt={split}"]
        if table.drop:
            line += ["--set", f"data_options.drop={json.dumps(table.drop)}"]
        done = subprocess.run(line, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{' '.join(line)}\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
        return _compared(folder)
    finally:
        if not keep:
            shutil.rmtree(folder)


def _compared(folder: Path) -> dict[str, float]:
    """Return the accuracies and the test rows of the newest run of a home."""
    from kfp_tfjob.pipelines.local.s3_server import Server
    from kfp_tfjob.storage.address import S3Address
    from kfp_tfjob.uploader import pull

    with Server.start(folder / "home" / "s3") as server:
        store, bucket = server.store(), S3Address("kfp-tfjob")
        run_id = max(store.folders(bucket / "runs"))
        verdict = json.loads(store.read(bucket / f"runs/{run_id}/evaluation/verdict.json"))
        pull(store, bucket / f"datasets/{verdict['dataset_digest']}", folder / "dataset")
    peers = _peers(folder / "dataset")
    return {"rows": verdict["rows"], "ours": verdict["metrics"]["accuracy"]} | peers


def _peers(folder: Path) -> dict[str, float]:
    """Train scikit-learn on the rows of a dataset, and return the accuracies on its test rows."""
    import pandas as pd
    from sklearn.compose import make_column_transformer
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler

    schema = json.loads((folder / "schema.json").read_text())
    types = {feature["name"]: feature["type"] for feature in schema["features"]}
    splits, labels = {}, {}
    for split in ("train", "test"):
        splits[split] = pd.read_parquet(folder / split)
        labels[split] = splits[split].pop(schema["label"]["name"])
        for name in [name for name, kind in types.items() if kind == "date"]:
            _replace_date(splits[split], name)
    strings = [name for name, kind in types.items() if kind in ("category", "text")]
    numbers = [name for name in splits["train"] if name not in strings]
    for frame in splits.values():
        frame[numbers] = frame[numbers].astype(float)  # of booleans, too
    few = [name for name in strings if splits["train"][name].nunique() < _MOST_CATEGORIES]
    many = [name for name in strings if name not in few]
    ordinal = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=np.nan)
    boosting = make_pipeline(
        make_column_transformer((ordinal, few), (ordinal, many), remainder="passthrough"),
        HistGradientBoostingClassifier(categorical_features=[*range(len(few))], random_state=0),
    )
    logistic = make_pipeline(
        make_column_transformer(
            (OneHotEncoder(handle_unknown="ignore"), strings),
            (make_pipeline(SimpleImputer(strategy="median"), StandardScaler()), numbers),
        ),
        LogisticRegression(max_iter=5000),
    )
    scores = {}
    for name, model in (("boosting", boosting), ("logistic", logistic)):
        model.fit(splits["train"], labels["train"])
        scores[name] = model.score(splits["test"], labels["test"])
    return scores


def _replace_date(frame: Any, name: str) -> None:
    """Replace a column of dates by the numbers that our models get of it."""
    import pandas as pd

    dates = frame.pop(name)
    for part in ("year", "month", "day", "weekday", "hour"):
        frame[f"{name}.{part}"] = getattr(dates.dt, part)
    frame[f"{name}.seconds"] = (dates - pd.Timestamp(0, tz="UTC")).dt.total_seconds()


def _of_scikit_learn(number: int) -> Callable[[Path], None]:
    """Return the writer of a table of OpenML that scikit-learn brings for its own tests."""

    def write(path: Path) -> None:
        folder = _package("sklearn") / _OPENML / f"id_{number}"
        (packed,) = folder.glob("data-*.arff.gz")
        text = gzip.decompress(packed.read_bytes()).decode()
        head, _, body = re.split(r"(?im)^(@data)\s*$", text)
        names = re.findall(r"(?im)^@attribute\s+('[^']*'|\S+)", head)
        lines = io.StringIO("".join(line for line in io.StringIO(body) if line[:1] != "%"))
        quote = '"' if '"' in body else "'"
        rows = [row for row in csv.reader(lines, quotechar=quote) if len(row) == len(names)]
        with open(path, "w", newline="", encoding="utf-8") as file:
            table = csv.writer(file)
            table.writerow(name.strip("'") for name in names)
            table.writerows([_value(value) for value in row] for row in rows)

    return write


def _value(text: str) -> str:
    text = text.strip().strip("'")
    return "" if text == "?" else text


def _of_statsmodels(place: str) -> Callable[[Path], None]:
    return lambda path: shutil.copyfile(_package("statsmodels") / place, path)


def _package(name: str) -> Path:
    return Path(importlib.util.find_spec(name).origin).parent


def _sample(name: str) -> Callable[[Path], None]:
    """Return the writer of a sample data set of scikit-learn."""

    def write(path: Path) -> None:
        from sklearn import datasets

        getattr(datasets, f"load_{name}")(as_frame=True).frame.to_csv(path, index=False)

    return write


def _study(name: str, change: Callable[[Any], Any] = lambda frame: frame) -> Callable[[Path], None]:
    """Return the writer of a data set of statsmodels, changed by a function."""

    def write(path: Path) -> None:
        frame = importlib.import_module(f"statsmodels.datasets.{name}").load_pandas().data
        change(frame).to_csv(path, index=False)

    return write


def _is_above_0(column: str) -> Callable[[Any], Any]:
    """Return what makes a column of counts the label `any`: whether they are above 0."""
    return lambda frame: frame.assign(any=frame[column] > 0).drop(columns=column)


def _travellers(frame: Any) -> Any:
    """Return one row for each traveller, with the figures of all four modes and the one chosen."""
    wide = frame.pivot(index="individual", columns="mode", values=["ttme", "invc", "invt", "gc"])
    wide.columns = [f"{name}_{mode:g}" for name, mode in wide.columns]
    chosen = frame[frame["choice"] == 1].set_index("individual")
    return wide.join(chosen[["hinc", "psize"]]).assign(mode=chosen["mode"].astype(int))


def _people(path: Path) -> None:
    from examples import people

    people.write(path)


TABLES = {
    "people": Table("income", _people),
    "titanic": Table("survived", _of_scikit_learn(40945), ("boat", "body")),
    "penguins": Table("species", _of_scikit_learn(42585)),
    "chess": Table("class", _of_scikit_learn(3)),
    "births": Table(
        "mbsmoke",
        _of_statsmodels("treatment/tests/results/cataneo2.csv"),
        ("msmoke", "mbsmoke_", "mmarried_", "fbaby_", "prenatal1_", "mage2"),
    ),
    "iris": Table("target", _sample("iris")),
    "wine": Table("target", _sample("wine")),
    "cancer": Table("target", _sample("breast_cancer")),
    "digits": Table("target", _sample("digits")),
    "glass": Table("class", _of_scikit_learn(40675)),
    "zoo": Table("type", _of_scikit_learn(62), ("animal",)),
    "election": Table("vote", _study("anes96"), ("logpopul",)),
    "affairs": Table("any", _study("fair", _is_above_0("affairs"))),
    "doctors": Table("any", _study("randhie", _is_above_0("mdvis"))),
    "travel": Table("mode", _study("modechoice", _travellers)),
}

if __name__ == "__main__":
    main()
