"""Folders of deploy/ whose controllers do not run here: their CRDs check them in the API server."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from kfp_tfjob.jobs.objects import Object
from kfp_tfjob.storage.errors import StepError
from tests.cluster.cluster import Cluster
from tests.cluster.custom_resources import define
from tests.cluster.launches import ROOT
from tests.cluster.test_deploy_serving import rendered

pytestmark = pytest.mark.cluster

DEPLOY = ROOT / "deploy"
FOLDERS = ["optional/karpenter", "optional/monitoring", "serving/keda", "serving/kserve"]

# Folder, kind, the field, its wrong value (None: missing), the path in the server's message.
WRONG = [
    ("optional/monitoring", "PodMonitor", "podMetricsEndpoint", [], "spec.podMetricsEndpoint"),
    ("optional/monitoring", "PodMonitor", "selector", None, "spec.selector"),
    (
        "optional/monitoring",
        "PrometheusRule",
        "groups.0.rules.0.for",
        "soon",
        "spec.groups[0].rules[0].for",
    ),
    (
        "optional/monitoring",
        "PrometheusRule",
        "groups.0.rules.0.expr",
        None,
        "spec.groups[0].rules[0].expr",
    ),
    ("serving/kserve", "InferenceService", "predictor.minReplica", 1, "spec.predictor.minReplica"),
    (
        "serving/kserve",
        "InferenceService",
        "predictor.containers.0.ports.0.containerPort",
        "http",
        "].containerPort: expected numeric",
    ),
    ("serving/keda", "ScaledObject", "scaleTargetRef", None, "spec.scaleTargetRef"),
    ("serving/keda", "ScaledObject", "triggers.0.type", None, "spec.triggers[0].type"),
    ("optional/karpenter", "EC2NodeClass", "amiSelectorTerms", None, "spec.amiSelectorTerms"),
    ("optional/karpenter", "EC2NodeClass", "amiFamily", "AL2", "spec: Invalid value"),
    ("optional/karpenter", "EC2NodeClass", "subnetSelectors", [], "spec.subnetSelectors"),
    (
        "optional/karpenter",
        "EC2NodeClass",
        "blockDeviceMappings.0.ebs.volumeSize",
        "200",
        "spec.blockDeviceMappings[0].ebs.volumeSize",
    ),
    (
        "optional/karpenter",
        "NodePool",
        "template.spec.requirements.0.operator",
        "Is",
        "spec.template.spec.requirements[0].operator",
    ),
    (
        "optional/karpenter",
        "NodePool",
        "template.spec.taints.0.effect",
        "NoSchedul",
        "spec.template.spec.taints[0].effect",
    ),
    ("optional/karpenter", "NodePool", "disruption.consolidateAfter", None, "consolidateAfter"),
    ("optional/karpenter", "NodePool", "limit", {"cpu": "8"}, "spec.limit"),
    (
        "optional/karpenter",
        "NodePool",
        "disruption.consolidationPolicy",
        "WhenUnderutilized",
        "spec.disruption.consolidationPolicy",
    ),
]


def _dry_run(cluster: Cluster, found: list[Object]) -> str:
    how = ("--server-side", "--dry-run=server", "--validate=strict", "-f", "-")
    return cluster.kubectl("apply", *how, stdin=yaml.safe_dump_all(found))


def _set(spec: Any, field: str, value: object) -> None:
    *path, last = (int(it) if it.isdigit() else it for it in field.split("."))
    for part in path:
        spec = spec[part]
    if value is None:
        del spec[last]
    else:
        spec[last] = value


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_definitions_accept(own_cluster: Cluster, namespace: str, folder: str) -> None:
    define(own_cluster, folder)
    found = rendered(own_cluster, DEPLOY / folder, namespace)
    said = _dry_run(own_cluster, found)
    assert said.count("serverside-applied (server dry run)") == len(found), said


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_definitions_refuse_what_is_wrong(
    own_cluster: Cluster, namespace: str, folder: str
) -> None:
    define(own_cluster, folder)
    for of, kind, field, value, path in WRONG:
        if of != folder:
            continue
        found = rendered(own_cluster, DEPLOY / folder, namespace)
        wrong = next(it for it in found if it["kind"] == kind)
        _set(wrong["spec"], field, value)
        with pytest.raises(StepError) as refused:
            _dry_run(own_cluster, [wrong])
        assert path in str(refused.value)
