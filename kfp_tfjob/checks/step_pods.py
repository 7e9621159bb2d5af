"""The pods of prepare_data, evaluate and publish, as `pod.prepare` and `pod.evaluate` ask for them.

Kubeflow Pipelines makes these pods: the pipeline passes outputs of preflight to its setters
(pipelines/task.py). An output always has a value, so preflight also returns what was compiled in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kubernetes.utils.quantity import parse_quantity

from kfp_tfjob.checks.step_memory import KEYS
from kfp_tfjob.cluster import capacity
from kfp_tfjob.jobs.objects import Object
from kfp_tfjob.options import images
from kfp_tfjob.options.pod import DEFAULTS, EvaluatePodSettings, PodOptions, StepPodSettings
from kfp_tfjob.storage.errors import Problem


@dataclass(frozen=True)
class StepPod:
    """The pod of one step.

    Attributes:
        step: For example, `prepare_data`.
        asked: What `pod` says.
        compiled: The `cpu`, `memory` and perhaps `cpu_limit` that were compiled in; empty in a
            pipeline without the setters.
    """

    step: str
    asked: StepPodSettings
    compiled: Mapping[str, str]

    @property
    def key(self) -> str:
        """The parameter that describes it."""
        return f"pod.{KEYS[self.step]}"

    @property
    def gpus(self) -> int:
        """Its GPUs."""
        return self.asked.gpus if isinstance(self.asked, EvaluatePodSettings) else 0

    @property
    def values(self) -> dict[str, Any]:
        """What the setters of Kubeflow Pipelines get, in the order of preflight's outputs."""
        asked, compiled = self.asked, self.compiled
        found: dict[str, Any] = {
            "cpu": asked.cpu or compiled.get("cpu", ""),
            "memory": asked.memory or compiled.get("memory", ""),
            "node_selector": asked.node_selector or {},
            "tolerations": [it.model_dump(exclude_none=True) for it in asked.tolerations or ()],
        }
        if isinstance(asked, EvaluatePodSettings):
            resource = asked.gpu_resource or DEFAULTS["gpu_resource"]
            found["gpus"] = str(asked.gpus)
            # Without a resource, the pod names none; with one and 0, it would request 0 of them.
            found["gpu_resource"] = resource if asked.gpus else ""
            found["image"] = images.TRAIN if asked.gpus else images.TRAINER
        return found

    @property
    def spec(self) -> Object:
        """The part of the pod's spec that decides where it fits."""
        its = self.values
        gpus = {its["gpu_resource"]: its["gpus"]} if self.gpus else {}
        resources = {
            "requests": {"cpu": its["cpu"], "memory": its["memory"], **gpus},
            "limits": {"memory": its["memory"], **gpus},
        }
        return {
            "containers": [{"name": "main", "resources": resources}],
            "nodeSelector": its["node_selector"],
            "tolerations": its["tolerations"],
        }


def step_pods(pod: PodOptions, compiled: Mapping[str, Mapping[str, str]]) -> dict[str, StepPod]:
    """Return the pods of these steps, with what was compiled in for each."""
    return {
        step: StepPod(step, getattr(pod, key), compiled.get(step, {})) for step, key in KEYS.items()
    }


def asked_for(pods: Mapping[str, StepPod]) -> list[StepPod]:
    """Return the pods that `pod` describes; that of publish is like that of evaluate."""
    found = (pods["prepare_data"], pods["evaluate"])
    return [it for it in found if it.asked.model_dump(exclude_defaults=True)]


def outputs(pods: Mapping[str, StepPod]) -> tuple[Any, ...]:
    """Return what the setters get, in the order of preflight's outputs."""
    prepare, evaluate, publish = (pods[step].values for step in KEYS)
    return (*prepare.values(), *evaluate.values(), publish["cpu"], publish["memory"])


def check(pods: Mapping[str, StepPod]) -> Iterator[Problem]:
    """Yield what the pipeline cannot give to the pods of its steps."""
    for it in asked_for(pods):
        if not it.compiled:
            yield Problem(
                f"this pipeline does not pass {it.key} on to the pod of {it.step}",
                expected="a pipeline that was compiled without --plain-steps",
                fix="compile it without that option for Kubeflow Pipelines 2.5 or later; or remove"
                f" {it.key}, and compile with --step-resources {it.step}.memory=8Gi",
                path=it.key,
            )
    for it in pods.values():
        limit = it.compiled.get("cpu_limit")
        if limit and it.asked.cpu and parse_quantity(it.asked.cpu) > parse_quantity(limit):
            yield Problem(
                f"{it.key}.cpu is above the limit that was compiled in for {it.step}",
                received=it.asked.cpu,
                expected=f"at most {limit}",
                fix="lower it, or compile with"
                f" --step-resources {it.step}.cpu_limit={it.asked.cpu}",
                path=f"{it.key}.cpu",
            )


def too_large(it: StepPod, nodes: Sequence[Object]) -> Iterator[str]:
    """Explain why no node fits a pod, unless nodes are unknown; one that fits may still appear."""
    why = capacity.no_room(it.spec, 1, nodes, "it", lambda _: it.key) if nodes else ""
    if why:
        yield f"the pod of {it.step} ({it.key}) will wait for nodes: {why}"
