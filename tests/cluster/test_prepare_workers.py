"""The workers of prepare_data on the real control plane: admitted, connected, gone at every end.

The step is a thread of the test, with the rights of a step, or a pod where it is killed.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import psutil
import pytest
from kubernetes import client

from kfp_tfjob.components.preflight import step_jobs
from kfp_tfjob.components.prepare_data import dataset, engine
from kfp_tfjob.components.prepare_data.executors import worker_job, worker_process
from kfp_tfjob.components.prepare_data.executors.cluster_workers import ClusterWorkers
from kfp_tfjob.components.prepare_data.executors.code_version import code_version
from kfp_tfjob.components.prepare_data.executors.distributed import Distributed
from kfp_tfjob.components.prepare_data.executors.executor import Recipe
from kfp_tfjob.components.step import Step
from kfp_tfjob.jobs.step_job import STEP_JOB
from kfp_tfjob.options.parse import parse
from kfp_tfjob.options.pod import PodOptions
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.errors import ConfigurationError, StepError
from kfp_tfjob.storage.layout import Layout
from tests.cluster.cluster import Cluster
from tests.cluster.compiled import Task
from tests.cluster.host import BRIDGE_ADDRESS
from tests.cluster.launches import BUCKET, client_of, job_rules, worker_rules
from tests.cluster.test_step_jobs import Run

pytestmark = pytest.mark.cluster

_SMALL = {"cpu": "500m", "memory": "600Mi", "ephemeral_storage": "200Mi"}
_KILLS = 20
_TASK = "operator:is_"  # of the context and the item: False


class Workers(Run):
    """A run with workers, in a namespace under Pod Security `restricted`."""

    def __init__(self, cluster: Cluster, namespace: str, store: Any) -> None:
        super().__init__(cluster, namespace, store)
        self.kubeconfig.unlink()
        self.kubeconfig = cluster.kubeconfig_for(namespace, "workers", worker_rules())
        self.api = client_of(self.kubeconfig, namespace).of(STEP_JOB)
        self.pods.account = "workers"

    def waits(self) -> dict[str, Any]:
        """Return settings of workers that no node takes before `go`."""
        return _SMALL | {"node_selector": super().waits()["node_selector"]}

    def start(self, count: int = 2, **settings: Any) -> Task:
        """Start the step as a pod."""
        task = self.task(_SMALL | settings, data_options={"workers": count})
        self.pods.start(task)
        return task

    def kill(self, task: Task) -> None:
        """Kill the processes of the step, and remove its pod."""
        name = self.pods.name(task)
        pod = self.cluster.core.read_namespaced_pod(name, self.namespace)
        self.cluster.nodes[pod.spec.node_name].kill_pod(pod.metadata.uid)
        self.cluster.core.delete_namespaced_pod(name, self.namespace, grace_period_seconds=0)

    def processes(self, task: Task) -> list[psutil.Process]:
        """Return the processes that do tasks for the step."""
        name = self.pods.name(task)
        pod = self.cluster.core.read_namespaced_pod(name, self.namespace)
        scheduler = f"tls://{pod.status.pod_ip}:"
        found = []
        for process in psutil.process_iter(["cmdline"]):
            if worker_process.__name__ in (process.info["cmdline"] or ()):
                with suppress(psutil.Error):
                    if process.environ().get(worker_process.SCHEDULER, "").startswith(scheduler):
                        found.append(process)
        return found

    def manifest(self, uri: str) -> dict[str, str]:
        """Return the checksums of a dataset."""
        manifest = self.store.read_manifest(S3Address.parse(uri) / "manifest.json")
        return {item.key: item.crc64nvme for item in manifest.objects} | {"": manifest.digest}

    def says(self, task: Task, text: str) -> bool:
        try:
            return text in self.pods.log(task)
        except client.ApiException:
            return False  # the container has not started

    def executor(self, count: int = 2, api: Any = None, **settings: Any) -> Distributed:
        """Return the executor of a step in this process."""
        pod = parse(PodOptions, "pod", {"prepare": _SMALL | settings})
        job = worker_job.worker_job(pod, count, "objstore-cred")
        assert job
        workers = ClusterWorkers(self.step, job, api or self.api)
        workers.host = BRIDGE_ADDRESS
        return Distributed(Recipe(f"{self.output_uri}/exchange"), workers)

    def secrets(self) -> list[str]:
        label = f"kfp-tfjob/run={self.run_id}"
        found = self.cluster.core.list_namespaced_secret(self.namespace, label_selector=label)
        return [item.metadata.name for item in found.items]

    def nothing_left(self) -> bool:
        return super().nothing_left() and not self.secrets()


@pytest.fixture
def run(own_cluster, namespace, launch_store) -> Iterator[Workers]:
    found = Workers(own_cluster, namespace, launch_store)
    yield found
    found.kubeconfig.unlink()
    for node in found.nodes:
        own_cluster.core.patch_node(node, {"metadata": {"labels": {found.label: None}}})


def test_workers_come_do_tasks_and_go(run: Workers) -> None:
    executor = run.executor()
    assert list(executor.map(_TASK, range(100))) == [False] * 100
    run.wait_for(lambda: len(executor._connected.names) == 2)
    pods, (secret,) = run.workers(), run.secrets()
    assert len(pods) == 2 and not any(pod.spec.automount_service_account_token for pod in pods)
    found = run.cluster.core.read_namespaced_secret(secret, run.namespace)
    assert set(found.data) == {"tls.crt", "tls.key"} and found.immutable
    executor.close()
    run.wait_for(run.nothing_left)


def test_other_code_and_missing_rights_end_the_step(run: Workers, monkeypatch) -> None:
    monkeypatch.setattr(worker_job, "code_version", lambda: "0.1.0, code 0")
    executor = run.executor()
    with pytest.raises(StepError) as caught:
        list(executor.map(_TASK, [1]))
    executor.close()
    assert caught.value.code == 2
    assert "step: 0.1.0, code 0" in str(caught.value) and code_version() in str(caught.value)
    run.wait_for(run.nothing_left)

    other = run.cluster.kubeconfig_for(run.namespace, "jobs", job_rules())
    api = client_of(other, run.namespace).of(STEP_JOB)
    executor = run.executor(api=api)
    with pytest.raises(ConfigurationError, match="to create Secrets.*--with workers"):
        list(executor.map(_TASK, [1]))
    executor.close()
    run.wait_for(run.nothing_left)
    asked = step_jobs.asked_for(parse(PodOptions, "pod", {}), "objstore-cred", 2)
    (problem,) = step_jobs.check(api, asked, run.run_id).problems
    other.unlink()
    assert "data_options.workers needs rights on secrets" in str(problem)
    assert not step_jobs.check(run.api, asked, run.run_id).problems


def test_a_new_try_replaces_the_workers_of_a_step_that_was_killed(run: Workers, figure) -> None:
    run.start(**run.waits())
    run.wait_for(lambda: len(run.workers()) == 2)
    task = run.task(_SMALL | run.waits(), data_options={"workers": 2})
    run.kill(task)
    first = {pod.metadata.uid for pod in run.workers()}
    run.pods.start(task)
    run.wait_for(lambda: first.isdisjoint(pod.metadata.uid for pod in run.workers()))
    run.wait_for(lambda: len(run.workers()) == 2)
    run.go()
    began = time.monotonic()
    ended = run.pods.join(task)
    figure(f"prepare_data on 2 workers: {time.monotonic() - began:.1f} s from the node to the end")
    digest = ended.outputs["dataset_digest"]
    done = dataset.find(run.store, run.step.layout.dataset(digest), digest)
    assert done and sum(done.rows.values()) == 400
    assert "is connected, 1 in all" in ended.log
    run.wait_for(run.nothing_left)


def test_workers_end_with_a_step_that_is_killed(run: Workers, figure) -> None:
    run.write("a,b,y\n" + "".join(f"{i},{i % 7},{i % 2}\n" for i in range(1_000_000)))
    task = run.start(env={worker_process.SCHEDULER_SECONDS: "5"})
    run.wait_for(lambda: run.says(task, "is connected, 1 in all"))
    run.kill(task)
    began = time.monotonic()
    run.wait_for(lambda: all(pod.status.phase == "Succeeded" for pod in run.workers()))
    figure(f"workers ended {time.monotonic() - began:.1f} s after SIGKILL of their step")
    run.wait_for(run.nothing_left)
    figure(f"no Job and no Secret {time.monotonic() - began:.1f} s after SIGKILL of the step")


def test_terminate_ends_the_workers(run: Workers, figure) -> None:
    task = run.start(**run.waits())
    run.wait_for(lambda: len(run.workers()) == 2)
    began = time.monotonic()
    run.workflow.terminate()
    time.sleep(1)  # then Kubeflow Pipelines ends the pod of the step
    run.cluster.core.delete_namespaced_pod(run.pods.name(task), run.namespace)
    run.wait_for(run.nothing_left)
    figure(f"no worker {time.monotonic() - began:.1f} s after Terminate")


def test_killed_workers_and_a_killed_step_end_in_the_same_bytes(run: Workers, figure) -> None:
    draw = random.Random(13)
    folder = f"s3://{BUCKET}/{run.namespace}/many"
    for i in range(24):
        rows = (
            f"{draw.gauss(0, 1):.6f},{draw.choice(['Rome', 'Zürich', ''])},{draw.choice('uv')}\n"
            for _ in range(3000)
        )
        address = S3Address.parse(f"{folder}/part-{i:02d}.csv")
        run.store.write(address, ("a,city,y\n" + "".join(rows)).encode())
    alone = Step("prepare_data", run.run_id, Layout.parse(f"{run.output_uri}-alone"), run.store)
    expected = engine.run(alone, folder, "y", {}, processes=1)

    run.data_uri, killed = folder, Counter[str]()
    task = run.start(3)
    began = time.monotonic()

    def over() -> bool:
        pod = run.cluster.core.read_namespaced_pod(run.pods.name(task), run.namespace)
        return pod.status.phase in ("Succeeded", "Failed")

    while killed.total() < _KILLS and not over():
        time.sleep(draw.uniform(0.2, 1.0))
        if killed.total() % 7 == 6 and not killed["step"] > killed.total() // 7:
            run.kill(task)
            run.pods.start(task)
            killed["step"] += 1
        elif processes := run.processes(task):
            with suppress(psutil.NoSuchProcess):
                draw.choice(processes).kill()
                killed["process"] += 1
    ended = run.pods.join(task)
    seconds = time.monotonic() - began
    figure(f"prepare_data on 3 workers: the same bytes after {dict(killed)}, {seconds:.0f} s")
    assert run.manifest(ended.outputs["dataset_uri"]) == run.manifest(expected.dataset_uri)
    assert killed["process"] >= 3
    run.wait_for(run.nothing_left)


def test_workers_that_find_no_node_are_named(run: Workers) -> None:
    where = run.waits() | {"pending_timeout_seconds": 3}
    executor = run.executor(**where)
    with pytest.raises(StepError) as caught:
        list(executor.map(_TASK, [1]))
    executor.close()
    assert caught.value.verdict == "unschedulable"
    assert "correct pod.prepare.node_selector" in str(caught.value)
    run.wait_for(run.nothing_left)
