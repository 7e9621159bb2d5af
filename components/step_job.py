"""Builds the Job whose one pod does the work of a step: prepare_data, evaluate or publish.

`pod.prepare` and `pod.evaluate` ask for it. The step itself only starts the Job, follows it and
reads its result from the store, so its own pod stays small, wherever the work runs.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kfp_tfjob.cluster.choice import is_local
from kfp_tfjob.components import images
from kfp_tfjob.components.pod_template import (
    container,
    of_user,
    once,
    pod_template,
    spec_hash,
    storage_volume,
    variables,
)
from kfp_tfjob.jobs.kind import Replica
from kfp_tfjob.jobs.labels import (
    HASH_ANNOTATION,
    KEY_LABEL,
    MANAGER,
    MANAGER_LABEL,
    RUN_LABEL,
    TASK_LABEL,
    dns_label,
    run_label,
)
from kfp_tfjob.jobs.step_job import STEP_JOB, UID_LABEL
from kfp_tfjob.options.parse import parse
from kfp_tfjob.options.pod import OwnPodSettings, PodOptions
from kfp_tfjob.storage.credentials import MOUNT, MOUNT_VARIABLE

log = logging.getLogger(__name__)

# What the pod works on as JSON, the uid of its Job, under which it stores its result, and its GPUs.
INPUTS, JOB_UID = "KFP_TFJOB_STEP_INPUTS", "KFP_TFJOB_JOB_UID"
GPUS = "EXPECTED_GPUS"
NUMBER_LABEL = "kfp-tfjob/attempt"
GRACE_SECONDS = 10  # a pod that is told to stop has nothing to save
# Kubernetes ends the Job after its longest wait, work and image pulls, even without a follower.
_SLACK_SECONDS = 900
WORK_DIR = "/kfp-tfjob/work"
_LONGEST_NAME = 50
_TTL_SECONDS = 3600  # its step deletes the Job; this is for one that was killed
_STEPS = {"prepare": "prepare_data", "evaluate": "evaluate"}
PUBLISH = "publish"  # judges in such a pod as evaluate does


@dataclass(frozen=True)
class StepJob:
    """The work of one step, to be done in a pod of its own.

    Attributes:
        name: The key of `pod`: `prepare` or `evaluate`.
        settings: Of the pod, with their defaults.
        storage_secret: The name of the Secret with the keys of the store.
        image: The image of the pod.
    """

    name: str
    settings: OwnPodSettings
    storage_secret: str
    image: str

    @property
    def asked_by(self) -> str:
        """The key that asks for it."""
        return f"pod.{self.name}"

    @property
    def step(self) -> str:
        """The step, for instance `prepare_data`."""
        return _STEPS[self.name]

    @property
    def prefix(self) -> str:
        """The first part of the names of its Jobs."""
        return self.name

    @property
    def gpus(self) -> int:
        """The GPUs of each pod."""
        return getattr(self.settings, "gpus", 0)

    @property
    def task(self) -> str:
        """The value of the label that tells the tasks of a run apart."""
        return self.step.replace("_", "-")

    def manifest(
        self,
        run_id: str,
        number: int,
        inputs: Mapping[str, Any],
        task_key: str = "",
        owner: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Return the Job as a Kubernetes object; the same arguments give the same bytes.

        Args:
            run_id: The run.
            number: Tells the Jobs of one step apart, from 1.
            inputs: What the pod works on, as JSON.
            task_key: Keeps the tasks of one step apart in a run; usually empty.
            owner: The ownerReference that deletes the Job with its Workflow, or None.
        """
        suffix = f"-{task_key}-{number}" if task_key else f"-{number}"
        labels = {
            MANAGER_LABEL: MANAGER,
            RUN_LABEL: run_label(run_id),
            TASK_LABEL: self.task,
            **({KEY_LABEL: task_key} if task_key else {}),
            NUMBER_LABEL: str(number),
        }
        own = {
            STEP_JOB.operator_label: STEP_JOB.operator,
            STEP_JOB.role_label: STEP_JOB.label_of(self.name),
        }
        template = pod_template(self.settings, labels | own, self._pod(inputs))
        body = STEP_JOB.spec([Replica(self.name, 1, template)], _TTL_SECONDS)
        limits = (self.settings.deadline_seconds, self.settings.pending_timeout_seconds)
        body["activeDeadlineSeconds"] = sum(limits) + _SLACK_SECONDS
        name = dns_label(f"{self.prefix}-{run_id}", _LONGEST_NAME - len(suffix)) + suffix
        return {
            "apiVersion": STEP_JOB.api_version,
            "kind": STEP_JOB.name,
            "metadata": {
                "name": name,
                "labels": labels,
                "annotations": {HASH_ANNOTATION: spec_hash({"spec": body})},
                **({"ownerReferences": [dict(owner)]} if owner else {}),
            },
            "spec": body,
        }

    def _pod(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        resources = {
            "cpu": self.settings.cpu,
            "memory": self.settings.memory,
            "ephemeral-storage": self.settings.ephemeral_storage,
        }
        if self.gpus:
            resources[str(getattr(self.settings, "gpu_resource", ""))] = str(self.gpus)
        # The user id of the pod has no home in the image.
        common = {
            MOUNT_VARIABLE: str(MOUNT),
            "HOME": WORK_DIR,
            "TMPDIR": WORK_DIR,
            "PYTHONUNBUFFERED": "1",
        }
        told = {INPUTS: json.dumps(inputs, sort_keys=True, ensure_ascii=False)}
        told |= {GPUS: str(self.gpus)} if self.gpus else {}
        uid = {"fieldRef": {"apiVersion": "v1", "fieldPath": f"metadata.labels['{UID_LABEL}']"}}
        environment = [*variables(told | common), {"name": JOB_UID, "valueFrom": uid}]
        mounts = [{"name": "work", "mountPath": WORK_DIR}]
        variable = once([*environment, *of_user(self.settings)])
        main = container(STEP_JOB.container, self.image, resources, variable, mounts)
        main["command"] = ["python3", "-m", f"kfp_tfjob.components.{self.step}.in_pod"]
        return {
            "activeDeadlineSeconds": self.settings.deadline_seconds,
            "containers": [main],
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": GRACE_SECONDS,
            "volumes": [
                {"name": "work", "emptyDir": {}},
                storage_volume(self.storage_secret),
            ],
        }


@dataclass(frozen=True)
class SecondJudging(StepJob):
    """The work of publish that may run in a separate pod: judging the model again."""

    @property
    def step(self) -> str:
        """The step."""
        return PUBLISH

    @property
    def prefix(self) -> str:
        """The first part of the names of its Jobs: that of evaluate may still be there."""
        return PUBLISH


def wanted(
    name: str, pod: Mapping[str, Any], storage_secret: str, step: str = ""
) -> StepJob | None:
    """Return the Job that `pod` asks for; None to do the work in this process.

    Args:
        name: The key of `pod`: `prepare` or `evaluate`.
        pod: As in the form.
        storage_secret: As in the form.
        step: The step, if it is not the one of that name: `publish` judges as evaluate does.

    Raises:
        ConfigurationError: `pod` is wrong.
    """
    found = of_options(name, parse(PodOptions, "pod", pod), storage_secret)
    if found and is_local():
        log.info("pod.%s has no effect in a local run", name)
        return None
    if found and step == PUBLISH:
        return SecondJudging(found.name, found.settings, found.storage_secret, found.image)
    return found


def of_options(name: str, pod: PodOptions, storage_secret: str) -> StepJob | None:
    """Return the Job that the typed form of `pod` asks for, or None."""
    settings = pod.own_pod(name)
    image = {"prepare": images.TOOLS, "evaluate": images.TRAINER}[name]
    image = images.TRAIN if getattr(settings, "gpus", 0) else image
    return StepJob(name, settings, storage_secret.strip(), image) if settings else None
