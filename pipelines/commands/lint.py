"""`kfp-tfjob lint`: the TFJobs in a YAML file."""

from __future__ import annotations

import sys
from typing import TextIO

import click

from kfp_tfjob.storage.errors import ConfigurationError, Problem


@click.command()
@click.argument("file", type=click.File(encoding="utf-8"))
def lint(file: TextIO) -> None:
    """Check the TFJobs in a YAML file.

    FILE is any YAML file, or - for standard input. For unknown fields and wrong types, use kubectl
    apply --dry-run=server.

    Exit codes: 0 no errors, but maybe warnings; 1 errors; 2 FILE cannot be read or contains no
    TFJob.
    """
    from kfp_tfjob.lint import engine, report

    try:
        text = file.read().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise ConfigurationError(
            Problem(f"{file.name} is not text", received=error.reason, expected="YAML in UTF-8")
        ) from None
    findings = engine.lint(text, file.name)
    click.echo(report.render(findings, file.name))
    sys.exit(1 if report.errors(findings) else 0)
