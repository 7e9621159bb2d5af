"""`kfp-tfjob explain`: the run parameters and their keys."""

from __future__ import annotations

from textwrap import fill

import click

from kfp_tfjob.common.errors import ConfigurationError, Problem
from kfp_tfjob.common.formatting import nearest
from kfp_tfjob.options.parameters import PARAMETERS

from ..parameter_help import explain as keys_of


@click.command("explain")
@click.argument("parameter", metavar="[PARAMETER[.KEY]]", required=False)
def explain(parameter: str | None) -> None:
    """Explain the run parameters and their keys."""
    groups = {name: declared.group for name, declared in PARAMETERS.items() if declared.group}
    keys = {path: text for name in groups for path, text in keys_of(name, groups[name]).items()}
    if parameter is None:
        for name, declared in PARAMETERS.items():
            click.echo(f"{name:<22} {declared.words}")
        click.echo(f"\nFor the keys of {', '.join(groups)}, run: kfp-tfjob explain PARAMETER")
        return
    matches = {path: text for path, text in keys.items() if f"{path}.".startswith(f"{parameter}.")}
    role, _, key = parameter.rpartition(".")
    same = [path for path in (f"pod.all.{key}", f"pod.ps.{key}") if path in keys]
    if not matches and same and role.startswith("pod.") and role in keys:  # such as pod.chief.cpu
        # A step's pod takes few of these keys, and its own text names them.
        of_step = role in ("pod.prepare", "pod.evaluate")
        matches = {path: keys[path] for path in ([role] if of_step else [role, *same])}
    if parameter in PARAMETERS:
        click.echo(f"{parameter}: {PARAMETERS[parameter].words}\n")
    elif not matches:
        near = [path for path in keys if path.endswith(f".{parameter}")]
        near = near or [nearest(parameter, [*PARAMETERS, *keys])]
        raise ConfigurationError(
            Problem(
                f"there is no parameter or key {parameter!r}",
                received=parameter,
                expected=f"one of {', '.join(PARAMETERS)}, or PARAMETER.KEY",
                fix="run " + " or ".join(f"kfp-tfjob explain {name}".strip() for name in near),
                name="unknown-key",
            )
        )
    for path, text in matches.items():
        click.echo(path)
        click.echo(
            fill(text.replace("`", ""), 100, initial_indent="    ", subsequent_indent="    ")
        )
