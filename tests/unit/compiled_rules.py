"""Shapes of a compiled pipeline that Kubeflow Pipelines accepts and that do not work there.

Each rule was seen broken on a back end. A rule yields a sentence for every place where it does not
hold; its docstring says what happens on the back end.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import yaml

_ALWAYS = "ALL_UPSTREAM_TASKS_COMPLETED"  # exit tasks and ignore_upstream_failure
# Their page shows the metadata. Steps with a result have one; these names are the interface.
_RESULTS = {
    "comp-prepare-data": ("dataset", "system.Dataset"),
    "comp-launch-tfjob": ("trained_model", "system.Model"),
    "comp-publish": ("published_model", "system.Model"),
}
_SHOWN = {"system.HTML", "system.Markdown", "system.Metrics", "system.ClassificationMetrics"}
_COPY = re.compile(r"-[0-9]+$")  # KFP numbers a component that a pipeline loads again
_OF_THE_RUN = "{{$.pipeline_job_"
_REFERENCES = ("secretAsVolume", "secretAsEnv", "configMapAsVolume", "configMapAsEnv")

Document = Mapping[str, Any]


def _tasks(component: Document) -> Mapping[str, Document]:
    """Return the tasks of a DAG by name; none for a container."""
    return component.get("dag", {}).get("tasks", {})


def _dags(pipeline: Document) -> list[Mapping[str, Document]]:
    return list(map(_tasks, (pipeline["root"], *pipeline["components"].values())))


def _inputs(task: Document, kind: str) -> list[Document]:
    return list(task.get("inputs", {}).get(kind, {}).values())


def _takes_from(task: Document) -> set[str]:
    """Return the tasks of the same DAG whose outputs a task takes."""
    found = [it.get("taskOutputParameter") for it in _inputs(task, "parameters")]
    found += [it.get("taskOutputArtifact") for it in _inputs(task, "artifacts")]
    return {item["producerTask"] for item in found if item}


def _runs_always(task: Document) -> bool:
    return task.get("triggerPolicy", {}).get("strategy") == _ALWAYS


def artifacts(pipeline: Document) -> Iterator[tuple[str, str, str]]:
    """Yield (component, name, type) of what steps put out; a DAG only passes it on."""
    executors = pipeline["deploymentSpec"]["executors"]
    for component, body in pipeline["components"].items():
        if "container" in executors.get(body.get("executorLabel"), {}):
            for name, item in body.get("outputDefinitions", {}).get("artifacts", {}).items():
                yield component, name, item["artifactType"]["schemaTitle"]


def importer(pipeline: Document, platform: Document) -> Iterator[str]:
    """It does not wait for the task whose output it imports: it fails, and the run with it."""
    for name, executor in pipeline["deploymentSpec"]["executors"].items():
        if "importer" in executor:
            yield f"{name} is an importer"


def task_after_one_that_always_runs(pipeline: Document, platform: Document) -> Iterator[str]:
    """The API server answers HTTP 500 when the run is submitted."""
    for tasks in _dags(pipeline):
        always = {name for name, task in tasks.items() if _runs_always(task)}
        for name, task in tasks.items():
            before = _takes_from(task) | set(task.get("dependentTasks", []))
            for other in sorted(before & always):
                yield f"{name} comes after {other}"


def exit_task_without_its_run(pipeline: Document, platform: Document) -> Iterator[str]:
    """Its inputs are those of another run: it is answered from the cache and does not run."""
    for tasks in _dags(pipeline):
        for name, task in tasks.items():
            inside = _tasks(pipeline["components"][task["componentRef"]["name"]]).values()
            inputs = [it for one in (task, *inside) for it in _inputs(one, "parameters")]
            told = [str(it.get("runtimeValue", {}).get("constant", "")) for it in inputs]
            if _runs_always(task) and not any(_OF_THE_RUN in text for text in told):
                yield f"{name} is told nothing that belongs to its run"


def final_status(pipeline: Document, platform: Document) -> Iterator[str]:
    """Its state is RUNNING for runs that have ended, and its error is always empty."""
    for tasks in _dags(pipeline):
        for name, task in tasks.items():
            if any("taskFinalStatus" in it for it in _inputs(task, "parameters")):
                yield f"{name} believes PipelineTaskFinalStatus"


def reference_that_must_exist(pipeline: Document, platform: Document) -> Iterator[str]:
    """Where the Secret is missing the pod never starts, and the run never ends."""
    kubernetes = platform.get("platforms", {}).get("kubernetes", {})
    for name, executor in kubernetes.get("deploymentSpec", {}).get("executors", {}).items():
        for reference in (it for kind in _REFERENCES for it in executor.get(kind, [])):
            if reference.get("optional") is not True:
                yield f"{name} has a Secret or ConfigMap that is not optional"


def name_used_twice(pipeline: Document, platform: Document) -> Iterator[str]:
    """The graph shows an artifact by this name alone; the same step may be there twice."""
    owners: dict[str, set[str]] = {}
    for component, name, _ in artifacts(pipeline):
        owners.setdefault(name, set()).add(_COPY.sub("", component))
    for name, components in owners.items():
        if len(components) > 1:
            yield f"{name} is an output of {' and '.join(sorted(components))}"


def empty_tab(pipeline: Document, platform: Document) -> Iterator[str]:
    """The page of the artifact says "There is no metrics artifact available in this step"."""
    for component, name, kind in artifacts(pipeline):
        is_result = _RESULTS.get(_COPY.sub("", component)) == (name, kind)
        if kind not in _SHOWN and not is_result:
            yield f"{name} of {component} has the type {kind}, which the page cannot show"


def result_that_is_missing(pipeline: Document, platform: Document) -> Iterator[str]:
    """The list of artifacts shows no dataset or model, so nothing says what a run has made."""
    outputs = set(artifacts(pipeline))
    for component in pipeline["components"]:
        result = _RESULTS.get(_COPY.sub("", component))
        if result and (component, *result) not in outputs:
            yield f"{component} has no {result[0]} of the type {result[1]}"


def artifact_as_input(pipeline: Document, platform: Document) -> Iterator[str]:
    """The launcher copies it, with its own keys, before the step; steps pass addresses."""
    for name, component in pipeline["components"].items():
        for taken in component.get("inputDefinitions", {}).get("artifacts", {}):
            yield f"{name} takes the artifact {taken}"


RULES: tuple[Callable[[Document, Document], Iterator[str]], ...] = (
    importer,
    task_after_one_that_always_runs,
    exit_task_without_its_run,
    final_status,
    reference_that_must_exist,
    name_used_twice,
    empty_tab,
    result_that_is_missing,
    artifact_as_input,
)


def parts_of(text: str) -> tuple[Document, Mapping[str, Document]]:
    """Return the pipeline of a compiled file, and what Kubernetes gets for each executor."""
    pipeline, platform = yaml.safe_load_all(text)
    return pipeline, platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]


def broken(text: str) -> list[str]:
    """Return what is wrong with a compiled file, each with the name of its rule."""
    pipeline, *platform = yaml.safe_load_all(text)
    documents = pipeline, platform[0] if platform else {}
    return [f"{rule.__name__}: {found}" for rule in RULES for found in rule(*documents)]
