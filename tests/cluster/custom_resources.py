"""The CustomResourceDefinitions of KServe and KEDA, as their Go modules ship them.

`go/custom-resources/go.mod` and `go.sum` pin the modules; nothing of them is compiled. The
controllers do not run: the API server alone checks the objects, by these schemas.
"""

from __future__ import annotations

from pathlib import Path

from tests.cluster.binaries import sources
from tests.cluster.cluster import Cluster

_KSERVE, _KEDA = "github.com/kserve/kserve", "github.com/kedacore/keda/v2"
_FILES = {
    _KSERVE: "config/crd/full/serving.kserve.io_inferenceservices.yaml",
    _KEDA: "config/crd/bases/keda.sh_scaledobjects.yaml",
}


def files() -> list[Path]:
    """Return the files of the definitions.

    Raises:
        ConfigurationError: There is no Go, or its module proxy cannot be reached.
    """
    folders = sources("custom-resources", *_FILES)
    return [folders[module] / name for module, name in _FILES.items()]


def define(cluster: Cluster) -> None:
    """Add the definitions to a cluster, and wait until objects of them can be created.

    They stay until the cluster ends: tests of other processes may use them.
    """
    for file in files():
        cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", file)
        cluster.kubectl("wait", "--for=condition=Established", "--timeout=60s", "-f", file)
