"""What an administrator applies: accepted by the API server, and the least that the steps need."""

from dataclasses import replace
from pathlib import Path
from shutil import copytree

import pytest
import yaml
from kubernetes import client

from kfp_tfjob.checks.engine import At, check
from kfp_tfjob.checks.finding import Status, only
from kfp_tfjob.checks.subject import Subject
from kfp_tfjob.cluster import manifests
from kfp_tfjob.components.finish.leftover_jobs import end_jobs_on, failed_on
from kfp_tfjob.jobs.kinds import KINDS
from kfp_tfjob.jobs.tfjob import TFJOB
from tests.cluster import audit
from tests.cluster.audit import Call
from tests.cluster.cluster import Cluster
from tests.cluster.custom_resources import define
from tests.cluster.launches import ROOT, Launch, client_of, rules
from tests.cluster.workflows import Workflow
from tests.environments import run_python

pytestmark = pytest.mark.cluster

# Questions about itself, which every account may ask.
_OF_ITSELF = ("authentication.k8s.io", "authorization.k8s.io")
DEPLOY = ROOT / "deploy"
# In test_kueue.py, and in tests/unit/test_deploy.py.
_OF_OTHERS = {"optional/dask", "optional/kueue"}
FOLDERS = sorted(
    {path.parent.relative_to(DEPLOY).as_posix() for path in DEPLOY.rglob("kustomization.yaml")}
    - _OF_OTHERS
)


def _rendered_alone(folder: Path, scratch: Path) -> Path:
    """Return a folder that kubectl can render: a component needs one that uses it."""
    if yaml.safe_load((folder / "kustomization.yaml").read_text())["kind"] != "Component":
        return folder
    copytree(DEPLOY / "serving", scratch / "serving")
    own = scratch / "serving/own"
    own.mkdir()
    uses = {"resources": ["../tensorflow-serving"], "components": [f"../{folder.name}"]}
    (own / "kustomization.yaml").write_text(yaml.safe_dump(uses))
    return own


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_api_server_accepts(
    cluster: Cluster, namespace: str, folder: str, tmp_path: Path
) -> None:
    define(cluster, folder)
    found = cluster.rendered(_rendered_alone(DEPLOY / folder, tmp_path), namespace)
    said = cluster.apply(found, "--dry-run=server")
    assert said.count(" serverside-applied ") == len(found), said


@pytest.mark.parametrize(
    ("folder", "namespace", "account", "optional"),
    [
        ("base", "kubeflow", "pipeline-runner", ()),
        ("overlays/multi-user", "team-a", "default-editor", ()),
        ("optional/nodes", "kubeflow", "pipeline-runner", ("nodes",)),
        ("optional/quota", "team-a", "default-editor", ("quota",)),
    ],
)
def test_install_prints_what_kustomize_renders(
    cluster: Cluster, folder: str, namespace: str, account: str, optional: tuple[str, ...]
) -> None:
    base = manifests.objects(namespace, account)
    found = manifests.objects(namespace, account, optional)
    wanted = [item for item in found if item not in base] if optional else base
    rendered = yaml.safe_load_all(cluster.kubectl("kustomize", DEPLOY / folder))
    assert wanted and sorted(wanted, key=str) == sorted(rendered, key=str)


def _install(*arguments: str) -> str:
    done = run_python("-m", "kfp_tfjob.pipelines", "install", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_install_prints_is_applied_changed_and_deleted(
    cluster: Cluster, namespace: str
) -> None:
    here = ("--namespace", namespace)
    how = ("apply", "--server-side", "-f", "-")
    said = cluster.kubectl(*how, stdin=_install(*here, "--with", "quota"))
    assert said.count(" serverside-applied") == 5
    cluster.kubectl(*how, stdin=_install(*here, "--multi-user"))
    rbac = client.RbacAuthorizationV1Api(cluster.api)
    binding = rbac.read_namespaced_role_binding("kfp-tfjob", namespace)
    assert [(it.name, it.namespace) for it in binding.subjects] == [("default-editor", namespace)]
    role = rbac.read_namespaced_role("kfp-tfjob", namespace)
    assert {"tfjobs", "jobsets"} <= {name for rule in role.rules for name in rule.resources}
    cluster.kubectl("delete", "-f", "-", stdin=_install(*here, "--with", "quota"))
    assert not rbac.list_namespaced_role(namespace).items


def test_runs_need_the_whole_role_and_no_more(
    launch: Launch, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Preflight, a run with a second attempt, one that is terminated, and the exit task."""
    monkeypatch.setenv("KFP_POD_NAME", "")
    claim = {"metadata": {"name": "cache"}}
    claim["spec"] = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1"}}}
    cluster.core.create_namespaced_persistent_volume_claim(launch.namespace, claim)
    settings = {"metadata": {"name": "settings"}, "data": {"a": "b"}}
    cluster.core.create_namespaced_config_map(launch.namespace, settings)
    volumes = [
        {"claim": "cache", "path": "/cache"},
        {"config_map": "settings", "path": "/settings"},
    ]
    named = {"service_account": "default", "volumes": volumes}
    api = client_of(launch.kubeconfig, launch.namespace, 5)
    subject = Subject(api, launch.spec(pod={"all": named}), run_id=launch.step.run_id)
    assert not only(check(subject, At.RUN), Status.PROBLEM)
    # A signal is the cluster's fault, so that the launcher deletes the job and tries again.
    fails_once = "os.kill(os.getpid(), 9) if attempt == 1 else time.sleep(3)"
    assert launch.run(launch.spec(fails_once, orphan_timeout_seconds=6)).code == 0

    launch.step = replace(launch.step, run_id=f"{launch.step.run_id}-2")
    workflow = Workflow(cluster, launch.namespace).create(launch.step.run_id)
    launch.be_step_of(workflow, monkeypatch)
    process = launch.start_process("time.sleep(600)", workers=1)
    launch.wait_said(replica="worker-0")
    workflow.terminate()
    assert process.wait(240) == 1
    backend = launch.backend()
    end_jobs_on(backend, launch.step.run_id)
    failed_on(api, backend, launch.step.run_id)

    log = cluster.apiserver.audit_log
    asked = set(audit.calls(log, launch.namespace, "runner"))
    used = {call for call, allowed in asked if allowed and call.group not in _OF_ITSELF}
    # The run has TFJobs, and no queue; on the other kinds, the Role gives the same verbs.
    others = {kind.plural for kind in KINDS if kind is not TFJOB}
    others.add("localqueues/pendingworkloads")
    assert used == {call for call in _granted() if call.resource not in others}
    verbs = {
        kind: {call.verb for call in _granted() if call.resource == kind.plural} for kind in KINDS
    }
    assert set(map(frozenset, verbs.values())) == {frozenset(verbs[TFJOB])}
    refused = {call for call, allowed in asked if not allowed}
    assert refused <= {Call("", "nodes", "list")}  # optional/nodes


def _granted() -> set[Call]:
    return {
        Call(group, resource, verb)
        for rule in rules()
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
