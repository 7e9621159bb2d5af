"""The rights that are checked are those that deploy/ grants."""

from pathlib import Path

import yaml

from kfp_tfjob.cluster import rights
from kfp_tfjob.jobs.kinds import KINDS

DEPLOY = Path(__file__).parents[2] / "deploy"


def granted(file: str) -> set[tuple[str, str, str]]:
    return {
        (group, resource, verb)
        for rule in yaml.safe_load((DEPLOY / file).read_text())["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def checked(*wanted: rights.Right) -> set[tuple[str, str, str]]:
    return {(right.group, right.resource, verb) for right in wanted for verb in right.verbs}


def test_the_role_grants_what_is_checked_and_nothing_else():
    needed = [right for kind in KINDS for right in rights.to_run(kind)]
    place = ("visibility.kueue.x-k8s.io", "localqueues/pendingworkloads", "get")
    expected = checked(*needed, *rights.TO_STOP, *rights.TO_EXPLAIN) | {place}
    assert granted("base/role.yaml") == expected


def test_the_optional_role_for_nodes():
    assert granted("optional/nodes/cluster-role.yaml") == {("", "nodes", "list")}
