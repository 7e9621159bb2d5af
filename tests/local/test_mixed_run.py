"""A whole run on a table of people: its model serves, and everything has the form of before."""

import json
import os
import re
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from examples import people
from kfp_tfjob.features.types.base import NO_DATE
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.store import Store
from tests.local.local_run import Run, stored

GOLDEN = Path(__file__).parents[1] / "golden" / "stored-forms.json"
SAME_BYTES = ("datasets/", "models/people/versions/1/request.json")
# What a run or a machine makes different each time.
NAMES = {r"\d{8}-\d{6}-[0-9a-f]{4}": "RUN", r"[0-9a-f]{32,}": "HASH", r"\d+\.\w+\.\d+\.": "N."}
NAMES |= {r"/[0-9a-f]{8}\.gz": "/LAUNCHER.gz"}


def metadata_of(outputs: Path, step: str, artifact: str) -> dict[str, Any]:
    """Return the metadata of a local run's artifact, whose own address stays in its folder."""
    (output,) = outputs.glob(f"*/{step}/executor_output.json")
    (found,) = json.loads(output.read_text())["artifacts"][artifact]["artifacts"]
    assert found["uri"] == str(output.parent / artifact)
    return found["metadata"]


def test_a_table_of_people_trains_without_options(tmp_path: Path) -> None:
    import tensorflow as tf

    data = tmp_path / "python3.11" / "people.csv"  # a name kfp.local stumbles over by itself
    data.parent.mkdir()
    people.write(data, rows=600)
    words = ("--label", people.LABEL, "--workers", "0", "--epochs", "2")
    done = Run(tmp_path / "home", "--data", str(data), *words)
    assert done.wait() == 0, done.text
    assert "verdict    blessed:" in done.text
    assert "numbers" not in done.text
    accuracy = float(done.text.split("test       accuracy ")[1].split(",")[0])
    assert accuracy >= 0.7
    done.assert_nothing_left()

    # The store is stopped with the run: its model and reports are there for other programs.
    published, folder = tmp_path / "home/models/people/1", tmp_path / "home/runs" / done.run_id
    assert (folder / "summary.md").read_text().startswith("# Published: `people`, version 1")
    for name in ("report.html", "training.html", "data.html", "parameters.md", "tfjob.html"):
        assert (folder / name).stat().st_size
    assert not (folder / "failure.md").exists()
    model = tf.saved_model.load(str(published / "model"))
    usual = {
        "age": tf.constant([44.0, 44.0], tf.float64),
        "hours": tf.constant([40.0, float("nan")], tf.float64),
        "occupation": tf.constant(["teacher", ""]),
        "city": tf.constant(["Rome", "Atlantis"]),
        "signed_up": tf.constant([1_600_000_000_000_000, NO_DATE], tf.int64),
        "member": tf.constant(["yes", ""]),
    }
    answer = model.signatures["serve"](**usual)
    assert set(answer["class"].numpy().tolist()) <= {b"<=50K", b">50K"}
    assert answer["probabilities"].numpy().sum(axis=1) == pytest.approx([1, 1])
    assert set(json.loads((published / "request.json").read_text())["instances"][0]) == set(usual)
    assert (published / "README.md").stat().st_size

    # The artifacts lead by digests from the version to its training and its data.
    dataset, trained, version = (
        metadata_of(folder / "outputs", *it)
        for it in (
            ("prepare-data", "dataset"),
            ("launch-tfjob", "trained_model"),
            ("publish", "published_model"),
        )
    )
    assert version["trained_manifest_sha256"] == trained["manifest_sha256"]
    for digest in ("dataset_digest", "schema_digest"):
        assert version[digest] == trained[digest] == dataset[digest]
    assert version["framework_version"] == trained["framework_version"] == tf.__version__
    assert {it["run_id"] for it in (dataset, trained, version)} == {done.run_id}
    assert trained["saved_model"] and len(trained["trained_weights_sha256"]) == 64

    # Runs, checkpoints and champions of this version must stay readable: their forms are pinned.
    found = stored(tmp_path / "home", forms)
    # Whether there is a checkpoint after the first epoch is a matter of seconds.
    found = {name: item for name, item in found.items() if "/checkpoints/6/" not in name}
    found["signatures"] = {
        name: [
            sorted(str(it) for it in part.values())
            for part in (one.structured_input_signature[1], one.structured_outputs)
        ]
        for name, one in model.signatures.items()
    }
    if os.environ.get("WRITE_GOLDEN"):
        GOLDEN.write_text(json.dumps(found, indent=1, sort_keys=True, ensure_ascii=False) + "\n")
    assert found == json.loads(GOLDEN.read_text())


def forms(layout: Layout, store: Store) -> dict[str, Any]:
    """Return the form of every stored object by its name, or the hash where bytes stay the same."""
    found: dict[str, Any] = {}
    for item in store.list(layout.root):
        name, data = item.address.key, store.read(item.address)
        for pattern, word in NAMES.items():
            name = re.sub(pattern, word, name)
        if name.endswith(".json") and not name.startswith(SAME_BYTES):
            found[name] = form(json.loads(data))
        elif name.endswith(".jsonl"):
            found[name] = form([json.loads(line) for line in data.splitlines()])
        else:
            found[name] = sha256(data).hexdigest() if name.startswith(SAME_BYTES) else "bytes"
    return found


def form(value: Any) -> Any:
    """Return the keys and types of a document; of a list, those of its different items."""
    if isinstance(value, dict):
        return {key: form(item) for key, item in value.items()}
    if isinstance(value, list):
        kinds = {json.dumps(form(item), sort_keys=True): form(item) for item in value}
        return [kinds[text] for text in sorted(kinds)]
    return "number" if type(value) in (int, float) else type(value).__name__
