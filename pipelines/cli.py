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
from textwrap import fill
from typing import Any, TextIO

import click

from kfp_tfjob.components.images import VERSION
from kfp_tfjob.jobs.secret_values import still_masked
from kfp_tfjob.pipelines.explanation import explain
from kfp_tfjob.pipelines.hints import with_hints
from kfp_tfjob.pipelines.local.home import DEFAULT, PARAMETERS, Home
from kfp_tfjob.storage.errors import ConfigurationError, Problem, StepError
from kfp_tfjob.storage.text import line, lines, log_to
from kfp_tfjob.storage.words import nearest


class _Command(click.Group):
    """Ends with the exit code of the error, and its message on standard error."""

    def invoke(self, context: click.Context) -> Any:
        """Run a command."""
        try:
            return super().invoke(context)
        except StepError as error:
            from kfp_tfjob.components.preflight.parameters import MEANING

            click.echo(f"kfp-tfjob: {with_hints(error, MEANING)}", err=True)
            sys.exit(error.code)


def _show(text: str) -> None:
    """Print what may hold text from anywhere."""
    click.echo(lines(text))


@click.group(cls=_Command, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, prog_name="kfp-tfjob")
def main() -> None:
    """Train Keras models on many pods with Kubeflow Pipelines and TFJob, and prove the result."""
    logging.basicConfig(level=logging.WARNING, handlers=[log_to(sys.stderr, "%(message)s")])


def _parameters(command):
    """Add the options that set run parameters."""
    options = [
        click.option("--data", metavar="URI", help="data_uri: a file or folder; needed"),
        click.option("--label", metavar="COLUMN", help="data_label: the column to predict; needed"),
        click.option("--output", metavar="URI", help="output_uri [default: s3://kfp-tfjob]"),
        click.option("--name", metavar="NAME", help="model_name [default: from --data]"),
        click.option(
            "--workers", type=int, metavar="N", help="train_workers, beside the chief [default: 1]"
        ),
        click.option(
            "--model",
            metavar="CODE",
            help="model_code: model.py:build_model [default: trainer.models:mlp]",
        ),
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
    default=DEFAULT,
    show_default=True,
    help="where the embedded store, logs and reports are kept",
)
@click.option("--run-id", metavar="ID", help="continue that run, with what it was started with")
def run(endpoint: str | None, home: Path, run_id: str | None, **given: Any) -> None:
    """Run the whole pipeline on this machine.

    Chief and workers are processes; what they leave goes to a real S3 server that is started and
    ended with the run, or to the store named by --endpoint with your AWS environment.

    Ends with 0 when the run is done, blessed or not; with 2 for wrong parameters, credentials or
    model code, with 3 for wrong data, with 6 when another run was promoted meanwhile, with 128 + N
    when signal N stopped it, with any other number when something else failed. The last lines say
    why.
    """
    from kfp_tfjob.components.preflight.parameters import check
    from kfp_tfjob.pipelines.local.run import run as run_here

    place = Home(home.absolute())
    with place.errors_told():
        earlier = _earlier(place, run_id) if run_id else None
    values = _values(given, earlier)
    if endpoint:
        values["storage_endpoint"] = endpoint
    check(values)
    ConfigurationError.raise_if(_not_kept(values))
    named = given["name"] or any(item.startswith("model_name=") for item in given["settings"])
    if not run_id and not named and (note := _other_data(place, values)):
        click.echo(note)
    name = run_id or f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{token_hex(2)}"
    sys.exit(run_here(values, place, name, not values["storage_endpoint"], _show))


@main.command("explain")
@click.argument("parameter", metavar="[PARAMETER[.KEY]]", required=False)
def explain_(parameter: str | None) -> None:
    """Explain the run parameters, every key of a dict PARAMETER, or one KEY of it."""
    from kfp_tfjob.components.preflight.parameters import MEANING
    from kfp_tfjob.options.data import DataOptions
    from kfp_tfjob.options.gate import GateOptions
    from kfp_tfjob.options.job import PodOptions, TrainOptions

    groups = {
        "data_options": DataOptions,
        "train_options": TrainOptions,
        "gate": GateOptions,
        "pod": PodOptions,
    }
    keys = {path: text for name in groups for path, text in explain(name, groups[name]).items()}
    if parameter is None:
        for name, meaning in MEANING.items():
            click.echo(f"{name:<22} {meaning.replace('`', '')}")
        click.echo(f"\nThe keys of {', '.join(groups)}: kfp-tfjob explain PARAMETER")
        return
    shown = {path: text for path, text in keys.items() if f"{path}.".startswith(f"{parameter}.")}
    if parameter in MEANING:
        click.echo(f"{parameter}: {MEANING[parameter].replace('`', '')}\n")
    elif not shown:
        near = [path for path in keys if path.endswith(f".{parameter}")]
        near = near or [nearest(parameter, [*MEANING, *keys])]
        raise ConfigurationError(
            Problem(
                f"there is no parameter or key {parameter!r}",
                received=parameter,
                expected=f"one of {', '.join(MEANING)}, or PARAMETER.KEY",
                fix=" or ".join(f"kfp-tfjob explain {name}".strip() for name in near),
            )
        )
    for path, text in shown.items():
        click.echo(path)
        click.echo(fill(text, 100, initial_indent="    ", subsequent_indent="    "))


@main.command("compile")
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help="folder for the YAML [default: pipelines/compiled of the checkout]",
)
@click.option("--tools-image", default="", metavar="IMAGE", help="image of the steps")
@click.option("--trainer-image", default="", metavar="IMAGE", help="image of evaluate and replicas")
@click.option(
    "--run-as-user",
    default="1000",
    show_default=True,
    metavar="UID|none",
    help="user id of the steps' pods, any but 0; none leaves it to the cluster",
)
def compile_(output: Path | None, tools_image: str, trainer_image: str, run_as_user: str) -> None:
    """Compile the pipeline and each step to YAML for Kubeflow Pipelines.

    With a user id the pods of the steps meet the Pod Security level restricted from Kubeflow
    Pipelines 2.16 on. Older back ends, from 2.5 on, pass over the user id without a word: there
    the pods run as the image says, or as PIPELINE_RUN_AS_USER of their API server says. An id that
    an administrator sets for all pipelines wins over this one.

    Where the cluster assigns user ids itself, as OpenShift does, say none. The steps work as any
    user in group 0.
    """
    from kfp_tfjob.pipelines.compilation import FOLDER, compile_all

    if run_as_user != "none" and not re.fullmatch(r"[1-9][0-9]{0,9}", run_as_user):
        raise ConfigurationError(
            Problem(
                "--run-as-user is not a user id",
                received=run_as_user,
                expected="a whole number from 1 on, or none",
                fix="leave it out for 1000",
            )
        )
    for path in compile_all(output or FOLDER, tools_image, trainer_image, run_as_user):
        click.echo(path)


@main.command()
@click.argument("run_uri", metavar="RUN_URI")
@click.option("--endpoint", default="", metavar="URL", help="the S3 store, where it is not AWS")
@click.option("--port", type=click.IntRange(0, 65535), default=6006, show_default=True)
def tensorboard(run_uri: str, endpoint: str, port: int) -> None:
    """Show the curves of a run in TensorBoard, straight from S3.

    RUN_URI is s3://BUCKET/PREFIX/runs/ID, which the pages of launch_tfjob and of the last step
    name. The keys, and where --endpoint is left out the endpoint, come from the AWS environment.
    It may be started while the job trains, and follows it. Ctrl-C ends it.
    """
    from kfp_tfjob.pipelines.tensorboard import serve

    serve(run_uri, endpoint, port, click.echo)


@main.command()
@_parameters
@click.option("--run-id", default="RUN-ID", help="as KFP would give it", show_default=True)
def render(run_id: str, **given: Any) -> None:
    """Print the TFJob that a set of parameters would create."""
    from kfp_tfjob.components.launch_tfjob.render import render as render_job
    from kfp_tfjob.components.preflight.parameters import check

    values = _values(given)
    check(values)
    click.echo(render_job(values, run_id), nl=False)


@main.command()
@click.argument("file", type=click.File(encoding="utf-8"))
@click.option(
    "--fix",
    is_flag=True,
    help="print FILE corrected where that is safe; what was done goes to stderr",
)
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text")
def lint(file: TextIO, fix: bool, form: str) -> None:
    """Find what is wrong with the TFJobs of FILE, any YAML or - for standard input.

    Ends with 0 when there are no errors (there may be warnings), with 1 when there are, after
    --fix those that are left, and with 2 when FILE cannot be read or has no TFJob. A document that
    --fix corrects loses the comments between its lines; any other one stays as it is.
    """
    from kfp_tfjob.lint import engine, report

    try:
        text = file.read().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise ConfigurationError(
            Problem(f"{file.name} is not text", received=error.reason, expected="YAML in UTF-8")
        ) from None
    findings, done = engine.lint(text, file.name), ()
    if fix:
        fixed = engine.fix(text, file.name)
        findings, done = fixed.findings, fixed.done
        click.echo(fixed.text, nl=False)
    if form == "json":
        click.echo(report.as_json(findings, file.name, done), err=fix)
    else:
        for what in done:
            click.echo(line(f"{file.name}: corrected {what}"), err=True)
        click.echo(report.as_text(findings, file.name), err=fix)
    sys.exit(1 if report.errors(findings) else 0)


def _values(given: dict[str, Any], earlier: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return every run parameter: the pipeline's defaults, the short options, then --set.

    A run that is continued has its earlier parameters in place of the defaults.
    """
    from kfp_tfjob.components.preflight.parameters import MEANING
    from kfp_tfjob.trainer.model_code import as_path

    values = _defaults() | (earlier or {})
    short = {
        "data_uri": given["data"],
        "data_label": given["label"],
        "output_uri": given["output"],
        "model_name": given["name"],
        "train_workers": given["workers"],
        "model_code": given["model"],
    }
    values |= {name: value for name, value in short.items() if value is not None}
    values["output_uri"] = values["output_uri"] or "s3://kfp-tfjob"
    values["model_name"] = values["model_name"] or _name_of(values["data_uri"]) or "model"
    _apply(values, given["settings"], MEANING)
    values["model_code"] = as_path(str(values["model_code"]))
    if not any(setting.startswith("train_batch_size=") for setting in given["settings"]):
        values["train_batch_size"] = _fitting(values)
    return values


def _fitting(values: dict[str, Any]) -> Any:
    """Return the batch that nobody chose, cut down to what the replicas can divide."""
    batch, workers, gpus = (values[f"train_{name}"] for name in ("batch_size", "workers", "gpus"))
    if not all(isinstance(number, int) and number >= 0 for number in (batch, workers, gpus)):
        return batch  # wrong numbers are told by the check
    ranks = (1 + workers) * max(gpus, 1)
    return batch - batch % ranks or ranks


def _defaults() -> dict[str, Any]:
    """Return the defaults of the pipeline; a parameter without one is empty."""
    from kfp_tfjob.pipelines.tfjob_training import tfjob_training

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
    """Return a setting as text where the parameter is text, and as JSON where it parses."""
    if isinstance(default, str) and not is_key:
        return text
    return json.loads(text) if _is_json(text) else text


def _name_of(data: str) -> str:
    """Return a model name made from the name of the data."""
    stem = Path(data).name.split(".")[0]
    return re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-._")


def _not_kept(values: dict[str, Any]) -> Iterable[Problem]:
    """Describe the secrets of a run that is continued, which were not written down."""
    for name, value in values.items():
        for path in still_masked(value, name):
            yield Problem(
                f"{path} was not kept when the run was started",
                expected="it once more, because its name looks like that of a secret",
                fix="give it again",
                path=path,
            )


def _other_data(home: Home, values: dict[str, Any]) -> str:
    """Return what to tell a person whose model got its name from the data, if it is not the first.

    clean.csv and clean.parquet, or files of two folders, give one name.
    """
    earlier = home.trained_with(str(values["model_name"]))
    keys = ("data_uri", "data_label")
    if not earlier or all(earlier[1].get(key) == values[key] for key in keys):
        return ""
    version, parameters = earlier
    return (
        f"note: {values['model_name']} is the name of a model already: version {version} is of"
        f" {parameters.get('data_uri')}, label {parameters.get('data_label')}, and this one is"
        " judged against its champion. Another name: --name NAME"
    )


def _earlier(home: Home, run_id: str) -> dict[str, Any]:
    """Return what a run that is continued was started with.

    Raises:
        ConfigurationError: There is no such run.
    """
    path = home.run(run_id) / PARAMETERS
    try:
        text = "" if "/" in run_id else path.read_text()
        earlier = json.loads(text)
    except (FileNotFoundError, NotADirectoryError, ValueError):  # or the disk was full meanwhile
        known = [folder.name for folder in path.parents[1].glob("*") if folder.is_dir()]
        raise ConfigurationError(
            Problem(
                "there is no run of that id to continue",
                received=run_id,
                expected=f"one of {', '.join(sorted(known)[-5:]) or 'none yet'}",
                fix="correct --run-id or --home, or leave --run-id out for a new run",
            )
        ) from None
    return earlier
