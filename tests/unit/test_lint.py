"""Every trap of a TFJob's manifest: found where it is, corrected where that is safe."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from kfp_tfjob.jobs.job_yaml import to_yaml
from kfp_tfjob.jobs.manifest import Identity, build_job
from kfp_tfjob.jobs.spec import JobSpec
from kfp_tfjob.lint.engine import RULES, lint
from kfp_tfjob.pipelines.cli import main as command_line
from kfp_tfjob.storage.errors import ConfigurationError
from tests.unit.launch_parameters import DEFAULTS, EVERYTHING

GOOD = """\
apiVersion: kubeflow.org/v1
kind: TFJob
metadata: {name: mnist}
spec:
  runPolicy: {cleanPodPolicy: Running, ttlSecondsAfterFinished: 86400}
  tfReplicaSpecs:
    Chief: &replica
      replicas: 1
      restartPolicy: Never
      template:
        metadata:
          annotations:
            cluster-autoscaler.kubernetes.io/safe-to-evict: "false"
            karpenter.sh/do-not-disrupt: "true"
            sidecar.istio.io/inject: "false"
        spec:
          activeDeadlineSeconds: 86400
          terminationGracePeriodSeconds: 300
          schedulerName: volcano
          containers:
          - name: tensorflow
            image: registry:5000/mnist:1.4
            command: [sh, -c, "set -e; python train.py --job $(JOB) --day $(date) --all $$(X)"]
            env:
            - {name: JOB, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
            - {name: OUTPUT, value: "s3://b/$(JOB)"}
            ports: [{containerPort: 2222, name: tfjob-port}]
            resources:
              limits: {cpu: 4, memory: 16Gi, nvidia.com/gpu: 1}
              requests: {cpu: 500m, memory: 16Gi}
            volumeMounts: [{name: shm, mountPath: /dev/shm}]
          volumes:
          - {name: shm, emptyDir: {medium: Memory, sizeLimit: 2Gi}}
          - {name: store, secret: {secretName: store, optional: true}}
    Worker:
      <<: *replica
      replicas: 2
"""
CHIEF = ("spec", "tfReplicaSpecs", "Chief")
POD = (*CHIEF, "template", "spec")
MAIN = (*POD, "containers", 0)
RUN_POLICY = ("spec", "runPolicy")


def put(*changes: tuple[tuple, Any]) -> Callable[[dict], None]:
    """Return a function that sets, or with None removes, values at paths."""

    def apply(job: dict) -> None:
        for path, value in changes:
            parent: Any = job
            for part in path[:-1]:
                parent = parent[part]
            if value is None:
                del parent[path[-1]]
            elif isinstance(parent, list) and path[-1] == len(parent):
                parent.append(copy.deepcopy(value))
            else:
                parent[path[-1]] = copy.deepcopy(value)

    return apply


def rename(old: str, new: str) -> Callable[[dict], None]:
    def apply(job: dict) -> None:
        specs = job["spec"]["tfReplicaSpecs"]
        specs[new] = specs.pop(old)

    return apply


def both(*changes: Callable[[dict], None]) -> Callable[[dict], None]:
    def apply(job: dict) -> None:
        for change in changes:
            change(job)

    return apply


def policy(**policies: str) -> Callable[[dict], None]:
    """Set restart policies, with a limit, and without the deadline that only suits Never."""
    changes = [(("spec", "tfReplicaSpecs", r, "restartPolicy"), p) for r, p in policies.items()]
    changes.append(((*RUN_POLICY, "backoffLimit"), 20))
    return put(*changes)


def no_pod_deadline(job: dict) -> None:
    for replica in job["spec"]["tfReplicaSpecs"].values():
        del replica["template"]["spec"]["activeDeadlineSeconds"]


UPLOADER = {
    "name": "uploader",
    "image": "aws-cli:2",
    "command": ["sh", "-c", "while [ ! -f /out/DONE ]; do sleep 5; done; aws s3 sync /out s3://b"],
    "volumeMounts": [{"name": "out", "mountPath": "/out"}],
}
GREEN = ["always-green"]


def script(text: str) -> Callable[[dict], None]:
    return put(((*MAIN, "command", 2), text))


def pod(key: str, value: Any) -> Callable[[dict], None]:
    return put(((*POD, key), value))


def main(key: str, value: Any) -> Callable[[dict], None]:
    return put(((*MAIN, key), value))


def run_policy(**values: Any) -> Callable[[dict], None]:
    return put(*(((*RUN_POLICY, key), value) for key, value in values.items()))


# What is wrong, and what finds it (the first is what the row is about).
TRAPS: list[tuple[str, Callable[[dict], None], list[str]]] = [
    ("v1beta1", put((("apiVersion",), "kubeflow.org/v1beta1")), ["version"]),
    ("no name", put((("metadata",), {})), ["name"]),
    ("no replicas", put((("spec", "tfReplicaSpecs"), {})), ["replica-types"]),
    (
        "v1beta1 fields",
        put((("spec", "runPolicy"), None), (("spec", "cleanPodPolicy"), "Running")),
        ["run-policy-fields"],
    ),
    ("running", run_policy(cleanPodPolicy="running"), ["unknown-word"]),
    ("Sometimes", policy(Chief="Sometimes", Worker="Sometimes"), ["unknown-word"]),
    (
        "an init container that is restarted",
        put(
            ((*POD, "initContainers"), [UPLOADER | {"restartPolicy": "OnFailure"}]),
            ((*POD, "volumes", 2), {"name": "out", "emptyDir": {}}),
        ),
        ["unknown-word"],
    ),
    (
        "Foo",
        put(
            (
                ("spec", "tfReplicaSpecs", "Wroker"),
                yaml.safe_load(GOOD)["spec"]["tfReplicaSpecs"]["Worker"],
            )
        ),
        ["unknown-role"],
    ),
    ("Master", rename("Chief", "Master"), ["master"]),
    ("two chiefs", put(((*CHIEF, "replicas"), 2)), ["one-chief"]),
    (
        "no chief, no worker",
        both(
            rename("Chief", "PS"),
            rename("Worker", "Evaluator"),
            put((("spec", "tfReplicaSpecs", "Evaluator", "replicas"), 1)),
        ),
        ["nobody-decides"],
    ),
    ("another name", main("name", "trainer"), ["container-name"]),
    ("no containers", pod("containers", []), ["container-name"]),
    ("no shm", put(((*MAIN, "volumeMounts"), None)), ["shared-memory"]),
    (
        "a sidecar",
        both(
            put(((*POD, "containers", 1), UPLOADER)),
            put(((*POD, "volumes", 2), {"name": "out", "emptyDir": {}})),
        ),
        ["second-container"],
    ),
    (
        "Always",
        both(policy(Chief="Always", Worker="Always"), no_pod_deadline),
        ["always", "no-deadline"],
    ),
    ("mixed", both(policy(Chief="OnFailure"), no_pod_deadline), ["mixed-policies", "no-deadline"]),
    (
        "ExitCode",
        both(policy(Chief="ExitCode", Worker="ExitCode"), no_pod_deadline),
        ["exit-code-policy", "no-deadline"],
    ),
    (
        "no limit",
        both(
            policy(Chief="OnFailure", Worker="OnFailure"),
            no_pod_deadline,
            put(((*RUN_POLICY, "backoffLimit"), None)),
        ),
        ["no-backoff-limit", "no-deadline"],
    ),
    (
        "a deadline of the job",
        both(no_pod_deadline, run_policy(activeDeadlineSeconds=60)),
        ["idle-deadline"],
    ),
    ("no deadline", no_pod_deadline, ["no-deadline"]),
    ("no cleaning", put(((*RUN_POLICY, "cleanPodPolicy"), None)), ["no-clean-pod-policy"]),
    (
        "no gang",
        both(
            *(
                put((("spec", "tfReplicaSpecs", role, "template", "spec", "schedulerName"), None))
                for role in ("Chief", "Worker")
            )
        ),
        ["no-gang"],
    ),
    ("Istio", put(((*CHIEF, "template", "metadata"), None)), ["annotations"]),
    ("$(HOSTNAME)", script("aws s3 cp /m s3://b/job-$(HOSTNAME)"), ["undefined-variable"]),
    ("$(RUN)", script("python t.py --run $(RUN)"), ["undefined-variable"]),
    ("a later variable", put(((*MAIN, "env", 0, "name"), "OTHER")), ["undefined-variable"]),
    ("exit 0", script("python train.py; exit 0"), ["always-green"]),
    ("|| true", script("aws s3 sync /out s3://b || true"), ["always-green"]),
    ("tee", script("python train.py 2>&1 | tee /log"), ["piped-away"]),
    (
        "a text as args",
        both(main("command", ["sh", "-c"]), main("args", "python train.py; exit 0")),
        GREEN,
    ),
    (
        "$(HOSTNAME) beside envFrom",
        both(script("cp /m /job-$(HOSTNAME)"), main("envFrom", [{"secretRef": {"name": "s"}}])),
        ["undefined-variable"],
    ),
]


def bad(change: Callable[[dict], None]) -> str:
    job = good()
    change(job)
    return text_of(job)


def good() -> dict:
    """Return the good job, in which nothing is there twice."""
    return json.loads(json.dumps(yaml.safe_load(GOOD)))


def text_of(job: dict) -> str:
    """Return a job as JSON, which is YAML too."""
    return json.dumps(job, indent=1)


def rules(text: str) -> set[str]:
    return {finding.rule for finding in lint(text)}


@pytest.mark.parametrize(
    "change",
    [
        script("set -e; python train.py; exit 0"),
        script("python train.py && exit 0"),
        script("set -o pipefail; python train.py | tee /log"),
        script("test -f /x || true; echo $((N+1)) $(hostname) ${HOSTNAME} $$(HOSTNAME)"),
        script("if grep -q x /f; then echo found; exit 0; fi; python train.py"),
        script("trap 'kill $!; exit 0' TERM; python train.py || exit 3"),
        both(main("command", ["bash", "-ec"]), main("args", ["python train.py; exit 0"])),
        both(main("envFrom", [{"configMapRef": {"name": "c"}}]), main("args", ["$(TEAM)"])),
        main("env", [{"name": "TOKENIZERS_PARALLELISM", "value": "false"}, {"name": "JOB"}]),
        main("env", [{"name": "SECRET_NAME", "value": "x"}, {"name": "JOB", "value": "$$(X)"}]),
        put((("status",), {"conditions": []}), (("metadata", "creationTimestamp"), "2020-01-01")),
    ],
)
def test_what_only_looks_like_a_trap_is_clean(change):
    assert lint(bad(change)) == []


def test_a_type_without_anything_has_no_containers():
    job = good()
    job["spec"]["tfReplicaSpecs"]["Worker"] = None
    assert "container-name" in rules(text_of(job))


def test_a_good_job_is_clean():
    assert lint(GOOD) == []


@pytest.mark.parametrize(
    ("change", "expected"), [pytest.param(*row[1:], id=row[0]) for row in TRAPS]
)
def test_a_trap_is_found(change, expected):
    assert rules(bad(change)) == set(expected)


def test_every_rule_has_a_row():
    assert {row[2][0] for row in TRAPS} == {rule.name for rule in RULES}
    assert all(rule.reason.endswith(".") and rule.fix for rule in RULES)


@pytest.mark.parametrize(
    "changes",
    [
        {"train_workers": 0},
        {"train_gpus": 8, "train_batch_size": 256},
        {"train_workers": 998, "train_batch_size": 999},
        {"train_options": {"command": ["bash", "-c", "python t.py --out $(OUTPUT_DIR)"]}},
        {"pod": {"all": {"env": {"A": "$(RUN_ID)"}, "memory": "1Gi"}, "chief": {"cpu": "500m"}}},
    ],
)
def test_whatever_is_rendered_is_clean(changes):
    for parameters in (DEFAULTS, EVERYTHING):
        spec = JobSpec.parse(**parameters | changes)
        assert lint(to_yaml(build_job(spec, Identity("a run", 99)))) == []


def test_the_faults_of_the_seed_are_found() -> None:
    seed = Path(__file__).parents[3] / "shared" / "seed" / "tfjob.yaml"
    if not seed.exists():
        pytest.skip(f"needs {seed}")
    found = {"always-green", "annotations", "container-name", "no-backoff-limit", "no-deadline"}
    found |= {"no-gang", "second-container", "shared-memory", "undefined-variable"}
    assert rules(seed.read_text()) == found


OTHER_NAME = GOOD.replace("name: tensorflow", "name: trainer")


def test_the_lines_are_those_of_the_file():
    text = f"# A trainer.\n{OTHER_NAME}"
    (line, *_) = [finding.line for finding in lint(text)]
    assert text.splitlines()[line - 1].strip() == "- name: trainer"


def test_jobs_of_a_list_are_found():
    jobs = "".join(f"\n  {line}" for line in OTHER_NAME.splitlines())
    found, alone = lint(f"kind: List\nitems:\n-{jobs[2:]}\n"), lint(OTHER_NAME)
    assert [(f.rule, f.path) for f in found] == [(f.rule, f"items[0].{f.path}") for f in alone]


@pytest.mark.parametrize(
    ("text", "file", "code"),
    [(GOOD, "-", 0), (OTHER_NAME, "-", 1), ("a: [", "-", 2), ("", "/nowhere/job.yaml", 2)],
)
def test_the_command_line(text, file, code):
    done = CliRunner().invoke(command_line, ["lint", file], input=text, catch_exceptions=False)
    assert done.exit_code == code, done.output


@pytest.mark.parametrize("text", ["a: [", "kind: Pod", "", "- 1", "a: &x [*x]"])
def test_what_is_no_tfjob_is_refused(text):
    with pytest.raises(ConfigurationError):
        lint(text)
