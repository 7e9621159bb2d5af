"""The programs of the test cluster, each built once from the Go modules in `go/`.

`go/<module>/go.mod` and `go.sum` pin every source; builds are in the cache, under the hash
of the module's files and the build flags, so a second start builds nothing.
"""

import fcntl
import hashlib
import json
import logging
import os
import shutil
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import yaml

from kfp_tfjob.common.errors import ConfigurationError, Problem

log = logging.getLogger(__name__)

MODULES = Path(__file__).parent / "go"
KUBERNETES_VERSION = "v1.33.12"
OPERATOR_MODULE = "github.com/kubeflow/training-operator"
JOBSET_MODULE = "sigs.k8s.io/jobset"
KUEUE_MODULE = "sigs.k8s.io/kueue"

_GO_ENVIRONMENT = {
    "GOTOOLCHAIN": "local",
    "GOFLAGS": "-mod=readonly",
    "GOWORK": "off",
    "CGO_ENABLED": "0",  # the kubelet too: with C it would compile every package a second time
}
_AT_ONCE = 2  # modules: one is downloaded or linked, which takes one core, while one compiles
_GO_ERROR = 4000  # characters of the compiler's last words
# Without these the API server calls itself v0.0.0-master.
_KUBERNETES_FLAGS = " ".join(
    f"-X k8s.io/component-base/version.{name}={value}"
    for name, value in {
        "gitVersion": KUBERNETES_VERSION,
        "gitMajor": "1",
        "gitMinor": "33",
        "gitTreeState": "clean",
    }.items()
)


@dataclass(frozen=True)
class Program:
    """One program.

    Attributes:
        package: Go import path of its main package; `.` where the module has one of its own.
        ldflags: For the linker, beside leaving out debug symbols.
    """

    module: str
    package: str
    ldflags: str = ""


def _kubernetes(name: str) -> Program:
    return Program("kubernetes", f"k8s.io/kubernetes/cmd/{name}", _KUBERNETES_FLAGS)


PROGRAMS = {
    "etcd": Program("etcd", "go.etcd.io/etcd/server/v3"),
    "versitygw": Program("versitygw", "github.com/versity/versitygw/cmd/versitygw"),
    "kubectl": _kubernetes("kubectl"),
    "training-operator": Program(
        "training-operator", f"{OPERATOR_MODULE}/cmd/training-operator.v1"
    ),
    "jobset": Program("jobset", JOBSET_MODULE),
    "coredns": Program("coredns", "."),
    "kube-apiserver": _kubernetes("kube-apiserver"),
    "kube-controller-manager": _kubernetes("kube-controller-manager"),
    "kube-scheduler": _kubernetes("kube-scheduler"),
    "kubelet": _kubernetes("kubelet"),
    "kueue": Program("kueue", f"{KUEUE_MODULE}/cmd/kueue"),
}


# The module and the folder of the manifests of each controller.
_SHIPPED = {
    "training-operator": (OPERATOR_MODULE, "manifests/overlays/standalone"),
    "jobset": (JOBSET_MODULE, "config/default"),
    "kueue": (KUEUE_MODULE, "config/default"),
}
_KINDS = ("TFJob", "PyTorchJob", "JobSet")


def cache() -> Path:
    """Return the folder of everything that is made once, outside the repository."""
    named = os.environ.get("KFP_TFJOB_CACHE")
    return Path(named) if named else Path.home() / ".cache" / "kfp-tfjob"


def build() -> dict[str, Path]:
    """Build what is not in the cache.

    Returns:
        For each name of PROGRAMS the executable, and for `training-operator.json`, `jobset.json`
        and `kueue.json` the manifests of these controllers as one List each.

    Raises:
        ConfigurationError: There is no Go, or a build failed; with the compiler's last words.
    """
    made = {name: _folder(program) / name for name, program in PROGRAMS.items()}
    manifests = {f"{it}.json": _manifests(it) for it in _SHIPPED}
    cache().mkdir(parents=True, exist_ok=True)
    with open(cache() / "lock", "w") as lock, ThreadPoolExecutor(_AT_ONCE) as pool:
        fcntl.flock(lock, fcntl.LOCK_EX)
        modules: dict[str, list[str]] = {}
        for name in unbuilt():
            modules.setdefault(PROGRAMS[name].module, []).append(name)
        # The module with the most to do comes first, so that it does not end alone.
        by_size = sorted(modules.values(), key=len, reverse=True)
        list(pool.map(_build, by_size))
        for name, target in manifests.items():
            if not target.exists():
                _render(name.removesuffix(".json"), made["kubectl"], target)
    return made | manifests


def unbuilt() -> list[str]:
    """Return the names of the programs that `build` would build."""
    return [name for name, program in PROGRAMS.items() if not (_folder(program) / name).exists()]


def executable(name: str) -> Path:
    """Return one program, built if it is not in the cache."""
    path = _folder(PROGRAMS[name]) / name
    if not path.exists():
        _build([name])
    return path


def sources(module: str, *paths: str) -> dict[str, Path]:
    """Return the folder of the source of each Go module that a module in `go/` pins.

    Raises:
        ConfigurationError: There is no Go, or a module cannot be had.
    """
    said = _go(module, ["mod", "download", "-json", *paths])
    decoder, found, at = json.JSONDecoder(), {}, 0
    while at < len(said.rstrip()):
        item, at = decoder.raw_decode(said, at)
        found[item["Path"]] = Path(item["Dir"])
        at += len(said[at:]) - len(said[at:].lstrip())
    return found


def _manifests(name: str) -> Path:
    of_kinds = hashlib.sha256(" ".join(_KINDS).encode()).hexdigest()[:12]
    return _folder(PROGRAMS[name]) / f"{name}-{of_kinds}.json"


def _folder(program: Program) -> Path:
    pinned = MODULES / program.module
    digest = hashlib.sha256()
    for part in sorted(pinned.iterdir()):
        digest.update(part.read_bytes())
    digest.update(program.ldflags.encode())
    return cache() / f"{program.module}-{digest.hexdigest()[:12]}"


def _build(names: list[str]) -> None:
    """Build programs of one module: what they share is compiled once, and while others link."""
    began = time.monotonic()
    first = PROGRAMS[names[0]]
    folder = _folder(first)
    folder.mkdir(parents=True, exist_ok=True)
    flags = ["-trimpath", f"-ldflags=-s -w {first.ldflags}"]
    with tempfile.TemporaryDirectory(dir=folder) as partial:
        # Go names a program after its package, and one that is alone after the path it is given.
        output = f"{partial}/{names[0]}" if len(names) == 1 else f"{partial}/"
        packages = [PROGRAMS[name].package for name in names]
        _go(first.module, ["build", *flags, "-o", output, *packages])
        for name in names:
            (Path(partial) / name).replace(folder / name)
    log.info("built %s in %.0f s", ", ".join(names), time.monotonic() - began)


def _render(name: str, kubectl: Path, target: Path) -> None:
    """Render what a controller's module ships: RBAC, webhook configuration and our kinds' CRDs.

    The CRDs of the operator's other kinds are left out: they are megabytes, and seconds of every
    start. Kueue needs all of its own.
    """
    module, overlay = _SHIPPED[name]
    source = _go(name, ["list", "-m", "-f", "{{.Dir}}", module]).strip()
    rendered = subprocess.run(
        [kubectl, "kustomize", Path(source) / overlay], check=True, capture_output=True
    )
    kept = [
        manifest
        for manifest in yaml.safe_load_all(rendered.stdout)
        if manifest["kind"] != "CustomResourceDefinition"
        or manifest["spec"]["names"]["kind"] in _KINDS
        or manifest["spec"]["group"].endswith("kueue.x-k8s.io")
    ]
    target.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": kept}))


def _go(module: str, arguments: list[str | Path]) -> str:
    if not shutil.which("go"):
        raise ConfigurationError(
            Problem(
                "the test cluster is built from Go modules and there is no Go on this machine",
                expected="the command `go`, of the version in tests/cluster/go/*/go.mod or newer",
                fix="install it from https://go.dev/dl and put it on the PATH",
            )
        )
    done = subprocess.run(
        ["nice", "-n", "10", "go", *arguments],
        cwd=MODULES / module,
        env=os.environ | _GO_ENVIRONMENT,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise ConfigurationError(
            Problem(
                f"`go {arguments[0]}` failed for tests/cluster/go/{module}",
                received=done.stderr[-_GO_ERROR:].strip(),
                fix="Go must reach its module proxy, or have the modules in its cache",
            )
        )
    return done.stdout


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    build()
