"""Launches on the test cluster: one-second programs, limits of seconds, and their outcomes."""

import contextlib
import json
import logging
import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import psutil
import pytest
import yaml
from kubernetes import client, config
from kubernetes.client import Configuration
from kubernetes.client.exceptions import ApiException

from kfp_tfjob.cluster import log_writer
from kfp_tfjob.cluster.client import PATIENCE, ClusterClient, connect
from kfp_tfjob.cluster.kubernetes import KubernetesBackend
from kfp_tfjob.cluster.log_writer import RunLogs
from kfp_tfjob.common.errors import StepError
from kfp_tfjob.components.launch_tfjob import engine, launch_context
from kfp_tfjob.components.launch_tfjob.engine import Launched
from kfp_tfjob.components.step import Step
from kfp_tfjob.jobs.jobset import JOBSET
from kfp_tfjob.jobs.kind import JobKind
from kfp_tfjob.jobs.kinds import kind_named
from kfp_tfjob.jobs.spec import JobSpec
from kfp_tfjob.jobs.tfjob import TFJOB
from kfp_tfjob.options import container_images
from kfp_tfjob.storage.credentials import SecretVolume
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.store import Store
from tests.cluster import workloads
from tests.cluster.cluster import Cluster
from tests.cluster.processes import kill, wait_until
from tests.cluster.workflows import Workflow
from tests.faults.versitygw import Versitygw
from tests.local import tiny_dataset

ROOT = Path(__file__).parents[2]
BUCKET = "launches"
_FREED_SECONDS = 120
SECONDS = 300.0  # of one launch on a machine that is busy; an idle one needs a twentieth
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
# A body of attempt 1 that ends when the test says so; see `Launch.go`.
UNTIL_GO = "while attempt == 1 and not pathlib.Path('/tmp/go').exists(): time.sleep(0.1)"
# None is reached on a machine that is merely slow; a test that is about one sets it to seconds.
LIMITS = {
    "backoff_seconds": 0,
    "operator_timeout_seconds": 120,
    "pending_timeout_seconds": 120,
    "partly_placed_seconds": 60,
    "image_pull_timeout_seconds": 3,
    "stall_timeout_seconds": 120,
    "orphan_timeout_seconds": 600,
    "api_timeout_seconds": 120,
    "store_deadline_seconds": 120,
    "deadline_seconds": 600,
}
OPERATOR_SECONDS = 60  # that the webhook may be down when a job is created
SMALL = {
    "cpu": "50m",
    "memory": "256Mi",
    "ephemeral_storage": "200Mi",
    "shared_memory": "16Mi",
    "grace_seconds": 20,
}

LARGE = {"cpu": "200m", "memory": "1500Mi", "ephemeral_storage": "500Mi", "shared_memory": "64Mi"}


@dataclass(frozen=True)
class Ended:
    verdict: str
    code: int
    message: str = ""
    launched: Launched | None = None


@dataclass
class Launch:
    """One run in a namespace, by a service account with the rights of deploy/base."""

    cluster: Cluster
    namespace: str
    kubeconfig: Path
    step: Step
    objects: Versitygw
    kind: JobKind = TFJOB
    ended: Ended | None = None
    backends: list[KubernetesBackend] = field(default_factory=list)
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
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
        command = {"command": program, "stage_data": False, "job": self.kind.name.lower()}
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
        return {
            "output_uri": str(self.step.layout.root),
            "storage_endpoint": self.step.store.endpoint,
            "storage_region": "us-east-1",
            "storage_secret": "objstore-cred",
            "dataset_uri": str(self.step.layout.dataset("d")),
            "model_name": "test",
            "model_entry": "kfp_tfjob.trainer.models:mlp",
            "model_hyperparameters": {},
            "train_workers": workers,
            "train_gpus": gpus,
            "train_epochs": 1,
            "train_batch_size": batch or 12 * (1 + workers) * max(gpus, 1),
            "train_image": container_images.TRAINER,
            "train_options": dict(options),
            "pod": dict(pod),
        }

    def send_dataset(self, folder: Path) -> str:
        """Store the tiny dataset, which `parameters` names; return its address."""
        address = self.step.layout.dataset("d")
        return str(tiny_dataset.send(self.step.store, tiny_dataset.write(folder), address))

    def backend(
        self, kubeconfig: Path | None = None, operator_seconds: float = OPERATOR_SECONDS
    ) -> KubernetesBackend:
        api = client_of(kubeconfig or self.kubeconfig, self.namespace).of(self.kind)
        found = KubernetesBackend(api, operator_seconds)
        self.backends.append(found)
        return found

    def start(self, spec: JobSpec, backend: KubernetesBackend | None = None, **fields: Any) -> Self:
        """Launch in a thread; `join` returns how it ended."""
        backend = backend or self.backend()

        def run() -> None:
            try:
                wanted = launch_context.Launch(self.step, spec, backend, **fields)
                self.ended = Ended("succeeded", 0, launched=engine.Launcher(wanted).train())
            except StepError as error:
                self.ended = Ended(str(error.verdict), error.code, str(error))

        self.ended = None
        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()
        return self

    def start_process(self, spec_body: str = "", **arguments: Any) -> subprocess.Popen[bytes]:
        """Launch in a process of its own, which a test may kill; arguments as of `spec`."""
        code = (
            "import json, sys; from tests.cluster import launches;"
            " launches.launch_as_process(json.loads(sys.argv[1]))"
        )
        settings = {
            "namespace": self.namespace,
            "kubeconfig": str(self.kubeconfig),
            "run_id": self.step.run_id,
            "output_uri": str(self.step.layout.root),
            "task_key": self.step.task_key,
            "secret": str(self.objects.secret),
            "spec": {"body": spec_body, **arguments},
            "kind": self.kind.name,
        }
        process = subprocess.Popen(
            [sys.executable, "-c", code, json.dumps(settings)],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=subprocess.DEVNULL,
        )
        self.processes.append(process)
        return process

    def be_step_of(self, workflow: Workflow, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
        """Make this process, and those it starts, the step of a Workflow; return the reference."""
        reference = workflow.reference() | {"controller": True, "blockOwnerDeletion": True}
        body = workloads.pod(
            "step", workloads.container(""), nodeSelector={"kubernetes.io/hostname": "nowhere"}
        )
        body["metadata"] = {"name": "step", "ownerReferences": [reference]}
        self.cluster.core.create_namespaced_pod(self.namespace, body)
        monkeypatch.setenv("KFP_POD_NAME", "step")
        return reference

    def join(self, seconds: float = SECONDS) -> Ended:
        assert self._thread is not None
        self._thread.join(seconds)
        assert self.ended, f"the launcher still runs; the cluster has {self.picture()}"
        return self.ended

    def end_record(self) -> dict[str, Any]:
        """Return what is stored of the end of attempt 1."""
        return json.loads(self.step.store.read(self.step.run.attempts / "0001.end.json"))

    def ended_with(self, verdict: str, code: int, jobs: int) -> None:
        assert self.ended is not None
        assert (self.ended.verdict, self.ended.code) == (verdict, code), self.ended.message
        self.has_left(jobs)

    def has_left(self, jobs: int) -> None:
        """Check that the launch has left so many jobs, and holds no GPUs."""
        assert wait_until(lambda: not self.gpus_held(), _FREED_SECONDS), self.picture()
        assert wait_until(lambda: len(self.jobs()) == jobs, _FREED_SECONDS), self.picture()

    def succeeds(self, attempts: int = 1) -> None:
        """Wait until the launch has succeeded, after so many attempts."""
        ended = self.join()
        self.ended_with("succeeded", 0, jobs=1)
        assert ended.launched and ended.launched.attempts == attempts

    def run(self, spec: JobSpec, **fields: Any) -> Ended:
        return self.start(spec, **fields).join()

    def name(self, attempt: int = 1) -> str:
        task = f"-{self.step.task_key}" if self.step.task_key else ""
        return f"{self.kind.prefix}-{self.step.run_id}{task}-{attempt}"

    def pod(self, replica: str = "chief-0", attempt: int = 1) -> str:
        """Return the name of a pod, or the known part of it if there is no such pod."""
        role, index = replica.split("-")
        name = self.kind.pod_name(self.name(attempt), role, int(index))
        pods = self.cluster.core.list_namespaced_pod(self.namespace).items
        names = [pod.metadata.name for pod in pods]
        return next((it for it in names if it == name or it.startswith(f"{name}-")), name)

    def task(self, key: str) -> Self:
        return replace(self, step=replace(self.step, task_key=key))

    @property
    def place(self) -> tuple[str, str, str, str]:
        """What the API of custom objects knows jobs by."""
        return self.kind.group, self.kind.version, self.namespace, self.kind.plural

    def jobs(self) -> list[str]:
        items = self.cluster.custom.list_namespaced_custom_object(*self.place)["items"]
        return sorted(item["metadata"]["name"] for item in items)

    def gpus_held(self) -> int:
        """Return the GPUs of pods that have a node and have not ended."""
        pods = self.cluster.core.list_namespaced_pod(self.namespace).items
        return sum(
            int(count)
            for pod in pods
            if pod.spec.node_name and pod.status.phase in ("Pending", "Running")
            for container in pod.spec.containers
            for name, count in (container.resources.requests or {}).items()
            if name.endswith("/gpu")
        )

    def go(self, replica: str = "chief-0") -> None:
        """Let the program UNTIL_GO of attempt 1 end."""
        pod = (self.pod(replica), "-n", self.namespace, "-c", self.kind.container)
        self.cluster.kubectl("exec", *pod, "--", "touch", "/tmp/go")

    def kill_sidecar(self) -> int:
        """Kill the process of the sidecar, as the kernel would; return how many there were."""
        found = []
        for process in psutil.process_iter(["cmdline"]):
            if ["-m", "kfp_tfjob.uploader", "watch"] == (process.info["cmdline"] or [])[1:4]:
                with contextlib.suppress(psutil.Error):
                    if process.environ().get("RUN_ID") == self.step.run_id:
                        found.append(process.pid)
        kill(found)
        return len(found)

    def sidecar_restarts(self) -> int:
        pod = self.cluster.core.read_namespaced_pod(self.pod(), self.namespace)
        statuses = pod.status.init_container_statuses or []
        return next((item.restart_count for item in statuses if item.name == "uploader"), 0)

    def node_of(self, replica: str = "chief-0") -> str:
        pod = self.cluster.core.read_namespaced_pod(self.pod(replica), self.namespace)
        return pod.spec.node_name

    def phase(self) -> str:
        """Return the phase of the chief of attempt 1; empty if it is gone."""
        name = self.pod()
        for pod in self.cluster.core.list_namespaced_pod(self.namespace).items:
            if pod.metadata.name == name:
                return pod.status.phase
        return ""

    def said(self, words: str, replica: str = "chief-0", attempt: int = 1) -> bool:
        try:
            log = self.cluster.core.read_namespaced_pod_log(
                self.pod(replica, attempt), self.namespace, container=self.kind.container
            )
        except ApiException:
            return False
        return words in log

    def wait_for(self, true: Callable[[], object], seconds: float = SECONDS) -> None:
        assert wait_until(true, seconds), (self.ended, self.picture())

    def wait_said(self, words: str = "hello", replica: str = "chief-0") -> None:
        """Wait until the program of a replica has said something, or the launch has failed."""

        def said() -> bool:
            return self.said(words, replica)

        self.wait_for(lambda: said() or (self.ended and self.ended.code))
        assert not (self.ended and self.ended.code) or said(), self.ended

    def picture(self) -> str:
        return self.cluster.picture(self.namespace)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
        for backend in self.backends:
            backend.close()
        self.kubeconfig.unlink(missing_ok=True)


on_both_kinds = pytest.mark.parametrize(
    "kind", [TFJOB, JOBSET], indirect=True, ids=lambda kind: kind.name
)


def launch_as_process(settings: Mapping[str, Any]) -> None:
    """Do what a step's process does; the other half of `Launch.start_process`."""
    store = Store(secret=SecretVolume(Path(settings["secret"])))
    layout = Layout.parse(settings["output_uri"])
    step = Step("launch_tfjob", settings["run_id"], layout, store, settings["task_key"])
    nothing: Any = None  # a step has no rights of an administrator
    place = settings["namespace"], Path(settings["kubeconfig"])
    found = Launch(nothing, *place, step, nothing, kind_named(settings["kind"]))
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(message)s")
    log_writer.STORE_SECONDS = float(os.environ.get("STORE_SECONDS", 30))
    with RunLogs(step.store, step.run) as logs, found.backend() as backend:
        engine.train(step, found.spec(**settings["spec"]), backend, logs)


def client_of(kubeconfig: Path, namespace: str, seconds: float = 60) -> ClusterClient:
    found = Configuration()
    config.load_kube_config(str(kubeconfig), client_configuration=found)
    return ClusterClient(connect(found), namespace, replace(PATIENCE, seconds=seconds))


def rules() -> list[dict[str, Any]]:
    return yaml.safe_load((ROOT / "deploy/base/role.yaml").read_text())["rules"]


@contextlib.contextmanager
def may_list_nodes(launch: Launch) -> Iterator[None]:
    """Give the account of the launch the optional ClusterRole."""
    rbac = client.RbacAuthorizationV1Api(launch.cluster.api)
    role = yaml.safe_load((ROOT / "deploy/optional/nodes/cluster-role.yaml").read_text())
    name = role["metadata"]["name"] = f"nodes-{launch.namespace}"
    subject = {"kind": "ServiceAccount", "name": "runner", "namespace": launch.namespace}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
    rbac.create_cluster_role(role)
    binding = {"metadata": {"name": name}, "roleRef": reference, "subjects": [subject]}
    rbac.create_cluster_role_binding(binding)
    try:
        yield
    finally:
        rbac.delete_cluster_role_binding(name)
        rbac.delete_cluster_role(name)


def new_launch(
    cluster: Cluster,
    namespace: str,
    store: Store,
    objects: Versitygw | None = None,
    kind: JobKind = TFJOB,
) -> Launch:
    """Return a new run in a namespace, on the S3 server of the cluster or another."""
    cluster.storage_secret(namespace, objects)
    kubeconfig = cluster.kubeconfig_for(namespace, "runner", rules())
    run_id = uuid.uuid4().hex[:8]
    layout = Layout.parse(f"s3://{BUCKET}/{namespace}")
    step = Step("launch_tfjob", f"r{run_id}", layout, store)
    return Launch(cluster, namespace, kubeconfig, step, objects or cluster.objects, kind)
