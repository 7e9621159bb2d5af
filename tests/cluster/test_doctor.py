"""`kfp-tfjob doctor` on the real API server: before and after the installation, and refusals."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from kfp_tfjob.checks import namespace as checks
from kfp_tfjob.checks.subject import Subject
from kfp_tfjob.storage.address import S3Address
from tests.cluster.cluster import Cluster
from tests.cluster.launches import BUCKET, Launch, client_of
from tests.environments import run_python

pytestmark = pytest.mark.cluster

_SMALL = ("--set", "pod.all.cpu=50m", "--set", "pod.all.memory=256Mi", "--workers", "0")
_SMALL += ("--set", "pod.all.ephemeral_storage=200Mi", "--set", "pod.all.shared_memory=16Mi")
_IMAGES = {f"KFP_TFJOB_{kind}_IMAGE": f"r.test/{kind.lower()}:1" for kind in ("TOOLS", "TRAINER")}
_NO_BACK_END = "http://127.0.0.1:1"


class Doctor:
    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.namespace, self.kubeconfig = namespace, cluster.kubeconfig
        self.environment: dict[str, str] = {}

    def __call__(self, *arguments: str) -> dict[str, list[str]]:
        """Return the findings as text by status; the back end is down."""
        here = {"KUBECONFIG": str(self.kubeconfig)} | _IMAGES | self.environment
        where = ("--namespace", self.namespace, "--host", _NO_BACK_END)
        command = ("-m", "kfp_tfjob.pipelines", "doctor", "--json", *where)
        done = run_python(*command, *_SMALL, *arguments, **here)
        assert "Traceback" not in done.stderr, done.stderr
        found = json.loads(done.stdout)
        assert done.returncode == (1 if found["problem"] else 0)
        texts = {name: [] for name in ("ok", "unknown", "warning", "waits", "problem")}
        for item in found["findings"]:
            words = (item.get(part, "") for part in ("what", "received", "fix"))
            texts[item["status"]].append(" -> ".join(words))
        return texts


@pytest.fixture
def doctor(cluster: Cluster, namespace: str) -> Doctor:
    return Doctor(cluster, namespace)


def _has(texts: Sequence[str], *words: str) -> bool:
    return any(all(word in text for word in words) for text in texts)


def _account(cluster: Cluster, namespace: str, name: str) -> None:
    cluster.core.create_namespaced_service_account(namespace, {"metadata": {"name": name}})


def test_before_and_after_install(cluster: Cluster, doctor: Doctor) -> None:
    _account(cluster, doctor.namespace, "default-editor")
    before = doctor()
    install = f"kfp-tfjob install --namespace {doctor.namespace} --service-account default-editor"
    lacking = ("default-editor may not create, get, list, watch, delete tfjobs", install)
    assert _has(before["problem"], *lacking)
    assert _has(before["warning"], "workflows", "Terminate")
    assert _has(before["warning"], "list events", install)
    assert _has(before["warning"], "Secret objstore-cred", "kubectl -n")
    assert _has(before["problem"], "127.0.0.1:1")
    assert _has(before["ok"], "TFJob (dry run)")
    assert _has(before["unknown"], "the store", "--output")

    cluster.storage_secret(doctor.namespace)
    words = install.replace("kfp-tfjob", "kfp_tfjob.pipelines").split()
    printed = run_python("-m", *words)
    assert printed.returncode == 0, printed.stderr
    cluster.kubectl("apply", "--server-side", "-f", "-", stdin=printed.stdout)
    store = cluster.objects.store()
    store.make_bucket(BUCKET)
    doctor.environment = cluster.objects.keys
    after = doctor("--output", f"s3://{BUCKET}/doctor")
    assert [text for text in after["problem"] if "127.0.0.1:1" not in text] == []
    assert _has(after["ok"], "default-editor", "permissions")
    assert _has(after["ok"], "Secret objstore-cred has AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL")
    assert _has(after["ok"], f"s3://{BUCKET}/doctor")
    assert not _has(after["ok"], cluster.objects.keys["AWS_SECRET_ACCESS_KEY"])
    assert not list(store.list(S3Address(BUCKET, "doctor")))
    assert not cluster.core.list_namespaced_pod(doctor.namespace).items


def test_a_namespace_with_pod_security(cluster: Cluster, doctor: Doctor, restricted: str) -> None:
    _account(cluster, restricted, "pipeline-runner")
    assert _has(doctor()["ok"], "restricted")
    # Steps that leave the user to the cluster, as some clusters want it.
    doctor.environment = {"KFP_TFJOB_RUN_AS_USER": "none"}
    assert _has(doctor()["problem"], "Pod Security", "prepare_data", "--run-as-user")


def test_a_person_with_few_rights(cluster: Cluster, doctor: Doctor) -> None:
    _account(cluster, doctor.namespace, "pipeline-runner")
    doctor.kubeconfig = cluster.kubeconfig_for(doctor.namespace, "person", [])
    try:
        found = doctor()
    finally:
        Path(doctor.kubeconfig).unlink()
    for words in (
        "the kind of job: not checked",
        "the runs' permissions: not checked",
        "you may not create pods here",
        "the Secrets: not checked",
        "the nodes: not checked",
    ):
        assert _has(found["unknown"], words), words
    assert len(found["problem"]) == 1  # the back end


def test_a_pod_learns_the_command_for_its_own_account(cluster: Cluster, launch: Launch) -> None:
    kubeconfig = cluster.kubeconfig_for(launch.namespace, "default-editor", [])
    subject = Subject(client_of(kubeconfig, launch.namespace), launch.spec("pass"))
    first = next(checks.account(subject))
    assert " default-editor " in first.what
    install = f"install --namespace {launch.namespace} --service-account default-editor |"
    assert install in first.fix


def test_what_is_not_there(cluster: Cluster, doctor: Doctor) -> None:
    doctor.namespace = "not-there"
    found = doctor("--set", "storage_secret=other")
    assert _has(found["problem"], "namespace not-there", "--namespace")
    assert _has(found["waits"], "Secret other")
    kubeconfig = json.loads(Path(doctor.kubeconfig).read_text())
    kubeconfig["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
    away = Path(doctor.kubeconfig).with_name("away.kubeconfig")
    away.write_text(json.dumps(kubeconfig))
    doctor.kubeconfig = away
    found = doctor()
    assert _has(found["problem"], "https://127.0.0.1:1", "VPN")
    assert len(found["problem"]) == 2


def test_without_an_operator(cluster: Cluster, doctor: Doctor, alone: Cluster) -> None:
    cluster.operator.stop()
    try:
        found = doctor()
        cluster.jobset.stop()
        try:
            neither = doctor()
        finally:
            cluster.jobset.start()
        only_tfjob = doctor("--set", "train_options.job=tfjob")
    finally:
        cluster.operator.start()
    assert _has(found["ok"], "the JobSet controller accepts")
    assert _has(neither["problem"], "training operator", "install")
    assert _has(only_tfjob["problem"], "training operator", "Deployment")
