"""A model of images in the environment of the server: good files, and damaged ones."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.environments import ROOT

pytestmark = pytest.mark.slow
PROGRAM = """
import base64, json, sys
from pathlib import Path

import numpy as np
import tensorflow as tf

from kfp_tfjob.serving.server import _load_kserve
_load_kserve()
from kfp_tfjob.judging.model import exported_weights_sha256
from kfp_tfjob.serving.loaded_model import LoadedModel
from kfp_tfjob.serving.protocol import _predict_rows
from kfp_tfjob.serving.refusal import RefusedRequest
from kfp_tfjob.registry.champion import Champion
from kfp_tfjob.features.types.image import ONE_PIXEL
from kfp_tfjob.features.image_decoding import ImageInput

folder = Path(sys.argv[1])
picture = ImageInput(4, 4, 1)
module = tf.Module()
module.weights = tf.Variable([[1.0, 2.0]])

@tf.function(input_signature=[tf.TensorSpec([None], tf.string, "picture")])
def serve(picture_bytes):
    pixels = picture.decode(picture_bytes)
    mean = tf.reduce_mean(tf.reshape(pixels, [-1, 16]), axis=1, keepdims=True) / 255
    return {"probabilities": tf.nn.softmax(mean @ module.weights)}

tf.saved_model.save(module, str(folder / "model"), signatures={"serve": serve})
schema = {
    "task": "classification",
    "features": [{"name": "picture", "type": "picture"}],
    "picture": vars(picture),
    "label": {"name": "class", "classes": ["dark", "light"]},
    "schema_digest": "s",
}
(folder / "schema.json").write_text(json.dumps(schema))
digest = exported_weights_sha256(folder / "model")
champion = Champion(1, 1, "", "run", digest, "s", "d", {}, "")
loaded = LoadedModel(champion, folder, "pictures")
text = base64.b64encode(ONE_PIXEL).decode()
rows = loaded.columns.of_rows([{"picture": {"b64": text}}, {"picture": text}])
values = _predict_rows(loaded, rows)
damaged = bytearray(ONE_PIXEL)
damaged[44] ^= 0xFF  # of the pixels, which the header does not show
said = []
for content in (damaged, ONE_PIXEL[:20]):
    try:
        row = {"picture": base64.b64encode(content).decode()}
        _predict_rows(loaded, loaded.columns.of_rows([row]))
    except RefusedRequest as error:
        said.append(str(error))
print(json.dumps({"shape": values.shape, "said": said}))
"""


def test_pictures_are_answered_and_damaged_ones_refused(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, tmp_path],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["shape"] == [2, 2]
    of_pixels, of_header = told["said"]
    assert "find the damaged one" in of_pixels and "end within the header" in of_header
