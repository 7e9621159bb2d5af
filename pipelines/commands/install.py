"""`kfp-tfjob install`: what runs need in their namespace."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from kfp_tfjob.options.pipeline import PARAMETERS
from kfp_tfjob.storage.errors import ConfigurationError, Problem
from kfp_tfjob.storage.options import WEBHOOK_KEY
from kfp_tfjob.storage.text import line

if TYPE_CHECKING:
    from kfp_tfjob.cluster.applying import Change
    from kfp_tfjob.cluster.client import ClusterClient

_NEEDED = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
_FROM_ENVIRONMENT = (*_NEEDED, "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL", "AWS_REGION", WEBHOOK_KEY)
_OPTIONAL = ("nodes", "quota", "restricted")
_SECONDS = 15  # for an API server that does not answer
_WORDS = {"create": ("create", "created"), "change": ("change", "changed"), "keep": ("keep",) * 2}


@click.command()
@click.option(
    "--apply/--dry-run", "really", default=False, help="change the cluster [default: --dry-run]"
)
@click.option(
    "--namespace",
    default="",
    metavar="NAME",
    help="the namespace of the runs [default: that of your kubeconfig, else kubeflow]",
)
@click.option(
    "--service-account",
    default="",
    metavar="NAME",
    help="the account of the runs [default: pipeline-runner, with --multi-user default-editor]",
)
@click.option("--multi-user", is_flag=True, help="the namespace is a profile of Kubeflow")
@click.option(
    "--with",
    "optional",
    multiple=True,
    type=click.Choice(_OPTIONAL),
    help="also: nodes, the right to list nodes; quota, an example of a quota; restricted, the Pod"
    " Security level of the namespace; may be repeated",
)
@click.option(
    "--secret-from-env",
    is_flag=True,
    help="create the Secret of the store from AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY,"
    " AWS_SESSION_TOKEN, AWS_ENDPOINT_URL, AWS_REGION and KFP_TFJOB_WEBHOOK_URL, if it does not"
    " exist",
)
@click.option(
    "--secret",
    default=str(PARAMETERS["storage_secret"].default),
    show_default=True,
    metavar="NAME",
    help="the name of that Secret, as in the run parameter storage_secret",
)
@click.option("--json", "as_json", is_flag=True, help="print the result as JSON")
def install(
    really: bool,
    namespace: str,
    service_account: str,
    multi_user: bool,
    optional: tuple[str, ...],
    secret_from_env: bool,
    secret: str,
    as_json: bool,
) -> None:
    """Give a namespace what runs need: a Role, its binding and a NetworkPolicy.

    Without --apply, it shows what would change, and changes nothing. It uses your kubeconfig. It is
    safe to repeat, also while runs are in flight: it never changes an existing Secret, nor a field
    that someone else has set.

    You need the rights to get, create and patch these objects, and every right that the Role
    grants; an administrator of the namespace has them. --with nodes and --with restricted need an
    administrator of the cluster.

    Exit codes: 0 applied, or nothing to change; 1 a dry run found something to change; 2 it cannot
    be applied.
    """
    from kfp_tfjob.cluster import manifests
    from kfp_tfjob.cluster.applying import apply, compare, to_remove
    from kfp_tfjob.cluster.client import PATIENCE, ClusterClient

    values = _secret_values() if secret_from_env else {}
    api = ClusterClient.from_environment(replace(PATIENCE, seconds=_SECONDS))
    api.namespace = namespace or (api.namespace if api.namespace != "default" else "kubeflow")
    account = service_account or (manifests.MULTI_USER if multi_user else manifests.STANDALONE)
    wanted = manifests.objects(api.namespace, account, optional)
    if values:
        wanted.append(manifests.secret(api.namespace, secret, values))
    changes = compare(api, wanted)
    if really:
        apply(api, changes)
    warnings = _warnings(api, account, multi_user)
    if as_json:
        click.echo(json.dumps(_report(api, account, really, changes, warnings), indent=1))
    else:
        _show(api, account, really, changes, warnings, to_remove(changes))
    sys.exit(0 if really or all(change.action == "keep" for change in changes) else 1)


def _secret_values() -> dict[str, str]:
    """Return the keys of the store in the environment.

    Raises:
        ConfigurationError: There are none.
    """
    found = {name: os.environ[name] for name in _FROM_ENVIRONMENT if os.environ.get(name)}
    if lacking := [name for name in _NEEDED if name not in found]:
        raise ConfigurationError(
            Problem(
                "--secret-from-env needs the keys of the store in your environment",
                received=f"no {' and no '.join(lacking)}",
                expected="keys that may read, write, list and delete below output_uri",
                fix=f"export {' and '.join(lacking)}; for a store other than AWS also"
                " AWS_ENDPOINT_URL",
            )
        )
    return found


def _warnings(api: ClusterClient, account: str, multi_user: bool) -> list[str]:
    """Return what does not hinder the installation, and will hinder runs."""
    from kfp_tfjob.cluster.errors import ForbiddenError

    try:
        if api.get(api.core("serviceaccounts", account)) is not None:
            return []
    except ForbiddenError:
        return []
    other = "" if multi_user else "; in a profile of Kubeflow, runs use --multi-user"
    return [
        f"there is no service account {account} in namespace {api.namespace}: Kubeflow Pipelines"
        f" makes it for the namespaces that it runs in{other}"
    ]


def _report(
    api: ClusterClient,
    account: str,
    really: bool,
    changes: Sequence[Change],
    warnings: Sequence[str],
) -> Mapping[str, object]:
    return {
        "server": api.address,
        "namespace": api.namespace,
        "service_account": account,
        "applied": really,
        "objects": [
            {
                "kind": change.kind,
                "name": change.name,
                "action": change.action,
                "diff": list(change.diff),
                "notes": list(change.notes),
                "manifest": change.shown,
            }
            for change in changes
        ],
        "warnings": list(warnings),
    }


def _show(
    api: ClusterClient,
    account: str,
    really: bool,
    changes: Sequence[Change],
    warnings: Sequence[str],
    removal: Sequence[str],
) -> None:
    click.echo(line(f"namespace {api.namespace} of {api.address}, account {account}"))
    for change in changes:
        word = _WORDS[change.action][really]
        click.echo(line(f"  {word:8} {change.kind} {change.name}"))
        for text in change.diff:
            click.echo(line(f"             {text}"))
        for note in change.notes:
            click.echo(line(f"             {note}"))
    for warning in warnings:
        click.echo(line(f"Warning: {warning}."))
    if all(change.action == "keep" for change in changes):
        click.echo("Everything is in place.")
    elif really:
        if removal:
            click.echo(f"Undo it with: {' && '.join(removal)}")
    else:
        click.echo("Nothing was changed. Add --apply to apply it.")
