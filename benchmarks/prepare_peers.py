"""One way to prepare a CSV, in a process of its own: the peers of benchmarks/prepare_data.py.

    python -m benchmarks.prepare_peers WAY FILE.csv FOLDER

The last line is a JSON object: the wall seconds of the work, and the CPU seconds before it, which
went into imports.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.prepare_files import LABEL

PARTS = {"train": 0.7, "validation": 0.15, "test": 0.15}


def ours(path: Path, folder: Path) -> Callable[[], Any]:
    """The step, with the store of the environment."""
    from kfp_tfjob.components.prepare_data.engine import run
    from kfp_tfjob.components.step import Step
    from kfp_tfjob.storage.address import S3Address
    from kfp_tfjob.storage.layout import Layout
    from kfp_tfjob.storage.store import Store

    layout = Layout(S3Address("bench", folder.name))
    step = Step("prepare_data", "r1", layout, Store())
    return lambda: run(step, str(path), "" if path.is_dir() else LABEL, {})


def copy(path: Path, folder: Path) -> Callable[[], Any]:
    """The files as they are, with `cp -r`."""
    return lambda: subprocess.run(["cp", "-r", str(path), str(folder)], check=True)


def parse(path: Path, folder: Path) -> Callable[[], Any]:
    """The parse of pyarrow alone, with the types given, block by block; it writes nothing."""
    import pyarrow as pa
    import pyarrow.csv

    with open(path) as file:
        names = file.readline().strip().replace('"', "").split(",")
    kinds = {"x": pa.float32(), "n": pa.float32(), "d": pa.timestamp("us")}
    types = {name: kinds.get(name[0], pa.string()) for name in names}

    def work() -> None:
        options = pa.csv.ConvertOptions(column_types=types, strings_can_be_null=True)
        with pa.csv.open_csv(path, convert_options=options) as reader:
            for _ in reader:
                pass

    return work


def script(path: Path, folder: Path) -> Callable[[], Any]:
    """Pandas and tf.train.Example, as in many tutorials: one feature for each column."""
    import pandas as pd
    import tensorflow as tf

    def feature(value: Any) -> Any:
        if isinstance(value, str):
            return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value.encode()]))
        return tf.train.Feature(float_list=tf.train.FloatList(value=[value]))

    def work() -> None:
        table = pd.read_csv(path)
        for name in table.columns.drop(LABEL):
            if name.startswith("date"):
                table[name] = pd.to_datetime(table[name], format="ISO8601").astype("int64")
            is_text = not pd.api.types.is_numeric_dtype(table[name])
            table[name] = table[name].fillna("" if is_text else table[name].median())
        table = table.sample(frac=1, random_state=0)
        start, share = 0, 0.0
        for split, part in PARTS.items():
            share += part
            end = round(share * len(table))
            with tf.io.TFRecordWriter(str(folder / f"{split}.tfrecord")) as writer:
                for _, row in table.iloc[start:end].iterrows():
                    features = {name: feature(value) for name, value in row.items()}
                    example = tf.train.Example(features=tf.train.Features(feature=features))
                    writer.write(example.SerializeToString())
            start = end

    return work


def tfx(path: Path, folder: Path) -> Callable[[], Any]:
    """CsvExampleGen and StatisticsGen of TFX, on Beam's runner for one machine."""
    from tfx import v1

    splits = v1.proto.SplitConfig
    config = splits(
        splits=[
            splits.Split(name=name, hash_buckets=round(part * 20)) for name, part in PARTS.items()
        ]
    )
    examples = v1.components.CsvExampleGen(
        input_base=str(path.parent), output_config=v1.proto.Output(split_config=config)
    )
    statistics = v1.components.StatisticsGen(examples=examples.outputs["examples"])
    pipeline = v1.dsl.Pipeline(
        pipeline_name="p",
        pipeline_root=str(folder),
        components=[examples, statistics],
        metadata_connection_config=v1.orchestration.metadata.sqlite_metadata_connection_config(
            str(folder / "metadata.db")
        ),
    )
    return lambda: v1.orchestration.LocalDagRunner().run(pipeline)


def main() -> None:
    """Prepare, do the work, and say what it took."""
    way, path, folder = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    folder.mkdir(parents=True, exist_ok=True)
    work = {known.__name__: known for known in (ours, copy, parse, script, tfx)}[way](path, folder)
    before, start = time.process_time(), time.perf_counter()
    work()
    print(json.dumps({"wall": time.perf_counter() - start, "before": before}), flush=True)


if __name__ == "__main__":
    main()
