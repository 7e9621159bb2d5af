"""The pods of prepare_data, evaluate and publish, as set by `pod.prepare` and `pod.evaluate`.

Kubeflow Pipelines creates these pods: the pipeline passes outputs of preflight to its setters
(pipelines/step_pod.py). An output always has a value, so preflight passes on the compiled settings
where `pod` does not replace them. Called by preflight, `doctor`, `submit` and the pipeline.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kubernetes.utils.quantity import parse_quantity

from kfp_tfjob.cluster import capacity
from kfp_tfjob.common.errors import Problem
from kfp_tfjob.jobs.objects import Object
from kfp_tfjob.options import container_images
from kfp_tfjob.options.pod import DEFAULTS, EvaluatePodSettings, PodOptions, StepPodSettings

from .step_memory import KEYS


@dataclass(frozen=True)
class StepPod:
    """The pod of one step.

    Attributes:
        step: For example, `prepare_data`.
        requested: The settings in `pod`.
        compiled: The `cpu`, `memory` and perhaps `cpu_limit` that were compiled in; empty in a
            pipeline without the setters.
    """

    step: str
    requested: StepPodSettings
    compiled: Mapping[str, str]

    @property
    def key(self) -> str:
        """The run parameter with the pod's settings."""
        return f"pod.{KEYS[self.step]}"

    @property
    def gpus(self) -> int:
        """The number of the pod's GPUs."""
        return self.requested.gpus if isinstance(self.requested, EvaluatePodSettings) else 0

    @property
    def values(self) -> dict[str, Any]:
        """The arguments of Kubeflow Pipelines' setters, in the order of preflight's outputs."""
        requested, compiled = self.requested, self.compiled
        tolerations = requested.tolerations or ()
        arguments: dict[str, Any] = {
            "cpu": requested.cpu or compiled.get("cpu", ""),
            "memory": requested.memory or compiled.get("memory", ""),
            "node_selector": requested.node_selector or {},
            "tolerations": [entry.model_dump(exclude_none=True) for entry in tolerations],
        }
        if isinstance(requested, EvaluatePodSettings):
            resource = requested.gpu_resource or DEFAULTS["gpu_resource"]
            arguments["gpus"] = str(requested.gpus)
            # An empty name adds no resource to the pod; with a name, it would request 0 GPUs.
            arguments["gpu_resource"] = resource if requested.gpus else ""
            arguments["image"] = (
                container_images.TRAIN if requested.gpus else container_images.TRAINER
            )
        return arguments

    @property
    def spec(self) -> Object:
        """The part of the pod's spec that decides on which nodes it fits."""
        values = self.values
        gpus = {values["gpu_resource"]: values["gpus"]} if self.gpus else {}
        resources = {
            "requests": {"cpu": values["cpu"], "memory": values["memory"], **gpus},
            "limits": {"memory": values["memory"], **gpus},
        }
        return {
            "containers": [{"name": "main", "resources": resources}],
            "nodeSelector": values["node_selector"],
            "tolerations": values["tolerations"],
        }


def step_pods(pod: PodOptions, compiled: Mapping[str, Mapping[str, str]]) -> dict[str, StepPod]:
    """Return the pods of prepare_data, evaluate and publish, by step.

    Args:
        pod: The run parameter.
        compiled: The settings that were compiled in, by step.
    """
    return {
        step: StepPod(step, getattr(pod, key), compiled.get(step, {})) for step, key in KEYS.items()
    }


def asked_for(pods: Mapping[str, StepPod]) -> list[StepPod]:
    """Return the pods that `pod` has settings for; publish's pod has evaluate's settings."""
    steps = (pods["prepare_data"], pods["evaluate"])
    return [pod for pod in steps if pod.requested.model_dump(exclude_defaults=True)]


def outputs(pods: Mapping[str, StepPod]) -> tuple[Any, ...]:
    """Return preflight's outputs for the setters of all pods, in their declared order."""
    prepare, evaluate, publish = (pods[step].values for step in KEYS)
    return (*prepare.values(), *evaluate.values(), publish["cpu"], publish["memory"])


def check(pods: Mapping[str, StepPod]) -> Iterator[Problem]:
    """Yield a problem for each setting that the compiled pipeline cannot give to a step's pod."""
    for pod in asked_for(pods):
        if not pod.compiled:
            yield Problem(
                f"this pipeline does not pass {pod.key} on to the pod of {pod.step}",
                expected="a pipeline that was compiled without --plain-steps",
                fix=f"compile it without that option; or remove {pod.key}, and compile with"
                f" --step-resources {pod.step}.memory=8Gi",
                path=pod.key,
                name="step-pod-not-compiled",
            )
    for pod in pods.values():
        limit, cpu = pod.compiled.get("cpu_limit"), pod.requested.cpu
        if limit and cpu and parse_quantity(cpu) > parse_quantity(limit):
            yield Problem(
                f"{pod.key}.cpu is above the limit that was compiled in for {pod.step}",
                received=cpu,
                expected=f"at most {limit}",
                fix=f"lower it, or compile with --step-resources {pod.step}.cpu_limit={cpu}",
                path=f"{pod.key}.cpu",
            )


def too_large(pod: StepPod, nodes: Sequence[Object]) -> Iterator[str]:
    """Yield a sentence if no node fits a step's pod; without known nodes, yield nothing."""
    reason = capacity.no_room(pod.spec, 1, nodes, "it", lambda _: pod.key) if nodes else ""
    if reason:
        yield f"the pod of {pod.step} ({pod.key}) will wait for nodes: {reason}"
