"""The compiled pipeline as Kubeflow Pipelines reads it: its tasks in order, and their inputs.

Just enough of the specification for this project's pipeline: DAGs, exit handlers, conditions on one
value, and parameters. Artifacts go out of a step and never into one.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import yaml

_CONDITION = re.compile(r"inputs\.parameter_values\['(?P<name>[^']+)'\] == (?P<value>.+)")
_INPUT = re.compile(r"\{\{\$\.inputs\.parameters\['(?P<name>[^']+)'\]\}\}")
_ROOT = "/minio/artifacts"  # where the launcher of Kubeflow Pipelines keeps minio://artifacts


@dataclass(frozen=True)
class Task:
    """One step, ready to run.

    Attributes:
        container: The container of the specification: image, command, args, env, resources.
        given: The inputs of the DAG that it stands in, which `settings` refers to.
    """

    name: str
    container: Mapping[str, Any]
    settings: Mapping[str, Any]
    inputs: Mapping[str, Any]
    outputs: Mapping[str, Any]
    given: Mapping[str, Any]

    @property
    def secret(self) -> dict[str, Any]:
        (volume,) = self.settings["secretAsVolume"]
        name = self._value(volume["secretNameParameter"])
        return {"name": name, "path": volume["mountPath"], "optional": volume["optional"]}

    @property
    def executor_input(self) -> dict[str, Any]:
        """What the launcher of Kubeflow Pipelines puts in the place of {{$}}."""
        artifacts = {
            name: {
                "artifacts": [
                    {
                        "name": name,
                        "type": definition["artifactType"],
                        "uri": f"minio://artifacts/{name}",
                        "metadata": {},
                    }
                ]
            }
            for name, definition in self.outputs.get("artifacts", {}).items()
        }
        parameters = {
            name: {"outputFile": f"{_ROOT}/outputs/{name}"}
            for name in self.outputs.get("parameters", {})
        }
        return {
            "inputs": {"parameterValues": dict(self.inputs)},
            "outputs": {
                "artifacts": artifacts,
                "parameters": parameters,
                "outputFile": f"{_ROOT}/executor_output.json",
            },
        }

    def _value(self, source: Mapping[str, Any]) -> Any:
        if "runtimeValue" in source:
            return source["runtimeValue"]["constant"]
        return self.given[source["componentInputParameter"]]


Run = Callable[[Task], Mapping[str, Any]]


class Compiled:
    def __init__(self, file: Path) -> None:
        self._pipeline, platform = yaml.safe_load_all(file.read_text())
        self._settings = platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]

    def run(self, parameters: Mapping[str, Any], placeholders: Mapping[str, str], run: Run) -> None:
        """Run the tasks one after the other, with the form's defaults; each condition must hold."""
        root = self._pipeline["root"]
        form = root["inputDefinitions"]["parameters"]
        unknown = set(parameters) - set(form)
        assert not unknown, unknown
        given = {
            name: parameters[name] if name in parameters else field["defaultValue"]
            for name, field in form.items()
        }
        self._run_dag(root["dag"], given, placeholders, run)

    def steps(self, inputs: Mapping[str, Any]) -> list[Task]:
        """Return every step as it is in the pipeline, with inputs that no other step has made.

        Outputs of preflight are called `pipelinechannel--preflight-NAME`.
        """
        made = {key: value for key, value in inputs.items() if key.startswith("pipelinechannel")}
        found = []
        for component in self._pipeline["components"].values():
            if "dag" in component:
                continue
            given = {
                key: inputs.get(key, definition.get("defaultValue", ""))
                for key, definition in component["inputDefinitions"]["parameters"].items()
            }
            found.append(self._task(component, made | given, _AsGiven(inputs)))
        return found

    def _task(
        self, component: Mapping[str, Any], inputs: Mapping[str, Any], given: Mapping[str, Any]
    ) -> Task:
        label = component["executorLabel"]
        return Task(
            label.removeprefix("exec-"),
            self._container(label, inputs),
            self._settings[label],
            inputs,
            component.get("outputDefinitions", {}),
            given,
        )

    def _container(self, label: str, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the container, with the inputs that its image and resources refer to."""
        found = dict(self._pipeline["deploymentSpec"]["executors"][label]["container"])

        def filled(value: Any) -> Any:
            if isinstance(value, Mapping):
                return {key: filled(item) for key, item in value.items()}
            named = _INPUT.fullmatch(str(value))
            return inputs.get(named["name"], value) if named else value

        return found | {key: filled(found[key]) for key in ("image", "resources")}

    def _run_dag(
        self,
        dag: Mapping[str, Any],
        given: Mapping[str, Any],
        placeholders: Mapping[str, str],
        run: Run,
    ) -> None:
        done: dict[str, Mapping[str, Any]] = {}
        tasks = dag["tasks"]
        after = {name: task.get("dependentTasks", []) for name, task in tasks.items()}
        for name in TopologicalSorter(after).static_order():
            task = tasks[name]
            sources = task.get("inputs", {}).get("parameters", {})
            inputs = {
                key: _resolved(source, given, done, placeholders) for key, source in sources.items()
            }
            assert _holds(task.get("triggerPolicy", {}).get("condition"), inputs), name
            component = self._pipeline["components"][task["componentRef"]["name"]]
            if "dag" in component:
                self._run_dag(component["dag"], inputs, placeholders, run)
                continue
            definitions = component.get("inputDefinitions", {}).get("parameters", {})
            defaults = {
                key: definition["defaultValue"]
                for key, definition in definitions.items()
                if "defaultValue" in definition
            }
            done[name] = run(self._task(component, defaults | inputs, given))


class _AsGiven(dict[str, Any]):
    """The inputs of a DAG under the names that its tasks know: `pipelinechannel--NAME`."""

    def __missing__(self, key: str) -> Any:
        return self[key.removeprefix("pipelinechannel--")]


def _resolved(
    source: Mapping[str, Any],
    given: Mapping[str, Any],
    done: Mapping[str, Mapping[str, Any]],
    placeholders: Mapping[str, str],
) -> Any:
    if "componentInputParameter" in source:
        return given[source["componentInputParameter"]]
    if output := source.get("taskOutputParameter"):
        return done[output["producerTask"]][output["outputParameterKey"]]
    value = source["runtimeValue"]["constant"]
    for placeholder, text in placeholders.items():
        value = value.replace(placeholder, text) if isinstance(value, str) else value
    assert "{{$" not in _INPUT.sub("", str(value)), f"no value for the placeholder in {value}"
    return value


def _holds(condition: str | None, inputs: Mapping[str, Any]) -> bool:
    if not condition:
        return True
    found = _CONDITION.fullmatch(condition)
    assert found, condition
    return inputs[found["name"]] == json.loads(found["value"])
