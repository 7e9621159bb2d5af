"""Shapes of a compiled pipeline that Kubeflow Pipelines accepts and that do not work there.

Each rule was seen broken on a back end. A rule yields a sentence for every place where it does not
hold; its docstring says what happens on the back end.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

_ALWAYS = "ALL_UPSTREAM_TASKS_COMPLETED"  # exit tasks and ignore_upstream_failure
_SHOWN = {"system.HTML", "system.Markdown", "system.Metrics", "system.ClassificationMetrics"}
_COPY = re.compile(r"-[0-9]+$")  # KFP numbers a component that a pipeline loads again
_OF_THE_RUN = "{{$.pipeline_job_"
_LONGEST_PARAMETER = 126_000  # bytes; with 140,000 the run's driver cannot be started
_EXACT = 2**53  # from here on a number is a float, and loses digits


@dataclass(frozen=True)
class Task:
    """A task, and what it runs."""

    name: str
    body: Mapping[str, Any]
    executor: Mapping[str, Any]  # empty for a DAG

    def inputs(self, kind: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        yield from self.body.get("inputs", {}).get(kind, {}).items()

    @property
    def takes_from(self) -> set[str]:
        """The tasks of the same DAG whose outputs it takes."""
        found = [value.get("taskOutputParameter") for _, value in self.inputs("parameters")]
        found += [value.get("taskOutputArtifact") for _, value in self.inputs("artifacts")]
        return {item["producerTask"] for item in found if item}

    @property
    def runs_always(self) -> bool:
        return self.body.get("triggerPolicy", {}).get("strategy") == _ALWAYS


@dataclass(frozen=True)
class Compiled:
    """Both documents of a compiled file; the second may be absent."""

    pipeline: Mapping[str, Any]
    platform: Mapping[str, Any]

    @classmethod
    def parse(cls, text: str) -> Compiled:
        pipeline, *platform = yaml.safe_load_all(text)
        return cls(pipeline, platform[0] if platform else {})

    @property
    def components(self) -> Mapping[str, Any]:
        return self.pipeline.get("components", {})

    def dags(self) -> Iterator[list[Task]]:
        for component in (self.pipeline["root"], *self.components.values()):
            yield self._tasks_of(component)

    def _tasks_of(self, component: Mapping[str, Any]) -> list[Task]:
        executors = self.pipeline["deploymentSpec"]["executors"]
        return [
            Task(name, body, executors.get(self._label(body), {}))
            for name, body in component.get("dag", {}).get("tasks", {}).items()
        ]

    def _label(self, task: Mapping[str, Any]) -> str:
        return self.components[task["componentRef"]["name"]].get("executorLabel", "")

    def inside(self, task: Task) -> list[Task]:
        """Return the tasks of the DAG that a task runs; none for a container."""
        return self._tasks_of(self.components[task.body["componentRef"]["name"]])

    def tasks(self) -> Iterator[Task]:
        for dag in self.dags():
            yield from dag

    def artifacts(self) -> Iterator[tuple[str, str, str]]:
        """Yield (component, name, type) of what steps put out; a DAG only passes it on."""
        executors = self.pipeline["deploymentSpec"]["executors"]
        for component, body in self.components.items():
            if "container" in executors.get(body.get("executorLabel"), {}):
                for name, item in body.get("outputDefinitions", {}).get("artifacts", {}).items():
                    yield component, name, item["artifactType"]["schemaTitle"]

    def defaults(self) -> Iterator[tuple[str, Any]]:
        parameters = self.pipeline["root"].get("inputDefinitions", {}).get("parameters", {})
        for name, item in parameters.items():
            if "defaultValue" in item:
                yield name, item["defaultValue"]

    def references(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield (executor, reference) for every Secret and ConfigMap."""
        kubernetes = self.platform.get("platforms", {}).get("kubernetes", {})
        for name, body in kubernetes.get("deploymentSpec", {}).get("executors", {}).items():
            for kind in ("secretAsVolume", "secretAsEnv", "configMapAsVolume", "configMapAsEnv"):
                for reference in body.get(kind, []):
                    yield name, reference


Rule = Callable[[Compiled], Iterator[str]]


def importer_of_an_output(compiled: Compiled) -> Iterator[str]:
    """An importer does not wait for the task: it fails at once, and the run with it."""
    for task in compiled.tasks():
        if "importer" in task.executor and task.takes_from:
            yield f"{task.name} imports what {', '.join(task.takes_from)} puts out"


def task_after_one_that_always_runs(compiled: Compiled) -> Iterator[str]:
    """The API server answers HTTP 500 when the run is submitted."""
    for dag in compiled.dags():
        always = {task.name for task in dag if task.runs_always}
        for task in dag:
            before = task.takes_from | set(task.body.get("dependentTasks", []))
            for name in sorted(before & always):
                yield f"{task.name} comes after {name}"


def exit_task_without_its_run(compiled: Compiled) -> Iterator[str]:
    """Its inputs are those of another run: it is answered from the cache and does not run."""
    for task in compiled.tasks():
        constants = [
            str(value.get("runtimeValue", {}).get("constant", ""))
            for one in (task, *compiled.inside(task))
            for _, value in one.inputs("parameters")
        ]
        if task.runs_always and not any(_OF_THE_RUN in text for text in constants):
            yield f"{task.name} is told nothing that belongs to its run"


def final_status(compiled: Compiled) -> Iterator[str]:
    """Its state is RUNNING for runs that have ended, and its error is always empty."""
    for task in compiled.tasks():
        for name, value in task.inputs("parameters"):
            if "taskFinalStatus" in value:
                yield f"{task.name} believes PipelineTaskFinalStatus {name}"


def reference_that_must_exist(compiled: Compiled) -> Iterator[str]:
    """Where the Secret is missing the pod never starts, and the run never ends."""
    for executor, reference in compiled.references():
        if reference.get("optional") is not True:
            yield f"{executor} has a Secret or ConfigMap that is not optional"


def default_beyond_its_limit(compiled: Compiled) -> Iterator[str]:
    """The run's driver cannot be started, or the number loses its last digits."""
    for name, value in compiled.defaults():
        if len(str(value).encode()) > _LONGEST_PARAMETER:
            yield f"{name} has a default above {_LONGEST_PARAMETER} bytes"
        for item in _leaves(value):
            if isinstance(item, int | float) and abs(item) > _EXACT:
                yield f"{name} has a number above 2^53 in its default"


def name_used_twice(compiled: Compiled) -> Iterator[str]:
    """The graph shows an artifact by this name alone; the same step may be there twice."""
    owners: dict[str, set[str]] = {}
    for component, name, _ in compiled.artifacts():
        owners.setdefault(name, set()).add(_COPY.sub("", component))
    for name, components in owners.items():
        if len(components) > 1:
            yield f"{name} is an output of {' and '.join(sorted(components))}"


def empty_tab(compiled: Compiled) -> Iterator[str]:
    """The page of the artifact says "There is no metrics artifact available in this step"."""
    for component, name, kind in compiled.artifacts():
        if kind not in _SHOWN:
            yield f"{name} of {component} has the type {kind}, which the page cannot show"


RULES: tuple[Rule, ...] = (
    importer_of_an_output,
    task_after_one_that_always_runs,
    exit_task_without_its_run,
    final_status,
    reference_that_must_exist,
    default_beyond_its_limit,
    name_used_twice,
    empty_tab,
)


def broken(text: str) -> list[str]:
    """Return what is wrong with a compiled file, each with the name of its rule."""
    compiled = Compiled.parse(text)
    return [f"{rule.__name__}: {found}" for rule in RULES for found in rule(compiled)]


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        for item in value.values():
            yield from _leaves(item)
    elif isinstance(value, list):
        for item in value:
            yield from _leaves(item)
    else:
        yield value
