"""Names, labels and annotations that identify the jobs and pods of a run or configure them.

Used wherever a job is created, found or stopped.
"""

from __future__ import annotations

import re
from hashlib import sha256

from kfp_tfjob.options.pod import LABEL_VALUE

HASH_ANNOTATION = "kfp-tfjob/spec-hash"
CANCEL_GRACE_ANNOTATION = "kfp-tfjob/cancel-grace"  # seconds, for the exit task
# On the chief's pod, and files of the same name in PODINFO_DIR.
HEARTBEAT_ANNOTATION = "kfp-tfjob/heartbeat"
STOP_WITHIN_ANNOTATION = "kfp-tfjob/stop-within"
RUN_LABEL = "kfp-tfjob/run"
TASK_LABEL = "kfp-tfjob/task"
KEY_LABEL = "kfp-tfjob/task-key"  # only on the jobs of a task with a key
MODEL_LABEL = "kfp-tfjob/model"
ATTEMPT_LABEL = "kfp-tfjob/attempt"
RUN_ID_LABEL = "pipeline/runid"  # of Kubeflow Pipelines, on the Workflow and the steps' pods
INJECT = "sidecar.istio.io/inject"  # as a label and as an annotation
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
MANAGER = "kfp-tfjob"
MANAGER_LABEL = "app.kubernetes.io/managed-by"
# The containers of every kind of job besides the main one.
SETUP = "setup"
UPLOADER = "uploader"


def job_labels(
    *, run_id: str, attempt: int, task: str, task_key: str, model_name: str
) -> dict[str, str]:
    """Return the labels that identify a job, which its pods have, too.

    Args:
        run_id: The run.
        attempt: The number of the attempt.
        task: The step that launched it.
        task_key: Distinguishes the tasks of that step; usually empty.
        model_name: The run's model; empty without one.
    """
    return {
        MANAGER_LABEL: MANAGER,
        RUN_LABEL: run_label(run_id),
        TASK_LABEL: task,
        **({KEY_LABEL: task_key} if task_key else {}),
        **({MODEL_LABEL: label_value(model_name)} if model_name else {}),
        ATTEMPT_LABEL: str(attempt),
    }


def run_label(run_id: str) -> str:
    """Return the value of RUN_LABEL, by which all of a run's objects are selected."""
    return dns_label(run_id, 63)


def dns_label(text: str, longest: int) -> str:
    """Return `text` as a DNS label; different strings never give the same label."""
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    if plain == text and len(plain) <= longest:
        return plain
    digest = sha256(text.encode()).hexdigest()[:8]
    return f"{plain[: longest - 9].strip('-') or 'run'}-{digest}"


def label_value(text: str) -> str:
    """Return `text` if it is a valid label value, else a similar DNS label."""
    return text if re.fullmatch(LABEL_VALUE, text) else dns_label(text, 63)
