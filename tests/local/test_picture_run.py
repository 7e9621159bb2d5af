"""A whole run on a folder of images, without any option."""

from pathlib import Path

import pytest

from examples import pictures
from tests.local.local_run import Run


@pytest.mark.slow
def test_a_folder_of_pictures_trains_without_options(tmp_path: Path) -> None:
    import tensorflow as tf

    pictures.write(tmp_path / "tiles")
    done = Run(tmp_path / "home", "--data", str(tmp_path / "tiles"))
    assert done.wait() == 0, done.text
    assert "verdict    blessed:" in done.text
    assert float(done.text.split("test       accuracy ")[1].split(",")[0]) >= 0.85
    done.assert_nothing_left()

    published = tmp_path / "home/models/tiles/1"
    serve = tf.saved_model.load(str(published / "model")).signatures["serve"]
    files = [(tmp_path / "tiles" / name).read_bytes() for name in ("temple/000-000.png",)]
    answer = serve(picture=tf.constant(files))
    assert answer["class"].numpy().tolist() == [b"temple"]
    assert answer["probabilities"].numpy().sum(axis=1) == pytest.approx([1])
