"""The command line: compile the pipeline, run it on this machine, show the job it would create."""

from __future__ import annotations

import inspect
import json
import logging
import re
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_hex
from typing import Any

import click

from components.images import VERSION
from storage.errors import ConfigurationError, Problem, StepError

_HOME = Path(".kfp-tfjob")


class _Command(click.Group):
    """Ends with the exit code of the error, and its message on standard error."""

    def invoke(self, context: click.Context) -> Any:
        """Run a command."""
        try:
            return super().invoke(context)
        except StepError as error:
            click.echo(f"kfp-tfjob: {error}", err=True)
            sys.exit(error.code)


@click.group(cls=_Command, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, prog_name="kfp-tfjob")
def main() -> None:
    """Train Keras models on many pods with Kubeflow Pipelines and TFJob, and prove the result."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")


def _parameters(command):
    """Add the options that set run parameters."""
    options = [
        click.option("--data", metavar="URI", help="data_uri: a file or folder, or s3://..."),
        click.option("--label", metavar="COLUMN", help="data_label: the column to predict"),
        click.option("--output", metavar="URI", help="output_uri [default: s3://kfp-tfjob]"),
        click.option("--name", metavar="NAME", help="model_name [default: from --data]"),
        click.option("--workers", type=int, metavar="N", help="train_workers, beside the chief"),
        click.option("--model", metavar="CODE", help="model_code: model.py:build_model, ..."),
        click.option(
            "--set",
            "settings",
            multiple=True,
            metavar="PARAMETER[.KEY]=VALUE",
            help="any run parameter, or one key of it; JSON where it is not plain text",
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


@main.command()
@_parameters
@click.option("--endpoint", metavar="URL", help="use this S3 store, not the embedded one")
@click.option(
    "--home",
    type=click.Path(path_type=Path, file_okay=False),
    default=_HOME,
    show_default=True,
    help="where the embedded store, logs and reports are kept",
)
@click.option("--run-id", metavar="ID", help="continue the run of that id [default: a new one]")
def run(endpoint: str | None, home: Path, run_id: str | None, **given: Any) -> None:
    """Run the whole pipeline on this machine.

    Chief and workers are processes; what they leave goes to a real S3 server that is started and
    ended with the run, or to the store named by --endpoint with your AWS environment.
    """
    from components.preflight.parameters import check
    from pipelines.local.run import Home
    from pipelines.local.run import run as run_here

    values = _values(given)
    if endpoint:
        values["storage_endpoint"] = endpoint
    check(values)
    embedded = not values["storage_endpoint"] and not endpoint
    name = _run_id(run_id or f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{token_hex(2)}")
    sys.exit(run_here(values, Home(home.absolute()), name, embedded, click.echo))


@main.command("compile")
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help="folder for the YAML [default: pipelines/compiled of the checkout]",
)
@click.option("--tools-image", default="", metavar="IMAGE", help="image of the steps")
@click.option("--trainer-image", default="", metavar="IMAGE", help="image of evaluate and replicas")
def compile_(output: Path | None, tools_image: str, trainer_image: str) -> None:
    """Compile the pipeline and each step to YAML for Kubeflow Pipelines."""
    from pipelines.compilation import FOLDER, compile_all

    for path in compile_all(output or FOLDER, tools_image, trainer_image):
        click.echo(path)


@main.command()
@_parameters
@click.option("--run-id", default="RUN-ID", help="as KFP would give it", show_default=True)
def render(run_id: str, **given: Any) -> None:
    """Print the TFJob that a set of parameters would create."""
    from components.launch_tfjob.render import render as render_job
    from components.preflight.parameters import check

    values = _values(given)
    check(values)
    click.echo(render_job(values, run_id), nl=False)


def _values(given: dict[str, Any]) -> dict[str, Any]:
    """Return every run parameter: the pipeline's defaults, the short options, then --set."""
    from components.preflight.parameters import MEANING

    values = _defaults()
    short = {
        "data_uri": given["data"],
        "data_label": given["label"],
        "output_uri": given["output"] or "s3://kfp-tfjob",
        "model_name": given["name"] or _name_of(given["data"]),
        "train_workers": given["workers"],
        "model_code": given["model"],
    }
    values |= {name: value for name, value in short.items() if value is not None}
    _apply(values, given["settings"], MEANING)
    return values


def _defaults() -> dict[str, Any]:
    """Return the defaults of the pipeline; a parameter without one is empty."""
    from pipelines.tfjob_training import tfjob_training

    signature = inspect.signature(tfjob_training.pipeline_func)
    return {
        name: "" if parameter.default is parameter.empty else parameter.default
        for name, parameter in signature.parameters.items()
    }


def _apply(values: dict[str, Any], settings: Iterable[str], known: Iterable[str]) -> None:
    """Apply `parameter[.key]=value` settings, in the order given.

    Raises:
        ConfigurationError: Every setting that is not of that form.
    """
    from components.parameters import unknown_key

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
            problems.append(unknown_key("the pipeline", name, known))
        elif keys and not isinstance(values[name], dict):
            problems.append(
                Problem(
                    f"{name} has no keys",
                    received=setting,
                    expected=f"{name}=VALUE",
                    fix=f"write --set {name}={text}",
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


def _typed(text: str, default: Any, is_key: bool) -> Any:
    """Return a setting as text where the parameter is text, and as JSON where it parses."""
    if isinstance(default, str) and not is_key:
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


def _name_of(data: str | None) -> str:
    """Return a model name made from the name of the data."""
    stem = Path(data or "").name.split(".")[0]
    return re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-._")


def _run_id(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9-]{0,62}", text):
        raise ConfigurationError(
            Problem(
                "--run-id is not usable as a name",
                received=repr(text),
                expected="letters, digits and hyphens",
                fix="choose another one",
            )
        )
    return text


if __name__ == "__main__":
    main()
