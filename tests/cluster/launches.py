"""Launches on the test cluster: one-second programs, limits of seconds, and what became of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml
from kubernetes import config
from kubernetes.client import Configuration
from kubernetes.client.exceptions import ApiException

from components import images
from components.launch_tfjob import launcher
from components.launch_tfjob.backends.cluster_client import PATIENCE, ClusterClient
from components.launch_tfjob.backends.kubernetes import KubernetesBackend
from components.launch_tfjob.launcher import Launched
from components.launch_tfjob.spec import JobSpec
from components.step import Step
from storage.credentials import SecretVolume
from storage.errors import StepError
from storage.layout import Layout
from storage.retry import Patience
from storage.store import Store
from tests.cluster.cluster import GPU, Cluster
from tests.cluster.processes import wait_until

ROOT = Path(__file__).parents[2]
BUCKET = "launches"
GPUS = 8  # of node-1 while launches are tested
_FREED_SECONDS = 60
SECONDS = 120.0  # of one launch on a machine that is busy; an idle one needs a tenth
# What a chief leaves; then, and in every other replica, BODY.
_PROGRAM = """
import json, os, pathlib, signal, sys, time
config = json.loads(os.environ.get("TF_CONFIG") or "{}")
task = config.get("task", {"type": "chief", "index": 0})
me, attempt = f"{task['type']}-{task['index']}", int(os.environ["ATTEMPT"])
output = pathlib.Path(os.environ["OUTPUT_DIR"])
if me == "chief-0":
    (output / "model").mkdir(parents=True, exist_ok=True)
    (output / "model/weights.bin").write_bytes(b"w" * 1000)
print("hello from", me, "attempt", attempt, flush=True)
"""
# Every limit in seconds, so that a test that waits for one does not wait long.
LIMITS = {
    "backoff_seconds": 0,
    "operator_timeout_seconds": 8,
    "pending_timeout_seconds": 60,
    "partly_placed_seconds": 4,
    "image_pull_timeout_seconds": 3,
    "stall_timeout_seconds": 60,
    "orphan_timeout_seconds": 600,
    "api_timeout_seconds": 60,
    "store_deadline_seconds": 60,
    "deadline_seconds": 300,
}
SMALL = {
    "cpu": "50m",
    "memory": "256Mi",
    "ephemeral_storage": "200Mi",
    "shared_memory": "16Mi",
    "grace_seconds": 20,
}


@dataclass(frozen=True)
class Ended:
    """How a launcher ended.

    Attributes:
        verdict: `succeeded`, or that of failure.json.
        code: The exit code of the step.
        message: Of the error.
        launched: What was trained.
    """

    verdict: str
    code: int
    message: str = ""
    launched: Launched | None = None


@dataclass
class Launch:
    """One run in a namespace, by a service account with the rights of deploy/rbac.yaml.

    Attributes:
        cluster: Where.
        namespace: Of this test.
        kubeconfig: Of the service account.
        step: The run and its store.
    """

    cluster: Cluster
    namespace: str
    kubeconfig: Path
    step: Step
    ended: Ended | None = None
    backends: list[KubernetesBackend] = field(default_factory=list)
    _thread: threading.Thread | None = None

    def spec(
        self,
        body: str = "",
        workers: int = 0,
        gpus: int = 0,
        pod: Mapping[str, Any] | None = None,
        image: str = "",
        batch: int | None = None,
        **options: Any,
    ) -> JobSpec:
        """Return a spec whose program is `body`, run in every replica."""
        settings = {key: dict(value) for key, value in (pod or {}).items()}
        settings["all"] = SMALL | settings.get("all", {})
        program = ["python3", "-c", _PROGRAM.replace("$", "$$") + body]
        command = {"command": program, "stage_data": False}
        values = self.parameters(settings, workers, gpus, command | LIMITS | options, batch)
        return JobSpec.parse(**values | ({"train_image": image} if image else {}))

    def parameters(
        self,
        pod: Mapping[str, Any],
        workers: int,
        gpus: int,
        options: Mapping[str, Any],
        batch: int | None = None,
    ) -> dict[str, Any]:
        """Return the arguments of JobSpec.parse."""
        return {
            "output_uri": str(self.step.layout.root),
            "storage_endpoint": self.cluster.objects.secret["AWS_ENDPOINT_URL"],
            "storage_region": "us-east-1",
            "storage_secret": "objstore-cred",
            "dataset_uri": str(self.step.layout.dataset("d")),
            "model_name": "test",
            "model_entry": "trainer.models:mlp",
            "model_hyperparameters": {},
            "train_workers": workers,
            "train_gpus": gpus,
            "train_epochs": 1,
            "train_batch_size": batch or 12 * (1 + workers) * max(gpus, 1),
            "train_image": images.TRAINER,
            "train_options": dict(options),
            "pod": dict(pod),
        }

    def backend(self, kubeconfig: Path | None = None) -> KubernetesBackend:
        """Return a back end of the service account."""
        found = KubernetesBackend(client_of(kubeconfig or self.kubeconfig, self.namespace), 6)
        self.backends.append(found)
        return found

    def start(
        self, spec: JobSpec, backend: KubernetesBackend | None = None, **fields: Any
    ) -> Launch:
        """Launch in a thread; `join` returns how it ended."""
        backend = backend or self.backend()

        def run() -> None:
            try:
                started = launcher.Launcher(self.step, spec, backend, **fields)
                self.ended = Ended("succeeded", 0, launched=started.run())
            except StepError as error:
                self.ended = Ended(str(error.verdict), error.code, str(error))

        self.ended = None
        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()
        return self

    def start_process(self, spec_body: str = "", **arguments: Any) -> subprocess.Popen[bytes]:
        """Launch in a process of its own, which a test may kill; arguments as of `spec`."""
        values = {"body": spec_body, **arguments}
        code = (
            "import json, sys; from tests.cluster import launches;"
            " launches.launch_as_process(json.loads(sys.argv[1]))"
        )
        settings = {
            "namespace": self.namespace,
            "kubeconfig": str(self.kubeconfig),
            "run_id": self.step.run_id,
            "output_uri": str(self.step.layout.root),
            "secret": self.cluster.objects.secret,
            "spec": values,
        }
        return subprocess.Popen(
            [sys.executable, "-c", code, json.dumps(settings)],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=subprocess.DEVNULL,
        )

    def join(self, seconds: float = SECONDS) -> Ended:
        """Wait until the launcher has ended."""
        assert self._thread is not None
        self._thread.join(seconds)
        assert self.ended, f"the launcher still runs; the cluster has {self.picture()}"
        return self.ended

    def run(self, spec: JobSpec, **fields: Any) -> Ended:
        """Launch, and wait until the launcher has ended."""
        return self.start(spec, **fields).join()

    def name(self, attempt: int = 1) -> str:
        """Return the name of a job."""
        return f"tfjob-{self.step.run_id}-{attempt}"

    def jobs(self) -> list[str]:
        """Return the names of the TFJobs that are there."""
        path = ("kubeflow.org", "v1", self.namespace, "tfjobs")
        items = self.cluster.custom.list_namespaced_custom_object(*path)["items"]
        return sorted(item["metadata"]["name"] for item in items)

    def gpus_held(self) -> int:
        """Return the GPUs of pods that have a node and have not ended."""
        pods = self.cluster.core.list_namespaced_pod(self.namespace).items
        return sum(
            int((container.resources.requests or {}).get(GPU, 0))
            for pod in pods
            if pod.spec.node_name and pod.status.phase in ("Pending", "Running")
            for container in pod.spec.containers
        )

    def phase(self, replica: str = "chief-0", attempt: int = 1) -> str:
        """Return the phase of a pod, or nothing."""
        name = f"{self.name(attempt)}-{replica}"
        for pod in self.cluster.core.list_namespaced_pod(self.namespace).items:
            if pod.metadata.name == name:
                return pod.status.phase
        return ""

    def said(self, words: str, replica: str = "chief-0", attempt: int = 1) -> bool:
        """Tell whether the program of a replica has said something."""
        try:
            log = self.cluster.core.read_namespaced_pod_log(
                f"{self.name(attempt)}-{replica}", self.namespace, container="tensorflow"
            )
        except ApiException:
            return False
        return words in log

    def wait_for(self, true: Callable[[], object], seconds: float = SECONDS) -> None:
        """Wait for something to become true."""
        assert wait_until(true, seconds), (self.ended, self.picture())

    def wait_said(self, words: str = "hello", replica: str = "chief-0", attempt: int = 1) -> None:
        """Wait until the program of a replica has said something."""
        self.wait_for(lambda: self.said(words, replica, attempt))

    def picture(self) -> str:
        """Return what there is in the namespace, for a test that fails."""
        return self.cluster.kubectl("get", "tfjobs,pods", "-n", self.namespace, "-o", "wide")

    def close(self) -> None:
        """Let go of every watch."""
        for backend in self.backends:
            backend.close()
        self.kubeconfig.unlink(missing_ok=True)


def check(
    launch: Launch, table: list[tuple[str, str, int, int, int]], name: str
) -> Callable[..., None]:
    """Return a function that checks how a launch ended, and adds it to the table of faults."""

    def ended(verdict: str, code: int, jobs: int, gpus: int = 0) -> None:
        assert launch.ended is not None
        found = (launch.ended.verdict, launch.ended.code)
        assert found == (verdict, code), launch.ended.message
        assert wait_until(lambda: launch.gpus_held() == gpus, _FREED_SECONDS), launch.picture()
        # The job of a node that is gone goes when its pods are collected with the node.
        assert wait_until(lambda: len(launch.jobs()) == jobs, _FREED_SECONDS), launch.picture()
        row = (name.removeprefix("test_").replace("_", " "), verdict, code)
        table.append((*row, len(launch.jobs()), launch.gpus_held()))

    return ended


def launch_as_process(settings: Mapping[str, Any]) -> None:
    """Do what a step's process does; the other half of `Launch.start_process`."""
    from types import SimpleNamespace

    with tempfile.TemporaryDirectory() as folder:
        for name, value in settings["secret"].items():
            Path(folder, name).write_text(value)
        store = Store(secret=SecretVolume(Path(folder)))
        layout = Layout.parse(settings["output_uri"])
        step = Step("launch_tfjob", settings["run_id"], layout, store)
        objects = SimpleNamespace(secret=settings["secret"])
        cluster: Any = SimpleNamespace(objects=objects)
        found = Launch(cluster, settings["namespace"], Path(settings["kubeconfig"]), step)
        launcher.Launcher(step, found.spec(**settings["spec"]), found.backend()).run()


def client_of(kubeconfig: Path, namespace: str, seconds: float = 60) -> ClusterClient:
    """Return the client of a kubeconfig for a namespace."""
    found = Configuration()
    config.load_kube_config(str(kubeconfig), client_configuration=found)
    return ClusterClient(found, namespace, replace(PATIENCE, seconds=seconds))


def rules() -> list[dict[str, Any]]:
    """Return the rights of deploy/rbac.yaml."""
    return yaml.safe_load((ROOT / "deploy/rbac.yaml").read_text())["rules"]


def new_launch(cluster: Cluster, namespace: str, store: Store) -> Launch:
    """Return a new run in a namespace."""
    cluster.storage_secret(namespace)
    kubeconfig = cluster.kubeconfig_for(namespace, "runner", rules())
    run_id = uuid.uuid4().hex[:8]
    layout = Layout.parse(f"s3://{BUCKET}/{namespace}")
    step = Step("launch_tfjob", f"r{run_id}", layout, store)
    return Launch(cluster, namespace, kubeconfig, step)


def store_of(cluster: Cluster, folder: Path) -> Iterator[Store]:
    """Yield a store on the S3 server of the cluster, for this process and those it starts."""
    for name, value in cluster.objects.secret.items():
        (folder / name).write_text(value)
    cluster.objects.make_bucket(BUCKET)
    yield Store(secret=SecretVolume(folder), patience=Patience(30))
