"""When the supervisor gives a user's own program Keras 2."""

import sys
from pathlib import Path

import pytest

from kfp_tfjob.supervisor.keras import choose

HEAD = "import tensorflow as tf\nstrategy = tf.distribute.MultiWorkerMirroredStrategy()\n"
FIT = "model.fit(rows)\n"
KERAS_2 = {"TF_USE_LEGACY_KERAS": "1"}


@pytest.fixture
def job_dir(tmp_path: Path) -> Path:
    (tmp_path / "code").mkdir()
    return tmp_path


def chosen(job_dir: Path, *code: str, replicas: int = 2, **variables: str) -> dict[str, str]:
    """Return the choice for a program of some files, the first of which runs."""
    for at, text in enumerate(code):
        (job_dir / "code" / f"part{at}.py").write_text(text)
    command = [sys.executable, str(job_dir / "code" / "part0.py")]
    return choose(command, {"JOB_DIR": str(job_dir)} | variables, replicas)


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ([HEAD + FIT], KERAS_2),
        ([HEAD + "import model\n", FIT], KERAS_2),
        ([HEAD + "from tensorflow import keras\n" + FIT], KERAS_2),
        ([HEAD + "from tensorflow.keras import layers\nimport keras_hub\n" + FIT], KERAS_2),
        ([HEAD.replace("MultiWorkerMirrored", "ParameterServer") + FIT], KERAS_2),
        ([HEAD.replace("Multi", "experimental.Multi") + FIT], KERAS_2),
        ([HEAD.replace("MultiWorkerMirrored", "Mirrored") + FIT], {}),
        ([HEAD], {}),
        ([FIT], {}),
        ([HEAD + "import keras\n" + FIT], {}),
        ([HEAD + "  from keras import layers\n" + FIT], {}),
        ([HEAD + "import numpy as np, keras.layers as kl\n" + FIT], {}),
        ([HEAD + FIT, "from keras.layers import Dense\n"], {}),
    ],
)
def test_what_the_code_decides(job_dir: Path, code: list[str], found: dict[str, str]) -> None:
    assert chosen(job_dir, *code) == found


def test_one_replica_and_a_choice_that_was_made_are_left_alone(job_dir: Path) -> None:
    assert chosen(job_dir, HEAD + FIT, replicas=1) == {}
    central = HEAD.replace("MultiWorkerMirrored", "experimental.CentralStorage") + FIT
    assert chosen(job_dir, central, replicas=1) == KERAS_2
    assert chosen(job_dir, central, TF_USE_LEGACY_KERAS="0", replicas=1) == {}
    for value in ("0", "1", ""):
        assert chosen(job_dir, HEAD + FIT, TF_USE_LEGACY_KERAS=value) == {}


def test_the_trainer_of_this_project_is_left_alone(job_dir: Path) -> None:
    chosen(job_dir, HEAD + FIT)
    command = [sys.executable, "-m", "kfp_tfjob.trainer"]
    assert choose(command, {"JOB_DIR": str(job_dir)}, 2) == {}


def test_a_program_of_the_image_is_read_too(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(HEAD + "import model\n")
    (tmp_path / "model.py").write_text(FIT)
    command = [sys.executable, "-u", f"{tmp_path}/train.py", "--epochs=3"]
    assert choose(command, {}, 2) == KERAS_2
    assert choose([sys.executable, f"{'x' * 300}.py", f"{tmp_path}/none/train.py"], {}, 2) == {}


def test_a_module_of_the_image_is_read_with_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "trainer" / "models").mkdir(parents=True)
    (tmp_path / "trainer" / "task.py").write_text(HEAD)
    (tmp_path / "trainer" / "models" / "mlp.py").write_text(FIT)
    command = [sys.executable, "-m", "trainer.task"]
    assert choose(command, {}, 2) == {}
    monkeypatch.chdir(tmp_path)
    assert choose(command, {}, 2) == KERAS_2


def test_the_interpreter_of_the_program_is_asked(job_dir: Path, capfd) -> None:
    bare = job_dir / "python-without-packages"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    chosen(job_dir, HEAD + FIT)
    variables = {"JOB_DIR": str(job_dir)}
    for python in (str(bare), str(job_dir / "python-that-is-not-there")):
        assert choose([python, "train.py"], variables, 2) == {}
        assert "add tf-keras" in capfd.readouterr().out
    assert choose([sys.executable, "train.py"], variables, 2) == KERAS_2
    assert "train_options.keras" in capfd.readouterr().out
