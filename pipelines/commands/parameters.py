"""The options that set run parameters, and the values that they give.

Every command that takes run parameters has the same options. A value comes from, the last that
sets a parameter wins:

1. the default of the pipeline
2. `--params FILE`, YAML or JSON
3. the environment: `KFP_TFJOB_<PARAMETER>`, for example KFP_TFJOB_TRAIN_EPOCHS
4. the short options, for example `--epochs`
5. `--set`, in the order given
"""

from __future__ import annotations

import getpass
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import click

from kfp_tfjob.common.errors import ConfigurationError, Problem
from kfp_tfjob.options.address_fields import fill_user
from kfp_tfjob.options.parameters import PARAMETERS, Parameter, RunParameters, completed

from ..local.home import BUCKET

VARIABLE = "KFP_TFJOB_"
_STDIN = "standard input"
# Python's spelling of JSON's words: as a string, "False" would be true in a user's function.
_OF_PYTHON = {"True": "true", "False": "false", "None": "null"}
# Numbers as YAML writes them: JSON accepts neither .5 nor 1. nor +1.
_INT = r"[-+]?(0|[1-9]\d*)"
_FLOAT = r"[-+]?(0|[1-9]\d*|(?=\.\d))(\.\d*)?(e[-+]?\d+)?"
# The defaults of a run on this machine that differ from the form's defaults.
HERE = {
    "output_uri": f"s3://{BUCKET}",
    "model_name": "from --data",
    "storage_endpoint": "the embedded store",
}


@dataclass(frozen=True)
class CommandParameters:
    """The run parameters of a command.

    Attributes:
        values: The value of every run parameter.
        sources: The file, variable or option that set a parameter, by its name; parameters with
            their default are omitted.
    """

    values: RunParameters
    sources: Mapping[str, str]


def with_parameters(here: bool = True, demands: bool = True) -> Callable[..., Any]:
    """Return a decorator that adds the options for run parameters to a command.

    Args:
        here: Whether the command runs on this machine, where more parameters have a default.
        demands: Whether the help marks parameters without a default as required.
    """
    options = [
        *(
            click.option(
                declared.option[0],
                name,
                type=declared.type,
                metavar=declared.option[1],
                help=f"{name}: {declared.words}{_default_help(name, declared, here, demands)}",
            )
            for name, declared in PARAMETERS.items()
            if declared.option
        ),
        click.option(
            "--params",
            "file",
            type=click.Path(path_type=Path, dir_okay=False, exists=True, allow_dash=True),
            metavar="FILE",
            help="run parameters in YAML or JSON, or - for standard input; environment variables"
            " KFP_TFJOB_<PARAMETER> override them, the options above override those, and --set"
            " overrides everything",
        ),
        click.option(
            "--set",
            "settings",
            multiple=True,
            metavar="PARAMETER[.KEY]=VALUE",
            help="any run parameter, or one key of a dict; values other than strings are JSON",
        ),
    ]

    def decorated(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return decorated


def _default_help(name: str, parameter: Parameter, here: bool, demands: bool) -> str:
    """Return the end of an option's help: its default, or that it is required."""
    default = (HERE.get(name) if here else None) or parameter.default
    if default is None:
        return "; required" if demands else ""
    return f" [default: {default}]" if default != "" else ""


def parameters_of(
    arguments: dict[str, Any],
    defaults: Mapping[str, Any] | None = None,
    here: bool = True,
    environment: Mapping[str, str] = os.environ,
) -> CommandParameters:
    """Return the value and source of every run parameter.

    Args:
        arguments: The command's arguments, by the names in `with_parameters`.
        defaults: Values that replace the form's defaults, for example a compiled pipeline's.
        here: Whether the run is on this machine, where more parameters have a default.
        environment: The environment variables.

    Raises:
        ConfigurationError: One problem for each setting in the file, the environment or `--set`
            that is not a run parameter.
    """
    from kfp_tfjob.components.preflight.parameters import defaults as form_defaults
    from kfp_tfjob.user_code.model_code import as_path

    values: Any = {**form_defaults(), **(defaults or {})}
    sources: dict[str, str] = {}
    if file := arguments.get("file"):
        source = _STDIN if file == Path("-") else str(file)
        in_file = _read(file, source)
        values |= in_file
        sources |= dict.fromkeys(in_file, source)
    # A user's program may read other variables of this prefix, so unknown ones are no error.
    variables = {name: f"{VARIABLE}{name.upper()}" for name in PARAMETERS}
    exported = {name: environment[key] for name, key in variables.items() if key in environment}
    _apply(values, [(f"{name}={text}", variables[name]) for name, text in exported.items()])
    sources |= {name: variables[name] for name in exported}
    short = {name: arguments[name] for name in PARAMETERS if arguments.get(name) is not None}
    values |= short
    sources |= {name: (PARAMETERS[name].option or [name])[0] for name in short}
    _apply(values, [(setting, "--set") for setting in arguments["settings"]])
    sources |= {re.split("[.=]", setting)[0]: "--set" for setting in arguments["settings"]}
    if here:
        values["output_uri"] = values["output_uri"] or HERE["output_uri"]
        values["model_name"] = values["model_name"] or _model_name(values["data_uri"]) or "model"
    values = completed(values)
    values["model_code"] = as_path(str(values["model_code"]))
    options = values["data_options"]
    if isinstance(options, dict) and isinstance(options.get("reader"), str):
        values["data_options"] = {**options, "reader": as_path(options["reader"])}
    gate = values["gate"]
    if isinstance(gate, dict) and isinstance(gate.get("evaluator"), str):
        values["gate"] = {**gate, "evaluator": as_path(gate["evaluator"])}
    values["output_uri"] = fill_user(str(values["output_uri"]), _user)
    return CommandParameters(values, sources)


def _read(file: Path, source: str) -> dict[str, Any]:
    """Return the run parameters in a file or in standard input.

    Args:
        file: The file.
        source: Its name in messages; `_STDIN` for standard input.

    Raises:
        ConfigurationError: It is not a YAML mapping of run parameters, each written once.
    """
    import yaml

    from kfp_tfjob.options.parse import unknown_key

    try:
        data = sys.stdin.buffer.read() if source == _STDIN else file.read_bytes()
        text = data.decode("utf-8-sig")
        parameters, repeated_keys = _read_json(text) or _read_yaml(text)
        # A YAML alias may contain itself, and half of an emoji is no character.
        json.dumps(parameters, default=str, ensure_ascii=False).encode()
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        raise ConfigurationError(
            Problem(
                f"{source} is not YAML or JSON",
                received=" ".join(str(error).split()),
                expected="run parameters, for example `train_epochs: 5`",
                fix="correct this line, or name another file with --params",
            )
        ) from None
    if not isinstance(parameters, dict):
        raise ConfigurationError(
            Problem(
                f"{source} has no run parameters",
                received=type(parameters).__name__,
                expected="a mapping, for example `train_epochs: 5`",
                fix="write one parameter on each line, or name another file with --params",
            )
        )
    ConfigurationError.raise_if(
        unknown_key("", str(name), PARAMETERS) for name in parameters if name not in PARAMETERS
    )
    ConfigurationError.raise_if(
        Problem(
            f"{source} contains a key twice",
            received=key,
            expected="each key once; only the last value would be used",
            fix="remove one of them",
        )
        for key in repeated_keys
    )
    # A parameter without a value, as in `pod:`, has its default.
    parameters = {name: value for name, value in parameters.items() if value is not None}
    ConfigurationError.raise_if(
        Problem(
            f"{name} is not a string",
            received=json.dumps(value, default=str),
            expected="a string",
            fix=f"write {name} as a string",
            path=name,
        )
        for name, value in parameters.items()
        if _is_string(name) and not isinstance(value, str)
    )
    return parameters


def _read_json(text: str) -> tuple[dict[str, Any], list[str]] | None:
    """Return the object in a JSON text, and its repeated keys; None for another text.

    It is not read as YAML, which refuses tabs and the two halves of an emoji.
    """
    repeated_keys: list[str] = []

    def without_repeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        repeated_keys.extend(name for at, name in enumerate(names) if name in names[:at])
        return dict(pairs)

    def refuse(constant: str) -> float:
        raise ValueError(f"{constant} is not JSON")

    try:
        parameters = json.loads(text, object_pairs_hook=without_repeated, parse_constant=refuse)
        texts = json.loads(text, parse_int=str, parse_float=str)  # 1.10 would become 1.1
    except (ValueError, RecursionError):
        return None  # it may be YAML
    if not isinstance(parameters, dict):
        return None
    for name, value in parameters.items():
        if _is_string(name) and isinstance(value, bool | int | float):
            parameters[name] = json.dumps(value) if isinstance(value, bool) else texts[name]
    return parameters, repeated_keys


def _read_yaml(text: str) -> tuple[Any, list[str]]:
    """Return the content of a YAML text, and its repeated keys with their lines."""
    import yaml

    tree = yaml.compose(text, yaml.SafeLoader)
    parameters = yaml.load(text, loader())
    if not isinstance(tree, yaml.MappingNode) or not isinstance(parameters, dict):
        return parameters, []
    for key, node in tree.value:
        is_text = isinstance(node, yaml.ScalarNode) and node.tag != "tag:yaml.org,2002:null"
        if is_text and key.value in parameters and _is_string(key.value):
            # YAML would read the label `no` as false, and 1.10 as 1.1.
            parameters[key.value] = node.value
    lines = [f"{key.value} in line {key.start_mark.line + 1}" for key in _repeated_keys(tree)]
    return parameters, lines


def _is_string(name: str) -> bool:
    """Return whether a run parameter with this name is a string."""
    return name in PARAMETERS and PARAMETERS[name].type is str


@cache
def loader() -> Any:
    """Return a YAML loader that reads 010, 1:30 and dates as strings, and 1e-3 as a number.

    Keys are strings as they are written, as in JSON, because the class 1.10 must not become 1.1.
    """
    import yaml

    class Loader(yaml.SafeLoader):
        yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            for key, _ in node.value:
                if isinstance(key, yaml.ScalarNode) and key.value != "<<":
                    key.tag = "tag:yaml.org,2002:str"
            return super().construct_mapping(node, deep)

    for name, pattern, first in (
        ("null", r"~|null|", ["~", "n", "N", ""]),
        ("bool", r"true|false|yes|no|on|off", [*"tTfFyYnNoO"]),
        ("merge", r"<<", ["<"]),
        ("int", _INT, [*"-+0123456789"]),
        ("float", _FLOAT, [*"-+.0123456789"]),
    ):
        tag = f"tag:yaml.org,2002:{name}"
        Loader.add_implicit_resolver(tag, re.compile(rf"(?:{pattern})\Z", re.ASCII | re.I), first)
    return Loader


def _repeated_keys(node: Any) -> Iterator[Any]:
    """Yield the keys of a YAML document that occur earlier in the same mapping."""
    if not isinstance(node.value, list):
        return
    earlier = set()
    for entry in node.value:
        key, child = entry if isinstance(entry, tuple) else (None, entry)
        if key is not None and (key.tag, str(key.value)) in earlier:
            yield key
        earlier.add(key and (key.tag, str(key.value)))
        yield from _repeated_keys(child)


def _user() -> str:
    """Return the user's name, for the field `{user}`."""
    try:
        return getpass.getuser()
    except (OSError, KeyError) as error:
        raise ConfigurationError(
            Problem(
                "output_uri contains {user}, but your user name is unknown",
                received=str(error),
                fix="set the environment variable USER, or write the name into output_uri",
                path="output_uri",
            )
        ) from error


def _apply(values: RunParameters, settings: Iterable[tuple[str, str]]) -> None:
    """Change `values` by settings.

    Args:
        values: The run parameters.
        settings: `PARAMETER[.KEY]=VALUE` and its source; later settings override earlier ones.

    Raises:
        ConfigurationError: One problem for each invalid setting.
    """
    from kfp_tfjob.options.parse import unknown_key

    problems: list[Problem | str] = []
    for setting, source in settings:
        name, keys, text = _split_setting(setting)
        if text is None:
            problems.append(
                Problem(
                    "--set has no value",
                    received=setting,
                    expected="PARAMETER=VALUE or PARAMETER.KEY=VALUE",
                    fix=f"write --set {setting}=VALUE",
                )
            )
        elif name not in PARAMETERS:
            problems.append(unknown_key("", name, PARAMETERS))
        elif keys and PARAMETERS[name].type is dict and not isinstance(values[name], dict):
            continue  # `RunPlan.parse` reports the value of another source
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
            location = f", in {source}" if source.startswith(VARIABLE) else ""
            problems.append(
                Problem(
                    f"{name} is not JSON{location}",
                    received=text,
                    expected='an object with each key once, for example {"key": "value"}',
                    fix=f"correct it, or set one key with --set {name}.KEY=VALUE",
                )
            )
        else:
            values[name] = _replace(values[name], keys, _parse_value(name, keys, text))
    ConfigurationError.raise_if(problems)


def _split_setting(setting: str) -> tuple[str, list[str], str | None]:
    """Return the parameter, the keys and the value of a setting; None for a missing value.

    A user's name may contain `=`, as the class `<=50K` does. So the value begins after the first
    `=` that leaves a valid one.
    """
    from kfp_tfjob.options.key_path import split_keys

    divisions = []
    for equals in re.finditer("=", setting):
        name, *parts = setting[: equals.start()].split(".")
        group = PARAMETERS[name].group if name in PARAMETERS else None
        keys, remaining = split_keys(group, parts) if group else ([], parts)
        divisions.append((name, [*keys, *remaining], setting[equals.end() :]))
    if len(divisions) < 2:
        return divisions[0] if divisions else (setting, [], None)
    return next((division for division in divisions if _is_valid(*division)), divisions[0])


def _is_valid(name: str, keys: list[str], text: str) -> bool:
    """Return whether a dict parameter with a typed form may have this value under these keys."""
    from kfp_tfjob.options.parse import parse

    group = PARAMETERS[name].group if name in PARAMETERS and keys else None
    if not group:
        return False
    try:
        parse(group, name, _replace({}, keys, _parse_value(name, keys, text)))
    except ConfigurationError:
        return False
    return True


def _parse_value(name: str, keys: list[str], text: str) -> Any:
    """Return the typed value of a setting's text, for a parameter or for one of its keys."""
    if PARAMETERS[name].type is str and not keys:
        return text
    value = _parse_scalar(text)
    # A variable, label or node selector: 1.10 is no number there.
    is_text = name == "pod" and len(keys) > 2 and isinstance(value, int | float | None)
    return text if is_text else value


def _replace(value: Any, keys: list[str], new: Any) -> Any:
    """Return `value` with the entry at the path `keys` replaced by `new`."""
    if not keys:
        return new
    inner = value if isinstance(value, dict) else {}
    return inner | {keys[0]: _replace(inner.get(keys[0]), keys[1:], new)}


def _parse_json(text: str) -> Any:
    """Return a JSON document; a repeated key is a ValueError, but json would use the last one."""

    def reject_repeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(entries := dict(pairs)) < len(pairs):
            raise ValueError("a key occurs twice")
        return entries

    return json.loads(text, object_pairs_hook=reject_repeated)


def _is_json(text: str) -> bool:
    try:
        _parse_json(text)
    except (ValueError, RecursionError):
        return False
    return True


def _parse_scalar(text: str) -> Any:
    """Return the value of JSON, or of a number, boolean or None of Python or YAML.

    Any other text is returned as it is.
    """
    text = _OF_PYTHON.get(text, text)
    if _is_json(text):
        return _parse_json(text)
    for kind, pattern in ((int, _INT), (float, _FLOAT)):
        if re.fullmatch(pattern, text, re.ASCII | re.I):
            return kind(text)
    return text


def _model_name(data: str) -> str:
    """Return a model name made from the file name in data_uri; empty if no character is valid."""
    stem = Path(data).name.split(".")[0]
    return re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-._")
