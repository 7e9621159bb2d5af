"""The CustomResourceDefinitions of KServe and KEDA, as their Go modules ship them.

`go/custom-resources/go.mod` and `go.sum` pin the modules; they are not compiled. The
controllers do not run: the API server alone checks the objects, by these schemas.
"""

from __future__ import annotations

import json
from pathlib import Path

from tests.cluster.binaries import sources
from tests.cluster.cluster import Cluster
from tests.cluster.processes import wait_until

_KSERVE, _KEDA = "github.com/kserve/kserve", "github.com/kedacore/keda/v2"
_FILES = {
    _KSERVE: "config/crd/full/serving.kserve.io_inferenceservices.yaml",
    _KEDA: "config/crd/bases/keda.sh_scaledobjects.yaml",
}
_SECONDS = 120


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
    for file in files():
        if not wait_until(lambda file=file: _is_established(cluster, file), _SECONDS):
            raise TimeoutError(f"{file.name} is not established")


def _is_established(cluster: Cluster, file: Path) -> bool:
    found = json.loads(cluster.kubectl("get", "-f", file, "-o", "json"))
    conditions = found.get("status", {}).get("conditions") or ()
    return any((it["type"], it["status"]) == ("Established", "True") for it in conditions)
