"""`kfp-tfjob install`: the objects that runs need in their namespace, for kubectl."""

from __future__ import annotations

import click

OPTIONAL = ("nodes", "quota")


@click.command()
@click.option(
    "--namespace",
    default="kubeflow",
    show_default=True,
    metavar="NAME",
    help="the namespace of the runs",
)
@click.option(
    "--service-account",
    default="",
    metavar="NAME",
    help="the runs' service account [default: pipeline-runner; with --multi-user, default-editor]",
)
@click.option("--multi-user", is_flag=True, help="the namespace is a Kubeflow profile")
@click.option(
    "--with",
    "optional",
    multiple=True,
    type=click.Choice(OPTIONAL),
    help="also print the permission to list nodes, which only a cluster administrator can grant, or"
    " an example quota; may be repeated",
)
def install(
    namespace: str, service_account: str, multi_user: bool, optional: tuple[str, ...]
) -> None:
    """Print what runs need in a namespace: a Role, its binding and a NetworkPolicy.

    Pipe it into kubectl, which shows, applies or deletes it:

    \b
        kfp-tfjob install | kubectl diff --server-side -f -
        kfp-tfjob install | kubectl apply --server-side -f -
        kfp-tfjob install | kubectl delete -f -
    """  # noqa: D301
    import yaml

    from kfp_tfjob.cluster import manifests

    account = service_account or (manifests.MULTI_USER if multi_user else manifests.STANDALONE)
    click.echo(yaml.safe_dump_all(manifests.objects(namespace, account, optional)), nl=False)
