"""`kfp-tfjob lint`: the TFJobs in a YAML file."""

from __future__ import annotations

import sys
from typing import TextIO

import click

from kfp_tfjob.storage.errors import ConfigurationError, Problem
from kfp_tfjob.storage.text import line


@click.command()
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
