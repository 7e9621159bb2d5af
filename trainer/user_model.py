"""Finds, builds and checks the user's model before training."""

from __future__ import annotations

import importlib
import inspect
import json
import logging
import re
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend import compute_output_spec  # traces without creating or changing variables

from kfp_tfjob.options.train import TrainerOptions
from kfp_tfjob.storage.errors import ConfigurationError, Problem, StepError
from kfp_tfjob.storage.formatting import did_you_mean, listed, nearest
from kfp_tfjob.trainer import batch_norm, label_test, randomness
from kfp_tfjob.trainer.dataset import CLASSIFICATION, Dataset
from kfp_tfjob.trainer.prediction import output_spec
from kfp_tfjob.trainer.train_step import failed_step, innermost
from kfp_tfjob.trainer.user_errors import FAILURES, last_line, where
from kfp_tfjob.user_code.arguments import wrong_strings

log = logging.getLogger(__name__)

BuildModel = Callable[..., keras.Model]
_BITS = {"bfloat16": 8, "float16": 11}  # of a number in 16 bits


def find(model_code: str, folder: Path) -> BuildModel:
    """Return the function `module:function`.

    Args:
        model_code: As in MODEL_CODE.
        folder: Searched before everything else.

    Raises:
        ConfigurationError: The module cannot be imported, or has no such function.
    """
    name, _, function = model_code.partition(":")
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        module = importlib.import_module(name)
    except FAILURES as error:
        raise ConfigurationError(
            Problem(
                f"the model code {name} cannot be imported",
                received=where(error),
                expected="a module that can be imported in the trainer image",
                fix="remove what ends the process when the module is imported, for example argparse"
                if isinstance(error, SystemExit)
                else "correct the code; install its other packages in train_image; name a folder"
                " as model_code to run it with modules of your own",
            )
        ) from error
    stem = name.partition(".")[0]
    is_copied = Path(folder, f"{stem}.py").exists() or Path(folder, stem).is_dir()
    if is_copied and not Path(module.__file__ or "").is_relative_to(folder):
        raise ConfigurationError(
            Problem(
                f"another module with the name of the model code {name} is loaded",
                received=module.__file__ or "a module of Python",
                expected=f"a name that no library has, because {stem} is imported by its name",
                fix=f"rename {stem}, for example to my_{stem}",
            )
        )
    _use_tensorflow_2()
    found = getattr(module, function, None)
    if not callable(found):
        raise ConfigurationError(_no_function(module, function))
    return found


def callbacks(model_code: str, dataset: Dataset) -> list[Any]:
    """Return the result of the function `callbacks` in the user's module, if it exists.

    Args:
        model_code: As in MODEL_CODE, found before.
        dataset: The function's only argument.

    Raises:
        ConfigurationError: It is not a function, fails, or does not return a list.
    """
    name = model_code.partition(":")[0]
    found = getattr(sys.modules[name], "callbacks", None)
    if found is None or inspect.ismodule(found):
        return []
    received = f"callbacks = {found!r:.100}"
    if callable(found):
        try:
            returned = found(dataset)
        except StepError:
            raise
        except FAILURES as error:
            received = where(error)
        else:
            if isinstance(returned, list | tuple):
                return list(returned)
            received = f"{type(returned).__name__}: {returned!r:.100}"
    raise ConfigurationError(
        Problem(
            "the model code does not return a list of callbacks",
            received=received,
            expected="def callbacks(dataset) that returns a list of keras.callbacks.Callback",
            fix=f"correct callbacks in {name}, or rename it",
        )
    )


def build(function: BuildModel, dataset: Dataset, hyperparameters: Mapping[str, Any]) -> Any:
    """Call the user's function and return its result.

    Raises:
        ConfigurationError: It fails, for example because it does not take these hyperparameters.
    """
    # Preflight can check only code that it can parse, not a module that only this image has.
    ConfigurationError.raise_if(wrong_strings(function, hyperparameters))
    try:
        model = function(dataset, **_with_floats(function, hyperparameters))
    except StepError:
        raise
    except FAILURES as error:
        arguments = inspect.signature(function) if isinstance(error, TypeError) else ""
        raise ConfigurationError(
            Problem(
                f"{_name(function)} failed",
                received=where(error),
                expected=f"a compiled keras.Model from {_name(function)}{arguments}",
                fix="put the file into a folder with the code, name that folder as model_code, and"
                " load the file from Path(__file__).parent"
                if "URL fetch failure" in str(error)
                else "correct the model code or model_hyperparameters",
            )
        ) from error
    _use_tensorflow_2()
    if ignored := dataset.ignored_codes:
        log.warning(
            "%s uses the codes of %s as if they were numbers; dataset.encode(inputs) makes one-hot"
            " vectors and embeddings of them",
            _name(function),
            listed(ignored, 10),
        )
    return model


def _use_tensorflow_2() -> None:
    """Reject code that turned off TensorFlow 2, and turn on compiled functions.

    Raises:
        ConfigurationError: TensorFlow builds graphs as version 1 did.
    """
    if not tf.executing_eagerly():
        raise ConfigurationError(
            Problem(
                "the model code turns off TensorFlow 2",
                received="tf.compat.v1.disable_v2_behavior(), or disable_eager_execution()",
                expected="code for TensorFlow 2",
                fix="remove this call, and import tensorflow instead of tensorflow.compat.v1",
            )
        )
    if tf.config.functions_run_eagerly():
        log.warning(
            "tf.config.run_functions_eagerly(True) in the model code is ignored: each step would"
            " take many times as long"
        )
        tf.config.run_functions_eagerly(False)


def _with_floats(function: BuildModel, given: Mapping[str, Any]) -> dict[str, Any]:
    """Make a whole number a float where the function expects one.

    Kubeflow Pipelines does not tell 1.0 from 1, and Keras takes no whole number as a learning rate.
    """
    known = inspect.signature(function).parameters
    found = dict(given)
    for name in given.keys() & known.keys():
        wanted = known[name]
        types = re.findall(r"\w+", str(wanted.annotation))
        is_float = isinstance(wanted.default, float) or ("float" in types and "int" not in types)
        if is_float and type(given[name]) is int:
            found[name] = float(given[name])
    return found


def check(
    model: Any,
    function: BuildModel,
    dataset: Dataset,
    replicas: int,
    options: TrainerOptions = TrainerOptions(),  # noqa: B008
) -> None:
    """Check that a model can be trained on a dataset, and create all its variables.

    Args:
        model: The result of the user's function. The option `sync_batch_norm` synchronizes its
            layers BatchNormalization.
        function: The user's function, for messages.
        dataset: The training data.
        replicas: Number of replicas of the job.
        options: TRAIN_OPTIONS.

    Raises:
        ConfigurationError: It cannot be trained. Where possible, it lists several reasons.
    """
    name = _name(function)
    if any(kind.__module__.startswith("tf_keras.") for kind in type(model).__mro__):
        raise ConfigurationError(
            Problem(
                f"{name} returned a model of Keras 2",
                received=f"{type(model).__module__}.{type(model).__name__}",
                expected="a model of Keras 3",
                fix="import keras instead of tf_keras and remove TF_USE_LEGACY_KERAS, or train with"
                " your own program (train_options.command)",
            )
        )
    if not isinstance(model, keras.Model) or not model.compiled or model.optimizer is None:
        what = "a keras.Model that is not compiled" if isinstance(model, keras.Model) else ""
        raise ConfigurationError(
            Problem(
                f"{name} did not return a compiled model",
                received=what or f"{type(model).__module__}.{type(model).__name__}: {model!r:.100}",
                expected="a keras.Model after model.compile(optimizer, loss, metrics)",
                fix=f"end {name} with model.compile(...) and return model",
            )
        )
    if made_before := _made_before(model):
        raise ConfigurationError(
            Problem(
                f"{name} returned a model with parts that already existed before the call",
                received=f"{len(made_before)} variables, for example {made_before[0]}",
                expected=f"layers, optimizer and metrics that are created in {name}: with several"
                " replicas, the strategy must create their variables",
                fix=f"move the code that creates them into {name}",
            )
        )
    batch_norm.synchronize(model, replicas, options)
    ConfigurationError.raise_if(_unsupported(model, replicas, options))
    output = _output(model, dataset)
    if problem := _shape_problem(output, dataset):
        raise ConfigurationError(problem)
    _check_rounding(model, dataset)
    try:
        model._symbolic_build(data_batch=_example(dataset))
    except Exception as error:
        raise ConfigurationError(_build_problem(model, dataset, error)) from error
    compiled = model._compile_metrics
    if compiled and "loss" in (metric.name for metric in compiled.metrics):
        raise ConfigurationError(
            Problem(
                "a metric has the name of the loss",
                received="loss",
                expected="another name: the metric would take the place of loss and val_loss",
                fix="rename the metric",
            )
        )
    label_test.check_shapes(model, dataset, output, options)
    _check_saves(model)
    randomness.adopt_unseeded(model, options.seed)


def _made_before(model: keras.Model) -> list[str]:
    """Return the variables of a model that were not created in the scope of the strategy."""
    if not tf.distribute.has_strategy():
        return []
    compiled = keras.tree.flatten(model._compile_metrics and model._compile_metrics._user_metrics)
    metrics = (item for item in compiled if isinstance(item, keras.Metric))
    variables = (
        *model.variables,
        *model.optimizer.variables,
        *(item for metric in metrics for item in metric.variables),
    )
    known = tf.distribute.get_strategy().extended.variable_created_in_scope
    return [item.path for item in variables if not known(item.value)]


def _check_rounding(model: keras.Model, dataset: Dataset) -> None:
    """Reject a model for which Keras rounds codes before it sees them; warn of rounded numbers.

    Keras casts what it passes to a layer, or to a model that is not Functional, to its type.
    """
    readers = [model]
    if not model._convert_input_args:  # it is Functional
        nodes = model.inputs[0]._keras_history.operation._outbound_nodes
        readers = [it.operation for it in nodes if it.operation in model.operations]
    types = {it.compute_dtype if getattr(it, "autocast", False) else "" for it in readers}
    bits = _BITS.get(types.pop()) if len(types) == 1 else None
    if not bits or dataset.picture:
        return
    numbers = dataset.num_features - sum(it.size > 0 for it in dataset.columns)
    columns = zip(dataset.feature_names[:numbers], dataset.mean, dataset.std, strict=False)
    coarse = [name for name, mean, std in columns if abs(mean) > std * 2**bits / 4]
    codes = [it.name for it in dataset.columns if it.size - 1 > 2**bits]
    problem = Problem(
        "mixed precision rounds columns before the model sees them",
        received=f"{listed(codes or coarse, 10)} in {bits} bits",
        expected="float32",
        fix="begin a Functional model with keras.Input and dataset.encode(inputs), or set"
        " self.autocast = False in your own class",
    )
    if codes:
        raise ConfigurationError(problem)
    if coarse:
        log.warning("%s", problem)


def _check_saves(model: keras.Model) -> None:
    """Check before training that model.save works."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Keras warns about lambdas when it saves
            json.dumps(keras.saving.serialize_keras_object(model))
    except Exception as error:
        raise ConfigurationError(
            Problem(
                "the model cannot be saved",
                received=last_line(error),
                expected="a model and layers that Keras can write to model.keras",
                fix=_fix_of_saving(str(error)),
            )
        ) from error


def _fix_of_saving(message: str) -> str:
    if "object Dataset(" in message:
        return (
            "take what a function needs out of dataset before it is defined: mean = dataset.mean;"
            " or use keras.layers.Normalization(mean=dataset.mean, variance=dataset.std**2)"
        )
    if "functools.partial" in message:
        return "write this function with def"
    return (
        "give the class in this error a get_config() that returns the arguments of its __init__,"
        " as numbers, strings and lists; give it dataset.num_classes, for example, instead of the"
        " dataset, and call dataset.encode in build_model"
    )


def _unsupported(model: keras.Model, replicas: int, options: TrainerOptions) -> list[Problem]:
    """Return the parts that this trainer would silently compute differently from Keras."""
    problems = [
        Problem(
            f"the model has its own {name}",
            received=f"{type(model).__name__}.{name}",
            expected=f"the {name} of keras.Model, or your own compute_loss",
            fix="move it into compute_loss, or train with your own program (train_options.command)",
        )
        for name in ("train_step", "test_step")
        if getattr(type(model), name) is not getattr(keras.Model, name)
    ]
    if stateful := [it.name for it in model._flatten_layers() if getattr(it, "stateful", False)]:
        problems.append(
            Problem(
                "the model carries state from one batch to the next",
                received=f"stateful=True in {listed(stateful, 5)}",
                expected="rows that do not depend on other rows: they are shuffled, and batches,"
                " evaluations and requests have different sizes",
                fix="remove stateful=True, and batch_size from keras.Input",
            )
        )
    return [
        *problems,
        *batch_norm.problems(model, replicas, options),
        *(_of_optimizer(model) if replicas > 1 else []),
    ]


def _of_optimizer(model: keras.Model) -> list[Problem]:
    """Return the options that Keras cannot apply in a step of several replicas."""
    inner = list(innermost(model.optimizer))
    accumulates = [item.gradient_accumulation_steps or 0 for item in inner]
    overwrites = [item.ema_overwrite_frequency or 0 for item in inner if item.use_ema]
    found = {
        "accumulate gradients": (
            f"gradient_accumulation_steps={max(accumulates, default=0)}",
            "use the train option micro_batches, which divides a batch into that many parts",
        ),
        "overwrite weights with their averages": (
            f"ema_overwrite_frequency={max(overwrites, default=0)}",
            "remove it, because with use_ema=True the finished model's weights are the averages",
        ),
    }
    return [
        Problem(f"Keras cannot {what} with more than one replica", received, "None", fix)
        for what, (received, fix) in found.items()
        if not received.endswith("=0")
    ]


def _output(model: keras.Model, dataset: Dataset) -> Any:
    """Build the model and return its output as a KerasTensor, or several of them.

    Raises:
        ConfigurationError: The model does not take the rows of the dataset.
    """
    rows = keras.KerasTensor((None, *dataset.input_shape), "float32")
    try:
        output = output_spec(model, dataset) if model.built else model(rows)
        _keep_statistics(model)
    except Exception as error:
        shape = dataset.input_shape
        of_table = (
            ": the columns in the order of dataset.feature_names",
            f"start with keras.Input(({dataset.num_features},)); a Reshape layer turns the rows"
            " into images",
        )
        of_pictures = (
            ", values from 0 to 255",
            "start with keras.Input(dataset.input_shape); data_options.pictures sets the size",
        )
        meaning, fix = of_pictures if dataset.picture else of_table
        raise ConfigurationError(
            Problem(
                "the model does not take the rows of the dataset",
                received=last_line(error),
                expected=f"one input of shape (batch, {', '.join(map(str, shape))}), float32"
                f"{meaning}",
                fix=fix,
            )
        ) from error
    return output


def _keep_statistics(model: keras.Model) -> None:
    """Rebuild layers that Keras left with tensors of a deleted graph.

    This happens to the mean of a Normalization in a user's subclass of keras.Model.
    """
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.Normalization) and tf.is_symbolic_tensor(layer.mean):
            layer.build(layer._build_shapes_dict["input_shape"])


def _build_problem(model: keras.Model, dataset: Dataset, error: Exception) -> Problem:
    """Return the problem of a model that Keras cannot build with its loss and metrics."""
    try:
        compute_output_spec(model, _example(dataset)[0], training=False)
    except Exception as of_model:
        return failed_step(model, of_model)
    return label_test.mismatch(dataset, last_line(error))


def _shape_problem(output: Any, dataset: Dataset) -> Problem | None:
    if keras.tree.is_nested(output):
        outputs = keras.tree.flatten(output)
        return Problem(
            "the model does not return one tensor",
            received=f"a {type(output).__name__} of "
            + listed([str(getattr(item, "shape", item)) for item in outputs], 5),
            expected=f"one tensor, for the label {dataset.label_name}",
            fix="return the tensor itself instead of a list or dict"
            if len(outputs) == 1
            else "return one of them, and train another model for another label",
        )
    shape, classes = getattr(output, "shape", output), dataset.num_classes
    if dataset.task == CLASSIFICATION:
        widths = {classes, 1} if classes == 2 else {classes}
        expected = f"(batch, {classes}), one column for each class"
        expected += ", or (batch, 1) with a sigmoid" if classes == 2 else ""
        fix = "end the model with Dense(dataset.num_classes)"
    else:
        widths, expected = {1}, "(batch, 1), the predicted number"
        fix = "end the model with Dense(1)"
    fits = isinstance(shape, tuple) and len(shape) == 2 and shape[1] in widths
    return None if fits else Problem("the output does not match the labels", shape, expected, fix)


def _example(dataset: Dataset) -> tuple[Any, Any, Any]:
    """Return symbolic tensors with the shapes and types of a batch."""
    label = "int64" if dataset.task == CLASSIFICATION else "float32"
    return (
        keras.KerasTensor((None, *dataset.input_shape), "float32"),
        keras.KerasTensor((None,), label),
        keras.KerasTensor((None,), "float32"),
    )


def _no_function(module: ModuleType, function: str) -> Problem:
    names = [name for name, item in vars(module).items() if inspect.isfunction(item)]
    meant = nearest(function, names)
    where = getattr(module, "__file__", None) or module.__name__
    return Problem(
        f"the model code has no function {function!r}",
        received=f"{where} with {', '.join(sorted(names)) or 'no function'}",
        expected=f"def {function}(dataset, ...) that returns a compiled keras.Model",
        fix=did_you_mean(meant, "correct model_code"),
        suggestion=meant,
    )


def _name(function: BuildModel) -> str:
    """Return the name of a function for messages; not every callable has one."""
    return getattr(function, "__name__", "the function of MODEL_CODE")
