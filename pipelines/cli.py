"""The command line: compile the pipeline, run it on this machine, show the job it would create."""

from __future__ import annotations

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
from kfp_tfjob.options.pipeline import PARAMETERS, Parameter
from kfp_tfjob.pipelines.explanation import explain
from kfp_tfjob.pipelines.hints import with_hints
from kfp_tfjob.pipelines.local.home import DEFAULT, Home
from kfp_tfjob.pipelines.local.home import PARAMETERS as KEPT
from kfp_tfjob.storage.errors import ConfigurationError, Problem, StepError
from kfp_tfjob.storage.text import line, lines, log_to
from kfp_tfjob.storage.words import nearest


class _Command(click.Group):
    """Exits with the code of the error and prints its message on standard error."""

    def invoke(self, context: click.Context) -> Any:
        """Run a command."""
        try:
            return super().invoke(context)
        except StepError as error:
            click.echo(f"kfp-tfjob: {with_hints(error)}", err=True)
            sys.exit(error.code)


def _show(text: str) -> None:
    """Print text that may come from outside."""
    click.echo(lines(text))


@click.group(cls=_Command, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, prog_name="kfp-tfjob")
def main() -> None:
    """Train Keras models with Kubeflow Pipelines and TFJob, and verify the result in S3."""
    logging.basicConfig(level=logging.WARNING, handlers=[log_to(sys.stderr, "%(message)s")])


# The defaults of a run on this machine, where they differ from those of the form.
_HERE = {
    "output_uri": "s3://kfp-tfjob",
    "model_name": "from --data",
    "storage_endpoint": "the embedded store",
}


def _shown_default(name: str, parameter: Parameter) -> str:
    default = _HERE.get(name) or parameter.default
    return "; required" if default is None else f" [default: {default}]"


def _parameters(command):
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


@main.command()
@_parameters
@click.option(
    "--home",
    type=click.Path(path_type=Path, file_okay=False),
    default=DEFAULT,
    show_default=True,
    help="folder for the embedded store, logs and reports",
)
@click.option("--run-id", metavar="ID", help="continue this run with its original parameters")
def run(home: Path, run_id: str | None, **given: Any) -> None:
    """Run the whole pipeline on this machine.

    The chief and the workers run as processes. They store their output in an S3 server that starts
    and stops with the run, or in the store of --endpoint, with your AWS environment.

    Exit codes: 0 the run is complete, blessed or not; 2 wrong parameters, credentials or model
    code; 3 wrong data; 6 a different run was promoted first; 128+N stopped by signal N; any other
    code: a different failure. The last lines give the reason.
    """
    from kfp_tfjob.components.preflight.parameters import check
    from kfp_tfjob.pipelines.local.run import run as run_here

    place = Home(home.absolute())
    with place.errors_told():
        earlier = _earlier(place, run_id) if run_id else None
    values = _values(given, earlier)
    check(values)
    ConfigurationError.raise_if(_not_kept(values))
    named = given["model_name"] or any(item.startswith("model_name=") for item in given["settings"])
    if not run_id and not named and (note := _other_data(place, values)):
        click.echo(note)
    name = run_id or f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{token_hex(2)}"
    sys.exit(run_here(values, place, name, not values["storage_endpoint"], _show))


@main.command("explain")
@click.argument("parameter", metavar="[PARAMETER[.KEY]]", required=False)
def explain_(parameter: str | None) -> None:
    """Explain the run parameters and their keys."""
    groups = {name: it.group for name, it in PARAMETERS.items() if it.group}
    keys = {path: text for name in groups for path, text in explain(name, groups[name]).items()}
    if parameter is None:
        for name, it in PARAMETERS.items():
            click.echo(f"{name:<22} {it.words}")
        click.echo(f"\nFor the keys of {', '.join(groups)}, run: kfp-tfjob explain PARAMETER")
        return
    shown = {path: text for path, text in keys.items() if f"{path}.".startswith(f"{parameter}.")}
    if parameter in PARAMETERS:
        click.echo(f"{parameter}: {PARAMETERS[parameter].words}\n")
    elif not shown:
        near = [path for path in keys if path.endswith(f".{parameter}")]
        near = near or [nearest(parameter, [*PARAMETERS, *keys])]
        raise ConfigurationError(
            Problem(
                f"there is no parameter or key {parameter!r}",
                received=parameter,
                expected=f"one of {', '.join(PARAMETERS)}, or PARAMETER.KEY",
                fix=" or ".join(f"kfp-tfjob explain {name}".strip() for name in near),
            )
        )
    for path, text in shown.items():
        click.echo(path)
        click.echo(
            fill(text.replace("`", ""), 100, initial_indent="    ", subsequent_indent="    ")
        )


@main.command("compile")
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help="folder for the YAML [default: compiled; in a checkout pipelines/compiled]",
)
@click.option("--tools-image", default="", metavar="IMAGE", help="image of the steps")
@click.option("--trainer-image", default="", metavar="IMAGE", help="image of evaluate and replicas")
@click.option(
    "--run-as-user",
    default="1000",
    show_default=True,
    metavar="UID|none",
    help="user id of the steps' pods, not 0; none leaves the choice to the cluster",
)
def compile_(output: Path | None, tools_image: str, trainer_image: str, run_as_user: str) -> None:
    """Compile the pipeline for Kubeflow Pipelines.

    Writes one YAML file for the pipeline and one for each step.

    With a user id, the pods of the steps meet the Pod Security level "restricted" on Kubeflow
    Pipelines 2.16 and later. Versions 2.5 to 2.15 ignore the user id: the pods run as the user of
    the image, or as PIPELINE_RUN_AS_USER of the API server. An id that an administrator sets for
    all pipelines takes precedence.

    Use none if the cluster assigns user ids itself, as OpenShift does. The steps work as any user
    in group 0.
    """
    from kfp_tfjob.pipelines.compilation import FOLDER, compile_all

    if run_as_user != "none" and not re.fullmatch(r"[1-9][0-9]{0,9}", run_as_user):
        raise ConfigurationError(
            Problem(
                "--run-as-user is not a user id",
                received=run_as_user,
                expected="a whole number above 0, or none",
                fix="omit it to use 1000",
            )
        )
    for path in compile_all(output or FOLDER, tools_image, trainer_image, run_as_user):
        click.echo(path)


@main.command()
@click.argument("run_uri", metavar="RUN_URI")
@click.option("--endpoint", default="", metavar="URL", help="the S3 store, if it is not AWS")
@click.option("--port", type=click.IntRange(0, 65535), default=6006, show_default=True)
def tensorboard(run_uri: str, endpoint: str, port: int) -> None:
    """Show the curves of a run in TensorBoard.

    TensorBoard reads them directly from S3. RUN_URI is s3://BUCKET/PREFIX/runs/ID; the pages of
    launch_tfjob and of the last step show it.
    The credentials come from the AWS environment, and so does the endpoint without --endpoint.
    TensorBoard follows a job that is still training. Press Ctrl-C to stop.
    """
    from kfp_tfjob.pipelines.tensorboard import serve

    serve(run_uri, endpoint, port, click.echo)


@main.command()
@_parameters
@click.option("--run-id", default="RUN-ID", help="a run id as KFP assigns it", show_default=True)
def render(run_id: str, **given: Any) -> None:
    """Print the TFJob that the parameters create."""
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
    help="print FILE with the safe corrections; list them on stderr",
)
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text")
def lint(file: TextIO, fix: bool, form: str) -> None:
    """Check the TFJobs in a YAML file.

    FILE is any YAML file, or - for standard input.

    Exit codes: 0 no errors, but maybe warnings; 1 errors, or with --fix errors that remain; 2 FILE
    cannot be read or has no TFJob. A document that --fix corrects loses the comments between its
    lines. Other documents stay unchanged.
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
    if not any(setting.startswith("train_batch_size=") for setting in given["settings"]):
        values["train_batch_size"] = _fitting(values)
    return values


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


def _not_kept(values: dict[str, Any]) -> Iterable[Problem]:
    """Describe the secrets of a continued run: they were not saved."""
    for name, value in values.items():
        for path in still_masked(value, name):
            yield Problem(
                f"{path} was not saved when the run started",
                expected="the value again, because its name looks like the name of a secret",
                fix="pass it again",
                path=path,
            )


def _other_data(home: Home, values: dict[str, Any]) -> str:
    """Return a note if the model's default name belongs to a model of different data.

    clean.csv and clean.parquet, or equal file names in two folders, give the same name.
    """
    earlier = home.trained_with(str(values["model_name"]))
    keys = ("data_uri", "data_label")
    if not earlier or all(earlier[1].get(key) == values[key] for key in keys):
        return ""
    version, parameters = earlier
    return (
        f"note: a model named {values['model_name']} already exists: version {version} was trained"
        f" on {parameters.get('data_uri')}, label {parameters.get('data_label')}. This run competes"
        " with its champion. To use a different name: --name NAME"
    )


def _earlier(home: Home, run_id: str) -> dict[str, Any]:
    """Return the original parameters of a continued run.

    Raises:
        ConfigurationError: There is no such run.
    """
    path = home.run(run_id) / KEPT
    try:
        text = "" if "/" in run_id else path.read_text()
        earlier = json.loads(text)
    except (FileNotFoundError, NotADirectoryError, ValueError):  # or the disk was full
        known = [folder.name for folder in path.parents[1].glob("*") if folder.is_dir()]
        raise ConfigurationError(
            Problem(
                "there is no run with this id to continue",
                received=run_id,
                expected=f"one of {', '.join(sorted(known)[-5:]) or 'none yet'}",
                fix="correct --run-id or --home, or omit --run-id to start a new run",
            )
        ) from None
    return earlier
