"""What the trainer advises works, as in tests/unit/test_remedies.py."""

from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from kfp_tfjob.components.prepare_data import engine
from kfp_tfjob.components.step import Step
from kfp_tfjob.options.data import DataOptions
from kfp_tfjob.options.parse import parse
from kfp_tfjob.options.train import Profile, TrainerOptions
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.trainer import models, user_model
from kfp_tfjob.trainer.__main__ import _translate_error
from kfp_tfjob.trainer.callback_choice import choose
from kfp_tfjob.trainer.dataset import Dataset
from kfp_tfjob.trainer.profiler import Profiler
from kfp_tfjob.uploader import pull
from tests.local import mixed_dataset
from tests.problems import problem_of
from tests.unit import test_remedies
from tests.unit.picture_files import animals, drawn, encoded, tree
from tests.unit.remedies import literal


@pytest.fixture(scope="module")
def mixed(s3, tmp_path_factory) -> Dataset:
    folder = tmp_path_factory.mktemp("mixed") / "dataset"
    mixed_dataset.prepare(s3.store(), S3Address("test", "mixed-remedies"), folder)
    return Dataset.load(folder)


@pytest.fixture(scope="module")
def pictures(s3, tmp_path_factory) -> Dataset:
    data = tree(tmp_path_factory.mktemp("p"), animals(40))
    step = Step("prepare_data", "r1", Layout(S3Address("test", "picture-remedies")), s3.store())
    done = engine.run(step, str(data), "", {})
    folder = tmp_path_factory.mktemp("dataset")
    pull(step.store, S3Address.parse(done.dataset_uri), folder)
    return Dataset.load(folder)


def test_a_function_that_is_meant_exists(tmp_path: Path) -> None:
    (tmp_path / "remedy.py").write_text("def build(dataset): ...\n")
    problem = problem_of(user_model.find, "remedy:bild", tmp_path)
    assert user_model.find(f"remedy:{problem.suggestion}", tmp_path)


def test_the_model_that_is_advised_fits_the_dataset(
    mixed: Dataset, pictures: Dataset, tmp_path: Path
) -> None:
    for model, dataset in ((models.cnn, mixed), (models.mlp, pictures)):
        problem = problem_of(model, dataset)
        advised = user_model.find(problem.suggestion, tmp_path)
        user_model.check(advised(dataset), advised, dataset, 1)


def test_the_size_of_images_is_an_option(pictures: Dataset) -> None:
    size = {"height": 12, "width": 12}
    assert problem_of(models.cnn, pictures, **size).path == "model_hyperparameters"
    assert models.cnn(pictures)
    assert parse(DataOptions, "data_options", {"images": size})


def test_a_monitor_with_a_mode_works(mixed: Dataset, tmp_path: Path) -> None:
    model = models.mlp(mixed)
    metrics = ["loss", "val_loss", "val_gain"]

    def chosen(**options: Any) -> list[Any]:
        return choose(TrainerOptions(early_stopping=options), list, model, metrics, tmp_path)

    problem = problem_of(chosen, monitor="val_los")
    assert problem.path == "train_options.early_stopping.monitor"
    assert all(chosen(monitor=it) for it in ("loss", "val_loss"))
    problem = problem_of(chosen, monitor="val_gain")
    assert problem.path == "train_options.early_stopping.mode"
    assert all(chosen(monitor="val_gain", mode=mode) for mode in ("min", "max"))


def test_a_damaged_image_is_found_and_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    damaged = bytearray(encoded(drawn(1, (100, 100)), "PNG"))
    damaged[90] ^= 0xFF
    test_remedies.drawers()
    Path("p/cat/damaged.png").write_bytes(damaged)
    given = test_remedies.data("p", "")
    assert not test_remedies.table(given)
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        tf.io.decode_image(bytes(damaged))
    (problem,) = _translate_error(caught.value, 1, tmp_path).problems
    found = literal()(given, problem)
    assert "cat/damaged" in " ".join(map(str, test_remedies.table(found)))
    found["data_options"] |= {"on_bad_row": "drop", "max_bad_fraction": 0.1}
    assert not test_remedies.table(found)


def test_a_profile_within_the_training_is_recorded(tmp_path: Path) -> None:
    """Of 12 steps, an earlier start, fewer steps, or another epoch has the range."""
    assert problem_of(Profiler, Profile(start=10, steps=4), 12, tmp_path, True).path
    for start, steps, all_steps in ((9, 4, 12), (10, 3, 12), (10, 4, 24)):
        assert Profiler(Profile(start=start, steps=steps), all_steps, tmp_path, True)
