"""The CustomResourceDefinitions of KServe and KEDA, as their Go modules ship them.

`go/custom-resources/go.mod` and `go.sum` pin the modules; they are not compiled. The
controllers do not run: the API server alone checks the objects, by these schemas.
"""

from __future__ import annotations

import fcntl
import json
from functools import partial
from pathlib import Path

from kfp_tfjob.storage.errors import StepError
from tests.cluster.binaries import sources
from tests.cluster.cluster import STATE, Cluster
from tests.cluster.processes import wait_until

_KSERVE, _KEDA = "github.com/kserve/kserve", "github.com/kedacore/keda/v2"
_FILES = {
    _KSERVE: "config/crd/full/serving.kserve.io_inferenceservices.yaml",
    _KEDA: "config/crd/bases/keda.sh_scaledobjects.yaml",
}
_SECONDS = 600


def files() -> list[Path]:
    """Return the files of the definitions.

    Raises:
        ConfigurationError: There is no Go, or its module proxy cannot be reached.
    """
    folders = sources("custom-resources", *_FILES)
    return [folders[module] / name for module, name in _FILES.items()]


def define(cluster: Cluster) -> None:
    """Add the definitions to a cluster, and wait until objects of them can be created.

    They stay until the cluster ends: tests of other processes use them. Only one process adds
    them, because each of these schemas keeps the API server busy for seconds.

    Raises:
        TimeoutError: A definition is not established.
    """
    with open(STATE / "custom-resources.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for file in files():
            refused: list[str] = []
            if not wait_until(partial(_is_established, cluster, file, refused), _SECONDS):
                raise TimeoutError(f"{file.name} is not established: {refused}")


def _is_established(cluster: Cluster, file: Path, refused: list[str]) -> bool:
    """Look for a definition, and add it if it is not there.

    Args:
        cluster: The cluster.
        file: The definition.
        refused: Gets why it could not be added. A busy API server gives up on a request after a
            minute, and may have done it.
    """
    try:
        found = json.loads(cluster.kubectl("get", "-f", file, "-o", "json"))
    except StepError:
        try:
            cluster.kubectl("create", "-f", file)
        except StepError as error:
            refused.append(str(error))
        return False
    conditions = found.get("status", {}).get("conditions") or ()
    return any((it["type"], it["status"]) == ("Established", "True") for it in conditions)
