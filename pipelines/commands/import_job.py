"""`kfp-tfjob import`: the run parameters for a job that a team already has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kfp_tfjob.common.errors import ConfigurationError, Problem

if TYPE_CHECKING:
    from ..job_import.conversion import ImportedJob


@click.command("import")
@click.argument("file", type=click.Path(path_type=Path, allow_dash=True))
@click.option(
    "--command",
    metavar="JSON",
    default="",
    help="the program and its arguments as a JSON list, for a job whose image starts its own",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="where to write the parameters; with several jobs, their names are added to the file's",
)
def import_(file: Path, command: str, output: Path | None) -> None:
    """Write the run parameters for an existing TFJob, PyTorchJob or JobSet.

    FILE has one or more jobs in YAML or JSON; - is standard input. The result starts the same
    program on the same number of replicas and GPUs. A comment stands beside each part of the job
    that is not carried over, with the reason and what takes its place. A job that would train
    something else as a run is refused.

    Start the run with kfp-tfjob submit --params FILE.
    """
    from kfp_tfjob.common.errors import Problems
    from kfp_tfjob.options.address_fields import safe

    from ..job_import.conversion import convert
    from ..job_import.documents import read

    program = _program(command)
    documents = read(file)
    problems = Problems()
    jobs = [problems.of(lambda job=job: convert(job, program)) for job in documents.jobs]
    ConfigurationError.raise_if(problems)
    imported = [job for job in jobs if job]
    if len(imported) > 1 and output is None:
        raise ConfigurationError(
            Problem(
                f"{documents.source} has several jobs, and each needs a file of its own",
                received=", ".join(job.name for job in imported),
                expected="a name from which the names of the files are made",
                fix="add --output params.yaml",
                path="--output",
            )
        )
    for number, job in enumerate(imported, 1):
        text = _text(job, documents.other_objects)
        if output is None:
            click.echo(text, nl=False)
            continue
        path = output
        if len(imported) > 1:
            names = [safe(named.name.partition(" ")[2]) for named in imported]
            name = names[number - 1]
            unique = name if names.count(name) == 1 else f"{number}-{name}"
            path = output.with_name(f"{output.stem}-{unique}{output.suffix}")
        _write(path, text)
        click.echo(path)


def _text(job: ImportedJob, ignored: tuple[str, ...]) -> str:
    """Return the content of a job's parameters file.

    Args:
        job: The job.
        ignored: The names of the file's other objects, which a note lists.
    """
    from ..job_import.parameters_file import to_yaml
    from ..job_import.report import Note

    notes = list(job.notes)
    if ignored:
        instead = "apply it with kubectl, if the program needs it"
        notes.append(Note(", ".join(ignored), "it is not part of the job", instead))
    return to_yaml(job.parameters, notes, f"Run parameters for {job.name}")


def _program(text: str) -> list[str]:
    """Return the program in --command; empty without the option.

    Raises:
        ConfigurationError: It is not a JSON list of strings.
    """
    if not text:
        return []
    try:
        program = json.loads(text)
    except ValueError:
        program = None  # reported below, as for JSON that is not a list
    if isinstance(program, list) and program and all(isinstance(word, str) for word in program):
        return program
    raise ConfigurationError(
        Problem(
            "--command is not a JSON list of strings",
            received=text,
            expected='a program and its arguments, for example \'["python3", "train.py"]\'',
            fix="write it as a JSON list, in single quotes for the shell",
            path="--command",
        )
    )


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(
            Problem(
                f"{path} cannot be written",
                received=str(error),
                expected="a path in an existing folder",
                fix="name another file with --output",
                path="--output",
            )
        ) from None
