"""A real Kubernetes with the training-operator on one host, without registry or container engine.

    with Cluster() as cluster:
        cluster.kubectl("get", "nodes")

    python -m tests.cluster.cluster     starts one to look at, until Ctrl-C

`python -m tests.cluster` starts one and runs the tests in several processes beside it. Each of them
attaches to it: whatever a process needs to stop or start a server is in the cluster's folder.

Every server is a process of this host, every file is below one folder, and all of it ends with
the cluster; what a killed session left is cleaned at the next start. Only the logs stay until then.
"""

import contextlib
import fcntl
import itertools
import logging
import os
import signal
import subprocess
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Self

import yaml

from kfp_tfjob.common.errors import ConfigurationError, Problem, StepError
from kfp_tfjob.jobs.objects import Object
from tests.cluster import (
    binaries,
    host,
    jobset_controller,
    node_images,
    prerequisites,
    seed,
    training_operator,
    workflows,
)
from tests.cluster.access import Access
from tests.cluster.control_plane import SERVER, ApiServer, controllers
from tests.cluster.jobset_controller import JobSetController
from tests.cluster.node import EXTRA, SCARCE, Node, clean_up
from tests.cluster.pki import Authority
from tests.cluster.processes import Process, end_marked, wait_until
from tests.cluster.training_operator import TrainingOperator
from tests.faults.versitygw import Versitygw

log = logging.getLogger(__name__)

GPU = "nvidia.com/gpu"
# One name whatever TMPDIR says: the next start must find what a killed one has left.
STATE = Path("/tmp/kfp-tfjob-cluster")
_LOCK = STATE.with_suffix(".lock")
_READY = STATE / "ready"
# Requests are kept small, but two cores of one node are few for tests side by side; what is about
# GPUs that do not suffice must not wait for the cores of other tests.
_TAINTS = ("", "", SCARCE)
SCARCE_NODE = f"node-{len(_TAINTS)}"
GPUS = 32  # of each node that has no taint: enough for all that runs side by side
_READY_SECONDS = 120
_STORE_PORT = 7070


class Cluster(Access):
    """Two nodes for all pods and one with scarce GPUs; `add_node` gives it more.

    There is at most one on a host.

    Attributes:
        authority: It signs the certificates of this cluster.
        objects: The S3 server that pods reach: stop, start, store, keys.
    """

    apiserver: ApiServer
    operator: TrainingOperator
    jobset: JobSetController
    objects: Versitygw

    def __init__(self) -> None:
        self.logs = STATE / "logs"
        self.nodes: dict[str, Node] = {}
        self._controllers: list[Process] = []
        self._lock: IO[str] | None = None

    @classmethod
    def attached(cls) -> Self | None:
        """Return the cluster that another process has started on this host, if there is one."""
        if not (_READY.exists() and _is_locked()):
            return None
        found = cls()
        found._describe(binaries.build())
        return found

    def __enter__(self) -> Self:
        """Start everything, and wait until a TFJob can be created and its pods run.

        Raises:
            ConfigurationError: Something is missing on this host, or it has such a cluster already.
            StepError: A server did not start; with the end of its log.
        """
        self._take_lock()
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        log.info("the test cluster is ready")
        return self

    def __exit__(self, *_: object) -> None:
        """End every process, and leave nothing but the logs."""
        _clean()
        if self._lock is not None:
            self._lock.close()

    def program(self, name: str) -> Path:
        return Path(self._programs[name])

    def kubectl(self, *arguments: str | Path, stdin: str | None = None) -> str:
        """Run kubectl as the administrator; return what it printed."""
        done = subprocess.run(
            [self._programs["kubectl"], f"--kubeconfig={self.kubeconfig}", *arguments],
            input=stdin,
            env=os.environ | {"KUBECACHEDIR": str(STATE / "kubectl")},
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise StepError(Problem(f"kubectl {arguments[0]} failed", received=done.stderr.strip()))
        return done.stdout

    def rendered(self, folder: Path, namespace: str) -> list[Object]:
        """Return the objects of a folder as kubectl renders them, in a namespace that is there."""
        found = list(yaml.safe_load_all(self.kubectl("kustomize", folder)))
        for item in found:
            if "namespace" in item["metadata"]:  # not of the whole cluster
                item["metadata"]["namespace"] = namespace
        return found

    def apply(self, objects: list[Object], *options: str) -> str:
        how = ("--server-side", "--validate=strict", *options, "-f", "-")
        return self.kubectl("apply", *how, stdin=yaml.safe_dump_all(objects))

    def fake_gpus(self, count: int, node: str = SCARCE_NODE, resource: str = GPU) -> None:
        """Give a node GPUs that only the scheduler believes in, and wait until they count.

        Args:
            count: 0 takes them away. Pods that hold some keep running.
            node: Its name; else that for pods which tolerate the taint SCARCE. A kubelet that
                starts again forgets its GPUs.
            resource: Their name; one of its own for a test in which they are scarce.
        """
        field = resource.replace("/", "~1")
        self.core.patch_node_status(
            node,
            [
                {"op": "add", "path": f"/status/{part}/{field}", "value": str(count)}
                for part in ("capacity", "allocatable")
            ],
        )

        def counted() -> bool:
            status = self.core.read_node(node).status
            return status.capacity[resource] == status.allocatable[resource] == str(count)

        if not wait_until(counted, _READY_SECONDS):
            raise TimeoutError(f"{node} does not show {count} {resource}")

    def picture(self, namespace: str) -> str:
        """Return what there is in a namespace and what was said of it, for a test that fails."""
        there = self.kubectl("get", "tfjobs,jobsets,jobs,pods", "-n", namespace, "-o", "wide")
        said = self.kubectl("get", "events", "-n", namespace, "--sort-by=.lastTimestamp")
        return f"{there}\n{said}"

    def add_node(self) -> Node:
        """Start one more node on this host, with its own runtime and kubelet, and wait for it.

        It takes only pods that tolerate the taint EXTRA of this node: it comes and goes, and other
        tests run, some with such a node too.
        """
        node = self._new_node(EXTRA)
        node.start_runtime()
        node.start_kubelet()
        self._wait_for_node(node)
        return node

    def store_server(self, folder: str, port: int = 0) -> Versitygw:
        """Return an S3 server that pods reach, with its data in a folder of the cluster."""
        program, address = self._programs["versitygw"], host.BRIDGE_ADDRESS
        return Versitygw(program, STATE / folder, address, port, self.logs)

    def remove_node(self, node: Node) -> None:
        node.kill()
        self.core.delete_node(node.name)
        host.remove_address(node.address)
        host.remove(STATE / node.name)
        del self.nodes[node.name]

    def storage_secret(self, namespace: str, store: Versitygw | None = None) -> None:
        """Make the Secret with the address and keys of an S3 server: the cluster's, or a test's."""
        keys = (store or self.objects).keys
        body = {"metadata": {"name": "objstore-cred"}, "stringData": keys}
        self.core.create_namespaced_secret(namespace, body)

    def _start(self) -> None:
        programs = make_everything()
        _clean()
        host.remove(self.logs)
        self.logs.mkdir(parents=True)
        host.take(STATE)
        self._describe(programs)
        nodes = [self._new_node(taint) for taint in _TAINTS]
        with ThreadPoolExecutor() as pool:
            runtimes = [pool.submit(node.start_runtime) for node in nodes]
            self.apiserver.start()
            for process in self._controllers:
                process.start()
            self.objects.start()
            for node, runtime in zip(nodes, runtimes, strict=True):
                runtime.result()
                node.start_kubelet()
        manifests = training_operator.manifests(programs["training-operator.json"])
        self.kubectl("apply", "--server-side", "-f", "-", stdin=manifests)
        self.kubectl("apply", "-f", "-", stdin=workflows.definition())
        shipped = jobset_controller.manifests(programs["jobset.json"], self.authority)
        self.kubectl("apply", "--server-side", "-f", "-", stdin=shipped)
        self.operator.start()
        self.jobset.start()
        for node in nodes:
            self._wait_for_node(node)
            if node.name != SCARCE_NODE:
                self.fake_gpus(GPUS, node.name)
        _READY.touch()

    def _describe(self, programs: Mapping[str, Path]) -> None:
        """Make the objects that stand for the servers and nodes; starts nothing."""
        self._programs = programs
        self.authority = Authority(STATE / "pki")
        common = (programs, STATE, self.logs)
        self.apiserver = ApiServer(*common, self.authority)
        self._controllers = controllers(*common, self.authority)
        self.objects = self.store_server("objects", _STORE_PORT)
        self.operator = TrainingOperator(*common, self.authority, lambda: self.api)
        self.jobset = JobSetController(*common, self.authority)
        admin = "/O=system:masters/CN=admin"
        super().__init__(self.authority.kubeconfig("admin", admin, SERVER))
        for number in range(1, len(_TAINTS) + 1):
            if (STATE / f"node-{number}").exists():
                node = Node(number, *common, self.authority)
                self.nodes[node.name] = node

    def _new_node(self, taint: str = "") -> Node:
        """Take the next number; other processes may do so at the same time."""
        for number in itertools.count(1):
            try:
                (STATE / f"node-{number}").mkdir()
            except FileExistsError:
                continue
            break
        node = Node(number, self._programs, STATE, self.logs, self.authority, taint)
        if node.address != host.BRIDGE_ADDRESS:
            host.add_address(node.address)
        self.nodes[node.name] = node
        return node

    def _empty(self, namespace: str) -> None:
        pods = self.core.list_namespaced_pod(namespace).items
        super()._empty(namespace)
        # A pod that was already ending keeps its long grace period, forced deletion or not.
        for pod in pods:
            for node in self.nodes.values():
                node.kill_pod(pod.metadata.uid)

    def _wait_for_node(self, node: Node) -> None:
        if not wait_until(lambda: self.node_is_ready(node.name), _READY_SECONDS):
            raise StepError(
                Problem(f"{node.name} is not Ready", fix=f"look at {self.logs}/kubelet-*.log")
            )

    def _take_lock(self) -> None:
        self._lock = open(_LOCK, "w")  # noqa: SIM115 - held until stop
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            self._lock = None
            raise ConfigurationError(
                Problem(
                    "another test cluster runs on this host, with the same addresses",
                    fix="wait until it has ended",
                )
            ) from None


def make_everything() -> Mapping[str, Path]:
    """Install, build and make whatever is not there yet; return what `binaries.build` does.

    Raises:
        ConfigurationError: Something is missing on this host, or cannot be had.
    """
    ConfigurationError.raise_if(prerequisites.missing())
    host.install()
    with ThreadPoolExecutor() as pool:
        built = pool.submit(node_images.build)
        programs = binaries.build()
        built.result()
    seed.make()
    return programs


def _is_locked() -> bool:
    with open(_LOCK, "a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def _clean() -> None:
    """End and remove what a cluster has on this host, be it this one or one that was killed."""
    end_marked(STATE)
    for folder in STATE.glob("node-*"):
        clean_up(folder)
    host.give_back(STATE)
    training_operator.remove_certificates()
    host.unmount(STATE)
    for path in STATE.glob("*"):
        if path.name != "logs":
            host.remove(path) if path.is_dir() else path.unlink()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    with Cluster() as started, contextlib.suppress(KeyboardInterrupt):
        print(f"export KUBECONFIG={started.kubeconfig}")
        signal.pause()
