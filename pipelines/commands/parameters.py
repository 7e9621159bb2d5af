"""The options that set run parameters, and the values that they give.

Every command that takes run parameters has the same options.
"""

from __future__ import annotations

import getpass
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from kfp_tfjob.options.fields import fill_user
from kfp_tfjob.options.pipeline import PARAMETERS, Parameter
from kfp_tfjob.storage.errors import ConfigurationError, Problem

# The defaults of a run on this machine, where they differ from those of the form.
_HERE = {
    "output_uri": "s3://kfp-tfjob",
    "model_name": "from --data",
    "storage_endpoint": "the embedded store",
}


def with_parameters(command):
    """Add the options that set run parameters."""
    options = [
        *(
            click.option(
                it.option[0],
                name,
                type=it.type,
                metavar=it.option[1],
                help=f"{name}: {it.words}{_shown_default(name, it)}",
            )
            for name, it in PARAMETERS.items()
            if it.option
        ),
        click.option(
            "--set",
            "settings",
            multiple=True,
            metavar="PARAMETER[.KEY]=VALUE",
            help="any run parameter, or one key of a dict; values other than text are JSON",
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def _shown_default(name: str, parameter: Parameter) -> str:
    default = _HERE.get(name) or parameter.default
    return "; required" if default is None else f" [default: {default}]"


def values_of(given: dict[str, Any], earlier: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return every run parameter: the pipeline's defaults, the short options, then --set.

    A continued run uses its earlier parameters instead of the defaults.
    """
    from kfp_tfjob.components.preflight.parameters import defaults
    from kfp_tfjob.trainer.model_code import as_path

    values = defaults() | (earlier or {})
    values |= {name: given[name] for name in PARAMETERS if given.get(name) is not None}
    values["output_uri"] = values["output_uri"] or _HERE["output_uri"]
    values["model_name"] = values["model_name"] or _name_of(values["data_uri"]) or "model"
    _apply(values, given["settings"], PARAMETERS)
    values["model_code"] = as_path(str(values["model_code"]))
    values["output_uri"] = fill_user(str(values["output_uri"]), _user)
    if not any(setting.startswith("train_batch_size=") for setting in given["settings"]):
        values["train_batch_size"] = _fitting(values)
    return values


def _user() -> str:
    """Return the name of the user, for the field `{user}`.

    Raises:
        ConfigurationError: This machine does not know it.
    """
    try:
        return getpass.getuser()
    except (OSError, KeyError) as error:
        raise ConfigurationError(
            Problem(
                "output_uri has {user}, but this machine does not know the name of its user",
                received=str(error),
                fix="set the environment variable USER, or write the name into output_uri",
                path="output_uri",
            )
        ) from error


def _fitting(values: dict[str, Any]) -> Any:
    """Return the default batch size, reduced to a multiple of the number of replicas."""
    batch, workers, gpus = (values[f"train_{name}"] for name in ("batch_size", "workers", "gpus"))
    if not all(isinstance(number, int) and number >= 0 for number in (batch, workers, gpus)):
        return batch  # the check reports wrong numbers
    ranks = (1 + workers) * max(gpus, 1)
    return batch - batch % ranks or ranks


def _apply(values: dict[str, Any], settings: Iterable[str], known: Iterable[str]) -> None:
    """Apply `parameter[.key]=value` settings, in the order given.

    Raises:
        ConfigurationError: Settings that do not have this form.
    """
    from kfp_tfjob.options.parse import unknown_key

    problems: list[Problem | str] = []
    for setting in settings:
        path, equals, text = setting.partition("=")
        name, *keys = path.split(".")
        if not equals:
            problems.append(
                Problem(
                    "--set has no value",
                    received=setting,
                    expected="PARAMETER=VALUE or PARAMETER.KEY=VALUE",
                    fix=f"write --set {setting}=VALUE",
                )
            )
        elif name not in known:
            problems.append(unknown_key("", name, known))
        elif keys and not isinstance(values[name], dict):
            problems.append(
                Problem(
                    f"{name} has no keys",
                    received=setting,
                    expected=f"{name}=VALUE",
                    fix=f"write --set {name}={text}",
                )
            )
        elif isinstance(values[name], dict) and not keys and not _is_json(text):
            problems.append(
                Problem(
                    f"{name} is not JSON",
                    received=text,
                    expected='an object, for instance {"key": "value"}',
                    fix=f"correct it, or set one key with --set {name}.KEY=VALUE",
                )
            )
        else:
            values[name] = _with(values[name], keys, _typed(text, values[name], bool(keys)))
    ConfigurationError.raise_if(problems)


def _with(value: Any, keys: list[str], new: Any) -> Any:
    """Return `value` with the entry at the path `keys` replaced."""
    if not keys:
        return new
    inner = value if isinstance(value, dict) else {}
    return inner | {keys[0]: _with(inner.get(keys[0]), keys[1:], new)}


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _typed(text: str, default: Any, is_key: bool) -> Any:
    """Return a setting as text if the parameter is text, otherwise as JSON if it parses."""
    if isinstance(default, str) and not is_key:
        return text
    return json.loads(text) if _is_json(text) else text


def _name_of(data: str) -> str:
    """Return a model name made from the name of the data."""
    stem = Path(data).name.split(".")[0]
    return re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-._")
