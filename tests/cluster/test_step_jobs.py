"""The work of prepare_data as a Job on the real control plane: who ends it, and what becomes of it.

Where the step itself is killed it is a pod; elsewhere a thread of the test, with the rights of a
step. A Job that must not begin waits for a label that no node has until the test sets it.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from kubernetes import client

from kfp_tfjob.cluster.kubernetes import KubernetesBackend
from kfp_tfjob.components.finish.cluster import _end_step_jobs
from kfp_tfjob.components.preflight import step_jobs
from kfp_tfjob.components.prepare_data import dataset
from kfp_tfjob.components.prepare_data.engine import run as prepare
from kfp_tfjob.components.step import Step
from kfp_tfjob.components.step_job import of_options
from kfp_tfjob.components.step_job_pod import place_of
from kfp_tfjob.components.step_job_run import StepJobRun
from kfp_tfjob.jobs.step_job import STEP_JOB
from kfp_tfjob.options.parse import parse
from kfp_tfjob.options.pod import PodOptions
from kfp_tfjob.pipelines.compilation import FOLDER
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.errors import StepError
from kfp_tfjob.storage.layout import Layout
from tests.cluster.cluster import Cluster
from tests.cluster.compiled import Compiled, Task
from tests.cluster.launches import BUCKET, client_of, job_rules, rules
from tests.cluster.processes import wait_until
from tests.cluster.step_pods import StepPods
from tests.cluster.workflows import Workflow

pytestmark = pytest.mark.cluster

_SMALL = {"cpu": "100m", "memory": "400Mi", "ephemeral_storage": "200Mi"}
_ROWS = "a,b,y\n" + "".join(f"{i},{i % 7},{i % 2}\n" for i in range(400))
_SECONDS = 120


class Run:
    """A run in a namespace under Pod Security `restricted`.

    Attributes:
        cluster: Where.
        namespace: Of the test.
        workflow: The Workflow of the run.
        step: prepare_data of the run.
        pods: The pods of its steps.
        label: A node needs it for a pod with `waits`.
    """

    def __init__(self, cluster: Cluster, namespace: str, store: Any) -> None:
        self.cluster, self.namespace, self.store = cluster, namespace, store
        level = {"pod-security.kubernetes.io/enforce": "restricted"}
        cluster.core.patch_namespace(namespace, {"metadata": {"labels": level}})
        cluster.storage_secret(namespace)
        self.kubeconfig = cluster.kubeconfig_for(namespace, "runner", job_rules())
        self.run_id = str(uuid.uuid4())
        self.workflow = Workflow(cluster, namespace, f"run-{self.run_id[:5]}").create(self.run_id)
        self.pods = StepPods(cluster, namespace, "runner", self.workflow, self.run_id)
        self.output_uri = f"s3://{BUCKET}/{namespace}/out"
        self.step = Step("prepare_data", self.run_id, Layout.parse(self.output_uri), store)
        self.label, self.nodes = f"kfp-tfjob-test/{namespace}", []
        self.data_uri = f"s3://{BUCKET}/{namespace}/data.csv"
        self.write(_ROWS)
        self.api = client_of(self.kubeconfig, namespace).of(STEP_JOB)

    def write(self, text: str) -> None:
        self.store.write(S3Address.parse(self.data_uri), text.encode())

    def waits(self) -> dict[str, Any]:
        """Return settings of a pod that no node takes before `go`."""
        return _SMALL | {"node_selector": {self.label: "go"}}

    def go(self) -> None:
        """Let a pod with `waits` begin."""
        self.nodes.append("node-1")
        body = {"metadata": {"labels": {self.label: "go"}}}
        self.cluster.core.patch_node("node-1", body)

    def task(self, settings: dict[str, Any], **more: Any) -> Task:
        """Return the step as the compiled YAML of the single step has it."""
        found: list[Task] = []
        form = {"data_uri": self.data_uri, "data_label": "y", "output_uri": self.output_uri}
        form |= {"pod": {"prepare": settings}, "storage_secret": "objstore-cred"}
        form |= {"storage_endpoint": self.cluster.objects.secret["AWS_ENDPOINT_URL"]} | more

        def take(task: Task) -> dict[str, Any]:
            found.append(task)
            return {"dataset_uri": "", "dataset_digest": ""}

        placeholders = {"{{$.pipeline_job_uuid}}": self.run_id}
        Compiled(FOLDER / "prepare_data.yaml").run(form, placeholders, take)
        return found[0]

    def here(self, settings: dict[str, Any], **more: Any) -> Any:
        """Run the step in this process, with the rights of its account; return what it prepared."""
        job = of_options(
            "prepare", parse(PodOptions, "pod", {"prepare": settings}), "objstore-cred"
        )
        assert job
        endpoint = self.cluster.objects.secret["AWS_ENDPOINT_URL"]
        place = place_of(self.step, endpoint, "us-east-1", self.output_uri)
        reference = self.workflow.reference() | {"controller": False, "blockOwnerDeletion": False}

        def elsewhere(inputs: Any) -> str:
            with KubernetesBackend(self.api, lost_node_seconds=5) as backend:
                return StepJobRun(
                    self.step, job, {**place, **inputs}, backend, reference, **more
                ).run()

        return prepare(self.step, self.data_uri, "y", {}, elsewhere=elsewhere)

    def failure(self, settings: dict[str, Any], **more: Any) -> StepError:
        """Return how the step fails."""
        with pytest.raises(StepError) as caught:
            self.here(settings, **more)
        return caught.value

    def jobs(self) -> list[str]:
        items = client.BatchV1Api(self.cluster.api).list_namespaced_job(self.namespace).items
        return [item.metadata.name for item in items]

    def workers(self) -> list[Any]:
        """Return the pods of Jobs."""
        label = f"kfp-tfjob/run={self.run_id}"
        found = self.cluster.core.list_namespaced_pod(self.namespace, label_selector=label)
        return found.items

    def nothing_left(self) -> bool:
        return not (self.jobs() or self.workers())

    def wait_for(self, true: Any) -> None:
        assert wait_until(true, _SECONDS), self.cluster.picture(self.namespace)


@pytest.fixture
def run(own_cluster, namespace, launch_store) -> Iterator[Run]:
    found = Run(own_cluster, namespace, launch_store)
    yield found
    found.kubeconfig.unlink()
    for node in found.nodes:
        own_cluster.core.patch_node(node, {"metadata": {"labels": {found.label: None}}})


def test_the_next_try_adopts_the_job_of_a_step_that_was_killed(run: Run, figure) -> None:
    task = run.task(run.waits())
    run.pods.start(task)
    run.wait_for(lambda: len(run.workers()) == 1)
    (worker,) = run.workers()
    assert not worker.spec.automount_service_account_token
    name = run.pods.name(task)
    killed = run.cluster.core.read_namespaced_pod(name, run.namespace)
    run.cluster.nodes[killed.spec.node_name].kill_pod(killed.metadata.uid)
    run.cluster.core.delete_namespaced_pod(name, run.namespace, grace_period_seconds=0)

    run.pods.start(task)

    def adopted() -> bool:
        try:
            return "of an earlier try is adopted" in run.pods.log(task)
        except client.ApiException:
            return False  # the container has not started

    run.wait_for(adopted)
    assert [pod.metadata.uid for pod in run.workers()] == [worker.metadata.uid]
    run.go()
    began = time.monotonic()
    ended = run.pods.join(task)
    figure(f"prepare_data as a Job: {time.monotonic() - began:.1f} s from the node to the outputs")
    digest = ended.outputs["dataset_digest"]
    done = dataset.find(run.store, run.step.layout.dataset(digest), digest)
    assert done and sum(done.rows.values()) == 400
    assert "[prepare-0]" in ended.log and "is complete" in ended.log
    assert '"reused": false' in ended.files["executor_output.json"]
    run.wait_for(run.nothing_left)


def test_terminate_ends_the_job(run: Run, figure) -> None:
    task = run.task(run.waits())
    run.pods.start(task)
    run.wait_for(lambda: len(run.workers()) == 1)
    began = time.monotonic()
    run.workflow.terminate()
    # Kubeflow Pipelines ends the pod of the step a second later.
    time.sleep(1)
    run.cluster.core.delete_namespaced_pod(run.pods.name(task), run.namespace)
    run.wait_for(run.nothing_left)
    figure(f"no Job and no pod of prepare_data {time.monotonic() - began:.1f} s after Terminate")


def test_a_pod_that_was_taken_from_its_node_is_replaced(run: Run) -> None:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(run.here(run.waits())), daemon=True)
    thread.start()
    run.wait_for(lambda: len(run.workers()) == 1)
    (lost,) = run.workers()
    run.cluster.core.delete_namespaced_pod(lost.metadata.name, run.namespace)
    run.wait_for(lambda: f"prepare-{run.run_id}-2" in run.jobs())
    run.go()
    thread.join(_SECONDS)
    assert found and sum(found[0].rows.values()) == 400
    run.wait_for(run.nothing_left)


def test_failures_name_the_key_to_change(run: Run) -> None:
    oom = run.failure(_SMALL | {"memory": "30Mi"})
    assert (oom.code, oom.verdict) == (2, "out_of_memory"), oom
    assert "the pod of prepare_data ran out of memory: it may use 30Mi" in str(oom)
    assert "raise pod.prepare.memory (30Mi now)" in str(oom)
    where = run.waits() | {"pending_timeout_seconds": 3}
    waits = run.failure(where)
    assert waits.verdict == "unschedulable"
    assert "node affinity/selector" in str(waits)
    assert "correct pod.prepare.node_selector" in str(waits)
    run.write(_ROWS + "not a number,2,1\n")
    wrong = run.failure(_SMALL)
    assert (wrong.code, wrong.verdict) == (3, "user_error")
    assert "not a number" in str(wrong) and "Its last lines" not in str(wrong)
    run.wait_for(run.nothing_left)


def test_the_exit_task_ends_a_job_and_preflight_knows_its_rights(run: Run) -> None:
    thread = threading.Thread(target=lambda: run.failure(run.waits()), daemon=True)
    thread.start()
    run.wait_for(lambda: len(run.workers()) == 1)
    assert _end_step_jobs(run.api, run.run_id) == [f"prepare-{run.run_id}-1"]
    thread.join(_SECONDS)
    assert not thread.is_alive()
    run.wait_for(run.nothing_left)

    pod = parse(PodOptions, "pod", {"prepare": {"memory": "900Gi"}, "evaluate": {}})
    asked = step_jobs.asked_for(pod, "objstore-cred")
    found = step_jobs.check(run.api, asked, run.run_id)
    assert not found.problems and not run.jobs()  # it may not list nodes and quotas
    other = run.cluster.kubeconfig_for(run.namespace, "other", rules())
    (problem,) = step_jobs.check(client_of(other, run.namespace), asked, run.run_id).problems
    other.unlink()
    assert "no create, get, list, watch, delete" in str(problem)
    assert "kfp-tfjob install --with jobs --apply" in problem.fix
    admin = client_of(run.cluster.kubeconfig, run.namespace)
    quota = {"metadata": {"name": "team"}, "spec": {"hard": {"requests.memory": "500Gi"}}}
    run.cluster.core.create_namespaced_resource_quota(run.namespace, quota)
    found = step_jobs.check(admin, asked, run.run_id)
    assert [item.what for item in found.problems] == [
        "quota team can never admit the pod of prepare_data"
    ]
    assert any("900 GiB memory requested" in text for text in found.warnings)
