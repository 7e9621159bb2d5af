"""A real Kubernetes with the training-operator on one host, without registry or container engine.

    with Cluster() as cluster:
        cluster.kubectl("get", "nodes")

    python -m tests.cluster.cluster     starts one to look at, until Ctrl-C

Every server is a process of this host, every file lies below one folder, and all of it ends with
the cluster; what a killed session left is cleaned at the next start. Only the logs stay until then.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import logging
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from storage.errors import ConfigurationError, Problem, StepError
from tests.cluster import binaries, host, images, training_operator
from tests.cluster.access import Access
from tests.cluster.control_plane import SERVER, ApiServer, controllers
from tests.cluster.node import Node, clean_up
from tests.cluster.object_store import ObjectStore
from tests.cluster.pki import Authority
from tests.cluster.processes import Process, end_marked, wait_until
from tests.cluster.training_operator import TrainingOperator

log = logging.getLogger(__name__)

GPU = "nvidia.com/gpu"
_STATE = Path(tempfile.gettempdir()) / "kfp-tfjob-cluster"
_READY_SECONDS = 60


class Cluster(Access):
    """A cluster of one node, node-1; `add_node` gives it more. There is at most one on a host.

    Attributes:
        logs: A file for each server.
        phases: Seconds that each part of the start took; after `start`.
        apiserver: stop, start, restart.
        operator: stop, start.
        objects: The S3 server that pods reach: stop, start, client, secret.
        nodes: By name; freeze, thaw, kill, kill_pod, load_image.
    """

    apiserver: ApiServer
    operator: TrainingOperator
    objects: ObjectStore

    def __init__(self) -> None:
        self.logs = _STATE / "logs"
        self.phases: dict[str, float] = {}
        self.nodes: dict[str, Node] = {}
        self._numbers = itertools.count(1)
        self._controllers: list[Process] = []
        self._lock = None

    def start(self) -> None:
        """Start everything and wait until a TFJob can be created and its pods run.

        Raises:
            ConfigurationError: Something is missing on this host, or it has such a cluster already.
            StepError: A server did not start; with the end of its log.
        """
        self._take_lock()
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        log.info(
            "test cluster ready after %.1f s: %s",
            sum(self.phases.values()),
            ", ".join(f"{name} {seconds:.1f}" for name, seconds in self.phases.items()),
        )

    def stop(self) -> None:
        """End every process, and leave nothing but the logs."""
        _clean()
        if self._lock is not None:
            self._lock.close()

    def __enter__(self) -> Cluster:
        """Start, and return the cluster."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop."""
        self.stop()

    def kubectl(self, *arguments: str | Path, stdin: str | None = None) -> str:
        """Run kubectl as the administrator.

        Args:
            *arguments: Its arguments.
            stdin: For `-f -`.

        Returns:
            What it printed.

        Raises:
            StepError: It failed; with its message.
        """
        done = subprocess.run(
            [self._programs["kubectl"], f"--kubeconfig={self.kubeconfig}", *arguments],
            input=stdin,
            env=os.environ | {"KUBECACHEDIR": str(_STATE / "kubectl")},
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise StepError(Problem(f"kubectl {arguments[0]} failed", received=done.stderr.strip()))
        return done.stdout

    def fake_gpus(self, count: int, node: str = "node-1") -> None:
        """Give a node GPUs that only the scheduler believes in, and wait until they count.

        Args:
            count: 0 takes them away. Pods that hold some keep running.
            node: Its name. A kubelet that starts again forgets them.
        """
        field = GPU.replace("/", "~1")
        self.core.patch_node_status(
            node,
            [
                {"op": "add", "path": f"/status/{part}/{field}", "value": str(count)}
                for part in ("capacity", "allocatable")
            ],
        )

        def counted() -> bool:
            status = self.core.read_node(node).status
            return status.capacity[GPU] == status.allocatable[GPU] == str(count)

        if not wait_until(counted, _READY_SECONDS):
            raise TimeoutError(f"{node} does not show {count} GPUs")

    def add_node(self) -> Node:
        """Start one more node on this host, with its own runtime and kubelet, and wait for it."""
        number = next(self._numbers)
        node = Node(number, self._programs, _STATE, self.logs, self._authority)
        host.add_address(node.address)
        self.nodes[node.name] = node
        node.start_runtime()
        node.start_kubelet()
        self._wait_for_node(node)
        return node

    def remove_node(self, node: Node) -> None:
        """Kill a node, its pods with it, and forget it."""
        node.kill()
        self.core.delete_node(node.name)
        host.remove_address(node.address)
        host.remove(_STATE / node.name)
        del self.nodes[node.name]

    def load_image(self, archive: Path) -> None:
        """Import the images of a docker-archive on every node."""
        for node in self.nodes.values():
            node.load_image(archive)

    def storage_secret(self, namespace: str, name: str = "objstore-cred") -> None:
        """Make the Secret with the address and keys of the S3 server."""
        body = {"metadata": {"name": name}, "stringData": self.objects.secret}
        self.core.create_namespaced_secret(namespace, body)

    def _start(self) -> None:
        with self._phase("programs"):
            host.require()
            self._programs = binaries.build()
            images.archive()
        with self._phase("host"):
            _clean()
            host.remove(self.logs)
            self.logs.mkdir(parents=True)
            host.take(_STATE)
            self._authority = Authority(_STATE / "pki")
        node = Node(next(self._numbers), self._programs, _STATE, self.logs, self._authority)
        self.nodes[node.name] = node
        common = (self._programs, _STATE, self.logs)
        with ThreadPoolExecutor() as pool:
            runtime = pool.submit(node.start_runtime)
            with self._phase("API server"):
                self.apiserver = ApiServer(*common, self._authority)
                self.apiserver.start()
                admin = "/O=system:masters/CN=admin"
                super().__init__(self._authority.kubeconfig("admin", admin, SERVER))
            with self._phase("controllers"):
                self._controllers = controllers(*common, self._authority)
                for process in self._controllers:
                    process.start()
                self.objects = ObjectStore(*common)
                self.objects.start()
            with self._phase("images"):
                runtime.result()
                node.start_kubelet()
        with self._phase("operator"):
            rendered = self._programs["training-operator.json"]
            manifests = training_operator.manifests(rendered)
            self.kubectl("apply", "--server-side", "-f", "-", stdin=manifests)
            self.operator = TrainingOperator(*common, self._authority, self.api)
            self.operator.start()
        with self._phase("node"):
            self._wait_for_node(node)

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

    @contextlib.contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.phases[name] = time.monotonic() - began

    def _take_lock(self) -> None:
        self._lock = open(_STATE.with_suffix(".lock"), "w")  # noqa: SIM115 - held until stop
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigurationError(
                Problem(
                    "another test cluster runs on this host, with the same addresses",
                    fix="wait until it has ended, or set KUBECONFIG to a cluster",
                )
            ) from None


def _clean() -> None:
    """End and remove what a cluster has on this host, be it this one or one that was killed."""
    end_marked(_STATE)
    for folder in _STATE.glob("node-*"):
        clean_up(folder)
    host.give_back(_STATE)
    training_operator.remove_certificates()
    host.unmount(_STATE)
    for path in _STATE.glob("*"):
        if path.name != "logs":
            host.remove(path) if path.is_dir() else path.unlink()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    with Cluster() as started, contextlib.suppress(KeyboardInterrupt):
        print(f"export KUBECONFIG={started.kubeconfig}")
        signal.pause()
