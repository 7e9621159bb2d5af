"""Files as people have them: tutorials of the field, several documents, comments, a pipe."""

import pytest
from click.testing import CliRunner

from kfp_tfjob.lint.engine import lint
from kfp_tfjob.pipelines.cli import main

# Chief and uploader share a claim; the uploader waits for a marker and hides whether it worked.
UPLOADER = """\
# A trainer and an uploader in one pod.
apiVersion: kubeflow.org/v1
kind: TFJob
metadata:
  name: keras-train
spec:
  tfReplicaSpecs:
    Chief:
      replicas: 1
      restartPolicy: OnFailure
      template:
        spec:
          containers:
          - name: trainer
            image: team/keras
            command: [sh, -c, "python train.py && touch /output/DONE"]
            resources: {requests: {nvidia.com/gpu: 1}}
            volumeMounts: [{name: output, mountPath: /output}]
          - name: uploader
            image: amazon/aws-cli:2.15.0
            command:
            - sh
            - -c
            - |
              while [ ! -f /output/DONE ]; do sleep 10; done
              aws s3 sync /output s3://models/job-$(HOSTNAME)/
              exit 0
            volumeMounts: [{name: output, mountPath: /output}]
          volumes:
          - name: output
            persistentVolumeClaim: {claimName: output}
"""
# All-reduce without a chief, on GPUs.
MULTI_WORKER = """\
apiVersion: kubeflow.org/v1
kind: TFJob
metadata:
  name: multi-worker
spec:
  cleanPodPolicy: None
  tfReplicaSpecs:
    Worker:
      replicas: 2
      restartPolicy: Never
      template:
        spec:
          containers:
            - name: tensorflow
              image: example/multi_worker_strategy:latest
              resources:
                limits:
                  nvidia.com/gpu: 1
              volumeMounts:
                - mountPath: /train
                  name: training
          volumes:
            - name: training
              persistentVolumeClaim:
                claimName: strategy-volume
"""


def test_the_lines_are_those_of_the_file():
    lines = UPLOADER.splitlines()
    at = {finding.rule: lines[finding.line - 1].strip() for finding in lint(UPLOADER)}
    assert at["container-name"] == "- name: trainer"
    assert at["second-container"] == "containers:"
    assert at["no-deadline"] == "spec:"


def test_jobs_of_a_list_are_found():
    jobs = "".join(f"\n  {line}" for line in MULTI_WORKER.splitlines())
    text = f"kind: List\nitems:\n-{jobs[2:]}\n"
    found, alone = lint(text), lint(MULTI_WORKER)
    assert [(f.rule, f.path) for f in found] == [(f.rule, f"items[0].{f.path}") for f in alone]


@pytest.mark.parametrize(
    ("text", "arguments", "code", "said"),
    [
        (UPLOADER, ["lint", "-"], 1, "6 errors"),
        (MULTI_WORKER, ["lint", "-"], 1, "1 error"),
        ("kind: Pod", ["lint", "-"], 2, "has no TFJob"),
        ("a: [", ["lint", "-"], 2, "is not YAML"),
        ("", ["lint", "/nowhere/job.yaml"], 2, "No such file"),
    ],
    ids=["errors", "fewer errors", "no job", "no YAML", "no file"],
)
def test_the_command_line(text, arguments, code, said):
    done = CliRunner().invoke(main, arguments, input=text, catch_exceptions=False)
    assert (done.exit_code, said in done.output) == (code, True), done.output
