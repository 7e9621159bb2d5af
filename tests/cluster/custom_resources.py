"""The CustomResourceDefinitions of projects that manifests in deploy/ use, as Go modules ship them.

`go/custom-resources/go.mod` and `go.sum` pin the modules; they are not compiled. The
controllers do not run: the API server alone checks the objects, by these schemas.
"""

import fcntl
from functools import partial
from pathlib import Path

import yaml

from kfp_tfjob.common.errors import StepError
from tests.cluster.binaries import sources
from tests.cluster.cluster import STATE, Cluster
from tests.cluster.processes import wait_until

_KSERVE, _KEDA = "github.com/kserve/kserve", "github.com/kedacore/keda/v2"
_KARPENTER, _ON_AWS = "sigs.k8s.io/karpenter", "github.com/aws/karpenter-provider-aws"
_PROMETHEUS = "github.com/prometheus-operator/prometheus-operator"
_ISTIO = "istio.io/api"
_FILES = {
    "serving/kserve": [(_KSERVE, "config/crd/full/serving.kserve.io_inferenceservices.yaml")],
    "serving/keda": [(_KEDA, "config/crd/bases/keda.sh_scaledobjects.yaml")],
    "optional/istio": [(_ISTIO, "kubernetes/customresourcedefinitions.gen.yaml")],
    "optional/karpenter": [
        (_KARPENTER, "pkg/apis/crds/karpenter.sh_nodepools.yaml"),
        (_ON_AWS, "pkg/apis/crds/karpenter.k8s.aws_ec2nodeclasses.yaml"),
    ],
    "optional/monitoring": [
        (_PROMETHEUS, f"example/prometheus-operator-crd/monitoring.coreos.com_{name}.yaml")
        for name in ("podmonitors", "prometheusrules")
    ],
}
# Of a file with many definitions, those that are needed.
_NEEDED = {_ISTIO: ("AuthorizationPolicy", "PeerAuthentication")}
_SECONDS = 600


def define(cluster: Cluster, folder: str) -> None:
    """Add the definitions that a folder of deploy/ needs, and wait until they can be used.

    They stay until the cluster ends: tests of other processes use them. Only one process adds
    them, because each of these schemas keeps the API server busy for seconds.

    Raises:
        ConfigurationError: There is no Go, or its module proxy cannot be reached.
    """
    if not (wanted := _FILES.get(folder)):
        return
    folders = sources("custom-resources", *(module for module, _ in wanted))
    with open(STATE / "custom-resources.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for module, name in wanted:
            refused: list[str] = []
            file = _needed_of(folders[module] / name, _NEEDED.get(module, ()))
            if not wait_until(partial(_is_established, cluster, file, refused), _SECONDS):
                raise TimeoutError(f"{name} is not established: {refused}")


def _needed_of(file: Path, kinds: tuple[str, ...]) -> Path:
    """Return a file with only the definitions of these kinds; without any, the file itself."""
    if not kinds:
        return file
    needed = STATE / f"custom-resources-{'-'.join(kinds)}.yaml"
    definitions = yaml.load_all(file.read_text(), yaml.CSafeLoader)
    needed.write_text(
        yaml.safe_dump_all(it for it in definitions if it and it["spec"]["names"]["kind"] in kinds)
    )
    return needed


def _is_established(cluster: Cluster, file: Path, refused: list[str]) -> bool:
    """Add a definition, if it is not there, and look whether it can be used.

    Args:
        refused: Gets why it could not be added. A busy API server gives up on a request after a
            minute, and may have done it.
    """
    try:
        cluster.kubectl("apply", "--server-side", "-f", file)
        cluster.kubectl("wait", "--for=condition=Established", "-f", file, "--timeout=60s")
    except StepError as error:
        refused.append(str(error))
        return False
    return True
