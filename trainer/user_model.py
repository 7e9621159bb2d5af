"""Finds, builds and checks the user's model before training.

It rejects models that would fail silently, or only after an epoch: layers that this trainer
computes differently, codes that 16 bits would round, a model that cannot be saved. Called by
`__main__.py`.
"""

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

from kfp_tfjob.common.errors import ConfigurationError, Problem, StepError
from kfp_tfjob.common.formatting import did_you_mean, listed, nearest
from kfp_tfjob.options.train import TrainerOptions
from kfp_tfjob.user_code.arguments import wrong_strings

from . import batch_norm, label_test, randomness
from .dataset import CLASSIFICATION, Dataset
from .prediction import output_spec
from .train_step import failed_step, innermost
from .user_errors import FAILURES, last_line, where

log = logging.getLogger(__name__)

BuildModel = Callable[..., keras.Model]
_BITS = {"bfloat16": 8, "float16": 11}  # of a number in 16 bits


def find(model_code: str, folder: Path) -> BuildModel:
    """Import the user's module and return the function that builds the model.

    Args:
        model_code: As in MODEL_CODE.
        folder: Searched before everything else.

    Raises:
        ConfigurationError: The module cannot be imported, or does not define the function.
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
                name="model-code-import",
            )
        ) from error
    stem = name.partition(".")[0]
    is_copied = Path(folder, f"{stem}.py").exists() or Path(folder, stem).is_dir()
    if is_copied and not Path(module.__file__ or "").is_relative_to(folder):
        raise ConfigurationError(
            Problem(
                f"Python imported another module called {name} instead of the model code",
                received=module.__file__ or "a built-in module of Python",
                expected=f"a name for {stem} that no installed library or module of Python has",
                fix=f"rename {stem}, for example to my_{stem}",
                name="model-code-name",
            )
        )
    _use_tensorflow_2()
    build_model = getattr(module, function, None)
    if not callable(build_model):
        raise ConfigurationError(_missing_function_problem(module, function))
    return build_model


def callbacks(model_code: str, dataset: Dataset) -> list[Any]:
    """Return the result of the function `callbacks` in the user's module, if it exists.

    Args:
        model_code: As in MODEL_CODE, found before.
        dataset: The function's only argument.

    Raises:
        ConfigurationError: It is not a function, fails, or does not return a list.
    """
    name = model_code.partition(":")[0]
    make_callbacks = getattr(sys.modules[name], "callbacks", None)
    if make_callbacks is None or inspect.ismodule(make_callbacks):
        return []
    received = f"callbacks = {make_callbacks!r:.100}"
    if callable(make_callbacks):
        try:
            returned = make_callbacks(dataset)
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
            fix=f"correct `callbacks` in {name}, or rename it if it is for something else",
            name="callback-not-supported",
        )
    )


def build(function: BuildModel, dataset: Dataset, hyperparameters: Mapping[str, Any]) -> Any:
    """Call the user's function and return its result, which `check` has yet to check.

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
                name="model-function-failed",
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


def _with_floats(function: BuildModel, hyperparameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the hyperparameters with floats for whole numbers where the function expects floats.

    Kubeflow Pipelines turns 1.0 into 1, and Keras does not accept 1 as a learning rate.
    """
    parameters = inspect.signature(function).parameters
    arguments = dict(hyperparameters)
    for name in hyperparameters.keys() & parameters.keys():
        parameter = parameters[name]
        types = re.findall(r"\w+", str(parameter.annotation))
        is_float = isinstance(parameter.default, float) or ("float" in types and "int" not in types)
        if is_float and type(hyperparameters[name]) is int:
            arguments[name] = float(hyperparameters[name])
    return arguments


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
                name="keras-2-model",
            )
        )
    if not isinstance(model, keras.Model) or not model.compiled or model.optimizer is None:
        uncompiled = "a keras.Model that is not compiled" if isinstance(model, keras.Model) else ""
        raise ConfigurationError(
            Problem(
                f"{name} did not return a compiled model",
                received=uncompiled
                or f"{type(model).__module__}.{type(model).__name__}: {model!r:.100}",
                expected="a keras.Model after model.compile(optimizer, loss, metrics)",
                fix=f"end {name} with model.compile(...) and return model",
                name="model-not-compiled",
            )
        )
    if foreign_paths := _variables_outside_scope(model):
        raise ConfigurationError(
            Problem(
                f"{name} returned a model with parts that already existed before the call",
                received=f"{len(foreign_paths)} variables, for example {foreign_paths[0]}",
                expected=f"layers, optimizer and metrics that are created in {name}: with several"
                " replicas, the strategy must create their variables",
                fix=f"move the code that creates them into {name}",
                name="variables-outside-function",
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


def _variables_outside_scope(model: keras.Model) -> list[str]:
    """Return the paths of a model's variables that were not created in the strategy's scope."""
    if not tf.distribute.has_strategy():
        return []
    compiled = keras.tree.flatten(model._compile_metrics and model._compile_metrics._user_metrics)
    metrics = (metric for metric in compiled if isinstance(metric, keras.Metric))
    variables = (
        *model.variables,
        *model.optimizer.variables,
        *(variable for metric in metrics for variable in metric.variables),
    )
    in_scope = tf.distribute.get_strategy().extended.variable_created_in_scope
    return [variable.path for variable in variables if not in_scope(variable.value)]


def _check_rounding(model: keras.Model, dataset: Dataset) -> None:
    """Reject a model that gets rounded codes; warn about a model that gets rounded numbers.

    Keras casts the inputs of a layer, and of a model that is not Functional, to its compute type,
    which under mixed precision has 16 bits.
    """
    readers = [model]
    if not model._convert_input_args:  # it is Functional
        nodes = model.inputs[0]._keras_history.operation._outbound_nodes
        readers = [node.operation for node in nodes if node.operation in model.operations]
    types = {
        reader.compute_dtype if getattr(reader, "autocast", False) else "" for reader in readers
    }
    bits = _BITS.get(types.pop()) if len(types) == 1 else None
    if not bits or dataset.picture:
        return
    numbers = dataset.num_features - sum(column.width for column in dataset.columns if column.size)
    columns = zip(dataset.feature_names[:numbers], dataset.mean, dataset.std, strict=False)
    rounded = [name for name, mean, std in columns if abs(mean) > std * 2**bits / 4]
    rounded_codes = [column.name for column in dataset.columns if column.size - 1 > 2**bits]
    problem = Problem(
        "mixed precision rounds columns before the model sees them",
        received=f"{listed(rounded_codes or rounded, 10)} in {bits} bits",
        expected="float32",
        fix="begin a Functional model with keras.Input and dataset.encode(inputs), or set"
        " self.autocast = False in your own class",
        name="mixed-precision",
    )
    if rounded_codes:
        raise ConfigurationError(problem)
    if rounded:
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
                fix=_saving_fix(str(error)),
                name="model-not-serializable",
            )
        ) from error


def _saving_fix(message: str) -> str:
    """Return the remedy for an error of model.save, as a Problem's `fix`."""
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
    """Return the problems of parts that this trainer would silently compute differently."""
    problems = [
        Problem(
            f"the model has its own {name}",
            received=f"{type(model).__name__}.{name}",
            expected=f"the {name} of keras.Model, or your own compute_loss",
            fix="move it into compute_loss, or train with your own program (train_options.command)",
            name="own-train-step",
        )
        for name in ("train_step", "test_step")
        if getattr(type(model), name) is not getattr(keras.Model, name)
    ]
    if stateful := [
        layer.name for layer in model._flatten_layers() if getattr(layer, "stateful", False)
    ]:
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
        *(_optimizer_problems(model) if replicas > 1 else []),
    ]


def _optimizer_problems(model: keras.Model) -> list[Problem]:
    """Return the problems of optimizer options that Keras cannot apply with several replicas."""
    inner = list(innermost(model.optimizer))
    accumulates = [optimizer.gradient_accumulation_steps or 0 for optimizer in inner]
    overwrites = [
        optimizer.ema_overwrite_frequency or 0 for optimizer in inner if optimizer.use_ema
    ]
    unsupported_options = {
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
        Problem(
            f"Keras cannot {action} with more than one replica",
            received,
            f"{received.partition('=')[0]}=None",
            fix,
        )
        for action, (received, fix) in unsupported_options.items()
        if not received.endswith("=0")
    ]


def _output(model: keras.Model, dataset: Dataset) -> Any:
    """Build the model and return its output: a KerasTensor, or a structure of several.

    Raises:
        ConfigurationError: The model does not take the rows of the dataset.
    """
    rows = keras.KerasTensor((None, *dataset.input_shape), "float32")
    try:
        output = output_spec(model, dataset) if model.built else model(rows)
        _keep_statistics(model)
    except Exception as error:
        shape = dataset.input_shape
        table_words = (
            ": the columns in the order of dataset.feature_names",
            f"start with keras.Input(({dataset.num_features},)); a Reshape layer turns the rows"
            " into images",
        )
        image_words = (
            ", values from 0 to 255",
            "start with keras.Input(dataset.input_shape); data_options.images sets the size",
        )
        meaning, fix = image_words if dataset.picture else table_words
        raise ConfigurationError(
            Problem(
                "the model does not take the rows of the dataset",
                received=last_line(error),
                expected=f"one input of shape (batch, {', '.join(map(str, shape))}), float32"
                f"{meaning}",
                fix=fix,
                name="input-mismatch",
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
    except Exception as model_error:
        return failed_step(model, model_error)
    return label_test.mismatch(dataset, last_line(error))


def _shape_problem(output: Any, dataset: Dataset) -> Problem | None:
    if keras.tree.is_nested(output):
        outputs = keras.tree.flatten(output)
        return Problem(
            "the model does not return one tensor",
            received=f"a {type(output).__name__} of "
            + listed([str(getattr(tensor, "shape", tensor)) for tensor in outputs], 5),
            expected=f"one tensor, for the label {dataset.label_name}",
            fix="return the tensor itself instead of a list or dict"
            if len(outputs) == 1
            else "return one of them, and train another model for another label",
            name="output-mismatch",
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
    is_valid = isinstance(shape, tuple) and len(shape) == 2 and shape[1] in widths
    if is_valid:
        return None
    summary = "the output does not match the labels"
    return Problem(summary, shape, expected, fix, name="output-mismatch")


def _example(dataset: Dataset) -> tuple[Any, Any, Any]:
    """Return symbolic tensors with the shapes and types of a batch."""
    label = "int64" if dataset.task == CLASSIFICATION else "float32"
    return (
        keras.KerasTensor((None, *dataset.input_shape), "float32"),
        keras.KerasTensor((None,), label),
        keras.KerasTensor((None,), "float32"),
    )


def _missing_function_problem(module: ModuleType, function: str) -> Problem:
    names = [name for name, member in vars(module).items() if inspect.isfunction(member)]
    meant = nearest(function, names)
    source = getattr(module, "__file__", None) or module.__name__
    return Problem(
        f"the model code has no function {function!r}",
        received=f"{source} with {', '.join(sorted(names)) or 'no function'}",
        expected=f"def {function}(dataset, ...) that returns a compiled keras.Model",
        fix=did_you_mean(meant, "correct model_code"),
        suggestion=meant,
        name="function-not-found",
    )


def _name(function: BuildModel) -> str:
    """Return the name of a function for messages; not every callable has one."""
    return getattr(function, "__name__", "the function of MODEL_CODE")
