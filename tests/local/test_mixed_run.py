"""A whole run on a table of people, without any option."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples import people
from kfp_tfjob.trainer.coding import NO_DATE
from tests.local.local_run import Run


@pytest.mark.slow
def test_a_table_of_people_trains_without_options(tmp_path: Path) -> None:
    import tensorflow as tf

    people.write(tmp_path / "people.csv", rows=3000)
    done = Run(tmp_path / "home", "--data", str(tmp_path / "people.csv"), "--label", people.LABEL)
    assert done.wait() == 0, done.text
    assert "verdict    blessed:" in done.text
    assert "as if they were numbers" not in done.text
    accuracy = float(done.text.split("test       accuracy ")[1].split(",")[0])
    assert accuracy >= 0.7
    done.assert_nothing_left()

    published = tmp_path / "home/models/people/1"
    serve = tf.saved_model.load(str(published / "model")).signatures["serve"]
    usual = {
        "age": tf.constant([44.0, 44.0], tf.float64),
        "hours": tf.constant([40.0, float("nan")], tf.float64),
        "occupation": tf.constant(["teacher", ""]),
        "city": tf.constant(["Rome", "Atlantis"]),
        "signed_up": tf.constant([1_600_000_000_000_000, NO_DATE], tf.int64),
        "member": tf.constant(["yes", ""]),
    }
    answer = serve(**usual)
    assert set(answer["class"].numpy().tolist()) <= {b"<=50K", b">50K"}
    assert answer["probabilities"].numpy().sum(axis=1) == pytest.approx([1, 1])
    assert "'city': " in (published / "README.md").read_text()
