"""`python -m kfp_tfjob.trainer.rehearsal`: build the user's model before any row is read.

It gets the environment of a replica, and the columns with their kinds on standard input. Everything
else in a dataset needs the rows, so it builds the model on several different stand-ins. It reports
only errors that the training would certainly meet: a mistake in the code, or a shape that Keras
rejects. Such an error is the same on every stand-in and does not depend on made-up values. The
training reports all other errors.
"""

from __future__ import annotations

import json
import os
import re
import sys
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kfp_tfjob.storage.errors import ConfigurationError, Problem
from kfp_tfjob.storage.layout import CODE
from kfp_tfjob.trainer.coding import CATEGORY, NUMBER, TEXT, Coded, Coding, Missing
from kfp_tfjob.trainer.config import Config
from kfp_tfjob.trainer.dataset import CLASSIFICATION, REGRESSION, Dataset
from kfp_tfjob.trainer.load import load
from kfp_tfjob.trainer.pictures import PICTURE, PictureInput

# Mistakes of a program, without UnboundLocalError: real data may take a different branch.
_MISTAKES = (NameError, AttributeError, TypeError, ImportError, SyntaxError)
# Attributes of a stand-in that are entirely made up, so that code that reads them may fail.
_MADE_UP = frozenset(
    {"class_names", "rows", "schema", "statistics", "folder", "digest", "shards", "class_weights"}
)


class Guess(NamedTuple):
    """What a stand-in makes up: classes, mean and deviation of the columns, texts of a category.

    And of pictures: what a model gets of them.
    """

    classes: int
    mean: float
    std: float
    texts: int
    picture: PictureInput


_GUESSES = (
    Guess(2, 0.0, 1.0, 3, PictureInput(128, 128, 3)),
    Guess(10, 100.0, 30.0, 40, PictureInput(28, 28, 1)),
    Guess(3, -5.0, 0.5, 1000, PictureInput(224, 160, 3)),
)


class StandIn(Dataset):
    """A dataset with known columns and made-up values.

    Attributes:
        asked: The made-up attributes that the code has read.
    """

    asked: set[str]

    @classmethod
    def of(cls, features: Mapping[str, str], label: str, task: str, guess: Guess) -> StandIn:
        """Create a stand-in.

        Args:
            features: The kinds of the columns, by name.
            label: The label column.
            task: `classification` or `regression`.
            guess: What is not known before the rows are read.
        """
        classes = guess.classes if task == CLASSIFICATION else 0
        texts = tuple(f"text {number}" for number in range(guess.texts))
        picture = guess.picture if PICTURE in features.values() else None
        columns = {} if picture else features
        coding = Coding(tuple(_coded(name, kind, texts) for name, kind in columns.items()))
        numbers = np.arange(coding.width) < coding.numbers
        found = cls(
            folder=Path(os.devnull),
            task=task,
            feature_names=(PICTURE,) if picture else coding.names,
            mean=np.where(numbers, guess.mean, 0).astype(np.float32),
            std=np.where(numbers, guess.std, 1).astype(np.float32),
            class_names=tuple(f"class {number}" for number in range(classes)),
            label_name=label,
            label_mean=0.0 if classes else guess.mean,
            label_std=1.0 if classes else guess.std,
            rows={"train": 1000, "validation": 100, "test": 100},
            schema={},
            statistics={},
            coding=None if coding.plain else coding,
            picture=picture,
        )
        object.__setattr__(found, "asked", set())
        return found

    @property
    def num_classes(self) -> int:
        """Number of classes; unlike the names, it is not recorded in `asked`."""
        return len(object.__getattribute__(self, "class_names"))

    def __getattribute__(self, name: str) -> Any:
        """Return an attribute, and remember those that are made up."""
        if name in _MADE_UP:
            object.__getattribute__(self, "asked").add(name)
        return object.__getattribute__(self, name)


def _coded(name: str, kind: str, texts: tuple[str, ...]) -> Coded:
    if kind == CATEGORY:
        return Coded(name, kind, dictionary=texts, vocabulary=texts)
    if kind == TEXT:
        return Coded(name, kind, bins=len(texts))
    return Coded(name, kind, None if kind == NUMBER else Missing("constant", 0))


StandIn.__name__ = Dataset.__name__  # the name in Python's messages


def rehearse(
    config: Config, features: Mapping[str, str], label: str, task: str, replicas: int
) -> list[Problem | str]:
    """Return the problems that the training would certainly refuse.

    Args:
        config: The configuration of a replica; only the code in its job_dir is opened.
        features: The kinds of the columns, by name.
        label: The label column.
        task: `classification`, `regression`, or anything else if only the rows decide.
        replicas: Number of replicas of the job.
    """
    from kfp_tfjob.trainer import user_code

    try:
        function = user_code.find(config.model_code, config.job_dir / CODE)
    except ConfigurationError as error:
        return list(error.problems) if _is_mistake(error) else []
    found: list[tuple[Problem | str, ...]] = []
    for possible in (CLASSIFICATION, REGRESSION):
        if task in (CLASSIFICATION, REGRESSION) and task != possible:
            continue
        problems = _rehearse_task(config, function, features, label, possible, replicas)
        if not problems:
            return []  # an error for the other task may not matter
        if problems not in found:
            found.append(problems)
    return [problem for problems in found for problem in problems]


def _rehearse_task(
    config: Config,
    function: Any,
    features: Mapping[str, str],
    label: str,
    task: str,
    replicas: int,
) -> tuple[Problem | str, ...]:
    """Return the problems common to all stand-ins of a task; none if one has no problem."""
    common = ""
    for kinds, guess in _stand_ins(features):
        stand_in = StandIn.of(kinds, label, task, guess)
        error, words = _failure(config, function, stand_in, replicas)
        if not error or stand_in.asked or not _is_mistake(error) or common not in ("", words):
            return ()
        common = words
    return error.problems


def _stand_ins(features: Mapping[str, str]) -> Iterator[tuple[Mapping[str, str], Guess]]:
    """Yield different datasets that the rows may turn out to be."""
    for guess in _GUESSES:
        yield features, guess
    if any(kind not in (NUMBER, PICTURE) for kind in features.values()):
        # The kinds come from the first rows. All rows together may say otherwise.
        yield dict.fromkeys(features, NUMBER), _GUESSES[0]
        yield dict.fromkeys(features, CATEGORY), _GUESSES[0]


def _failure(
    config: Config, function: Any, dataset: StandIn, replicas: int
) -> tuple[ConfigurationError | None, str]:
    """Build and check a model; return the problems, and their text to compare."""
    import keras

    from kfp_tfjob.trainer import user_code

    keras.backend.clear_session()
    keras.utils.set_random_seed(config.options.seed)
    if config.options.precision:
        keras.mixed_precision.set_global_policy(config.options.precision)
    model = None
    try:
        model = user_code.build(function, dataset, config.hyperparameters)
        user_code.check(model, function, dataset, replicas, config.options)
    except ConfigurationError as error:
        words = str(error)
        if user_code.LABELS_DO_NOT_FIT in words and _is_all_named(model):
            words = re.sub(r"\d+", "", words)  # a loss of Keras fails for any number of classes
        return error, words
    return None, ""


def _is_all_named(model: Any) -> bool:
    """Tell whether all losses and metrics are those of Keras, given by name."""
    import keras

    metrics = model._compile_metrics
    named = [model.loss]
    if metrics:
        named += [metrics._user_metrics, metrics._user_weighted_metrics]
    return all(item is None or isinstance(item, str) for item in keras.tree.flatten(named))


def _is_mistake(error: ConfigurationError) -> bool:
    """Tell whether an error comes from the code or from shapes, for any rows."""
    cause = error.__cause__
    if cause is None:
        return True  # one of our own checks
    if isinstance(cause, ValueError):
        # From Keras, it concerns shapes and arguments. From user code, it may concern the rows.
        return "site-packages" in traceback.extract_tb(cause.__traceback__)[-1].filename
    return isinstance(cause, _MISTAKES) and not isinstance(cause, UnboundLocalError)


def main() -> None:
    """Write the problems as JSON to the file that the header names."""
    load(0)  # preflight checks the rest meanwhile
    header: Mapping[str, Any] = json.loads(sys.stdin.readline())
    os.environ["MODEL_CODE"] = header["model_entry"]
    alone = {"TF_CONFIG": "", "EXPECTED_REPLICAS": ""}  # this process has no peers
    config = Config.from_environment({**os.environ, **alone})
    columns = (header["features"], header["label"], header["task"])
    problems = rehearse(config, *columns, header["replicas"])
    said = [asdict(item) if isinstance(item, Problem) else {"what": item} for item in problems]
    Path(header["answer"]).write_text(json.dumps(said, default=str), encoding="utf-8")


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # the destructors of TensorFlow take seconds
