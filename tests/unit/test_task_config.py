"""What a pipeline's author sets on the task of launch_tfjob, and how the replicas get it."""

import inspect
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from kfp import compiler, dsl, kubernetes
from kfp.dsl import TaskConfig

from kfp_tfjob.common.errors import Problems
from kfp_tfjob.components.launch_tfjob.component import launch_tfjob
from kfp_tfjob.components.launch_tfjob.task import apply
from kfp_tfjob.components.sync_output.component import sync_output
from kfp_tfjob.jobs.job_identity import Identity
from kfp_tfjob.jobs.manifest import build_job
from kfp_tfjob.jobs.spec import JobSpec
from kfp_tfjob.jobs.status import replicas
from kfp_tfjob.jobs.task_config import TaskSettings
from kfp_tfjob.pipelines.compilation import FOLDER
from kfp_tfjob.pipelines.step_pod import with_store
from kfp_tfjob.pipelines.without_task_config import launch_tfjob as without
from kfp_tfjob.pipelines.without_task_config import without_task_config
from tests.kfp.task_config_pipeline import task_config_pipeline
from tests.problems import problem_of, problems_of
from tests.unit.compiled_rules import broken, parts_of
from tests.unit.launch_parameters import DEFAULTS

# The TaskConfig that the driver of Kubeflow Pipelines 2.17.0 computed for the launch task of
# tests/kfp/task_config_pipeline.py, compiled, with token_secret `hub` and a proxy: initPodSpecPatch
# and extendPodSpecPatch of backend/src/v2/driver, in a Go test there.
DRIVER = Path(__file__).parents[1] / "data/task_config.json"
GPU = "nvidia.com/gpu"
STORE = "/etc/kfp-tfjob/storage"


def of_driver(value: dict[str, Any]) -> dict[str, Any]:
    """Return what the component hands to the engine, for what a driver has written."""
    spelled = {"nodeSelector": "node_selector", "volumeMounts": "volume_mounts"}
    return vars(TaskConfig(**{spelled.get(key, key): item for key, item in value.items()}))


def task(**fields: Any) -> dict[str, Any]:
    return vars(TaskConfig(**{"resources": {}} | fields))


def gpus(count: object, resource: str = GPU, **others: str) -> dict[str, Any]:
    return {"limits": {resource: str(count), **others}}


def merged(config: dict[str, Any], **parameters: Any) -> tuple[JobSpec, list[str]]:
    """Return the job of a task, and the notes about it."""
    problems = Problems()
    given, report = apply(DEFAULTS | parameters | {"task_config": config}, problems)
    assert not problems
    return JobSpec.parse(**given), list(report.notes)


def main_containers(spec: JobSpec) -> list[dict[str, Any]]:
    pods = [item.pod for item in replicas(build_job(spec, Identity("r", 1)))]
    return [container for pod in pods for container in pod["containers"]]


def test_what_a_driver_writes_reaches_every_replica() -> None:
    config = of_driver(json.loads(DRIVER.read_text()))
    assert {item["name"] for item in config["env"]} >= {"KFP_TFJOB_TOOLS_IMAGE", "HTTP_PROXY"}
    assert STORE in {item["mountPath"] for item in config["volume_mounts"]}
    spec, notes = merged(config, train_batch_size=0, pod={"all": {"env": {"LEVEL": "pod"}}})
    assert (spec.gpus, spec.batch_size) == (1, 128)
    job = build_job(spec, Identity("r", 1))
    assert [item.role for item in replicas(job)] == ["chief", "worker"]
    for item in replicas(job):
        (main,) = item.pod["containers"]
        wanted = {"cpu": "300m", "memory": "512Mi", "ephemeral-storage": "20Gi", GPU: "1"}
        assert main["resources"] == {"limits": wanted, "requests": wanted}
        env = {it["name"]: it for it in main["env"]}
        assert env["LEVEL"] == {"name": "LEVEL", "value": "pod"}
        secret = {"name": "hub", "key": "AWS_ACCESS_KEY_ID"}
        assert env["TOKEN"] == {"name": "TOKEN", "valueFrom": {"secretKeyRef": secret}}
        assert not any(name.upper().endswith("_PROXY") or "KFP_TFJOB" in name for name in env)
        mounts = [it["mountPath"] for it in main["volumeMounts"]]
        assert mounts.count(STORE) == mounts.count("/etc/secrets") == 1
        assert item.pod["nodeSelector"] == {"kubernetes.io/os": "linux"}
        toleration = {"key": "test-kfp", "operator": "Exists", "effect": "NoSchedule"}
        assert item.pod["tolerations"] == [toleration]
        assert {"name": "secret-0", "secret": {"secretName": "hub"}} in item.pod["volumes"]
    assert "pod.all.env.LEVEL replaces the task's LEVEL" in notes
    assert any("HTTP_PROXY" in note for note in notes)
    assert f"train_gpus is 1, from the task's accelerator {GPU}" in notes


def test_the_run_of_the_mlflow_plugin_is_left_to_the_launcher() -> None:
    server = {"name": "MLFLOW_TRACKING_URI", "value": "https://mlflow.example"}
    secret = {"name": "mlflow", "key": "token"}
    token = {"name": "MLFLOW_TRACKING_TOKEN", "valueFrom": {"secretKeyRef": secret}}
    of_author = [{"name": "A", "value": "b"}, server, token]
    run = {"name": "MLFLOW_RUN_ID", "value": "abc"}
    for variables, left in ((of_author, {"MLFLOW_TRACKING_URI"}), ([*of_author, run], set())):
        spec, _ = merged(task(env=variables))
        assert set(spec.pod.all.env or {}) == {"A", "MLFLOW_TRACKING_TOKEN"} | left


def test_pod_wins_and_the_rest_stays() -> None:
    required = {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name"}]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    config = task(
        resources={"limits": {"cpu": "2", "memory": "8Gi"}, "requests": {"cpu": "1"}},
        node_selector={"pool": "a", "disk": "ssd"},
        tolerations=[{"key": "spot", "operator": "Exists"}],
        affinity=affinity,
        env=[{"name": "EMPTY"}, {"name": "LEVEL", "value": "1"}],
        volumes=[{"name": "c", "persistentVolumeClaim": {"claimName": "cache", "readOnly": True}}],
        volume_mounts=[{"name": "c", "mountPath": "/cache"}],
    )
    pod = {
        "all": {"cpu": 8, "node_selector": {"pool": "b"}, "env": {"LEVEL": "1"}},
        "worker": {"memory": "4Gi", "tolerations": [{"key": "gpu", "operator": "Exists"}]},
    }
    spec, notes = merged(config, pod=pod)
    chief, worker = spec.pod.of("chief"), spec.pod.of("worker")
    assert (chief.cpu, chief.memory) == ("8", "8Gi")
    assert (worker.cpu, worker.memory) == ("8", "4Gi")
    assert chief.node_selector == {"pool": "b", "disk": "ssd"}
    assert [it.key for it in chief.tolerations or ()] == ["spot"]
    assert [it.key for it in worker.tolerations or ()] == ["gpu"]
    assert chief.affinity and chief.affinity.model_dump(exclude_none=True) == affinity
    assert chief.env == {"EMPTY": "", "LEVEL": "1"}
    (volume,) = chief.volumes or ()
    assert (volume.claim, volume.path, volume.read_only) == ("cache", "/cache", True)
    assert notes == [
        "the task requests 1 cpu and limits it to 2; a replica requests its limit, 2",
        "pod.all.cpu replaces the task's cpu",
        "pod.all.node_selector.pool replaces the task's pool",
        "pod.worker.memory replaces the task's memory",
        "pod.worker.tolerations replaces the task's tolerations",
    ]


@pytest.mark.parametrize("path", ["/dev/shm", "/dev/shm/"])
@pytest.mark.parametrize("size", ["8Gi", ""])
def test_an_empty_folder_at_dev_shm_is_shared_memory(size: str, path: str) -> None:
    shared_memory = {"medium": "Memory"} | ({"sizeLimit": size} if size else {})
    config = task(
        volumes=[{"name": "shm", "emptyDir": shared_memory}],
        volume_mounts=[{"name": "shm", "mountPath": path}],
    )
    spec, notes = merged(config)
    assert spec.pod.of("worker").shared_memory == (size or "2Gi")
    assert [bool(size), *("/dev/shm" in note for note in notes)] == (
        [True] if size else [False, True]
    )


def test_an_accelerator_is_gpus_and_rows() -> None:
    """Without GPUs in train_gpus, the task decides; with as many, both say the same."""
    spec, notes = merged(task(resources=gpus(4, "amd.com/gpu")), train_batch_size=0.0)
    assert (spec.gpus, spec.batch_size) == (4, 2 * 4 * 64)
    assert {it["resources"]["limits"].get("amd.com/gpu") for it in main_containers(spec)} == {"4"}
    assert notes == ["train_gpus is 4, from the task's accelerator amd.com/gpu"]
    spec, notes = merged(task(resources=gpus(2)), train_gpus=2.0)
    assert (spec.gpus, notes) == (2, [])
    spec, notes = merged(task(), train_gpus=2.0)
    assert (spec.gpus, notes) == (2, [])


@pytest.mark.parametrize(
    ("parameters", "received"),
    [
        ({"train_gpus": 4.0}, f"2 {GPU} on the task, but train_gpus 4"),
        (
            {"pod": {"all": {"gpu_resource": "nvidia.com/mig-1g.5gb"}}},
            f"2 {GPU} on the task, but pod.all.gpu_resource nvidia.com/mig-1g.5gb",
        ),
        (
            {"train_gpus": 1, "pod": {"worker": {"gpu_resource": "amd.com/gpu"}}},
            f"2 {GPU} on the task, but train_gpus 1 and pod.worker.gpu_resource amd.com/gpu",
        ),
    ],
)
def test_gpus_that_contradict_the_parameters_give_one_message(
    parameters: dict[str, Any], received: str
) -> None:
    problems = Problems()
    given = DEFAULTS | parameters
    _, report = apply(given | {"task_config": task(resources=gpus(2))}, problems)
    (problem,) = problems
    assert not isinstance(problem, str) and problem.received == received
    assert problem.path == "task_config.resources" and not report.settings


WRONG: dict[str, dict[str, Any]] = {
    "a variable of the job": {"env": [{"name": "EPOCHS", "value": "3"}]},
    "a key of a ConfigMap": {
        "env": [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}}]
    },
    "a field of the pod": {
        "env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]
    },
    "a part of a claim": {
        "volumes": [{"name": "c", "persistentVolumeClaim": {"claimName": "c"}}],
        "volume_mounts": [{"name": "c", "mountPath": "/c", "subPath": "a"}],
    },
    "a path of the job": {
        "volumes": [{"name": "c", "configMap": {"name": "c", "optional": False}}],
        "volume_mounts": [{"name": "c", "mountPath": "/dev/shm"}],
    },
    "no such volume": {"volume_mounts": [{"name": "c", "mountPath": "/c"}]},
    "half a GPU": {"resources": gpus("500m")},
    "a GPU of GKE": {"resources": gpus(1, "NVIDIA_TESLA_K80")},
    "bytes of memory": {"resources": {"limits": {"memory": "64"}}},
    "an operator": {"tolerations": [{"key": "a", "operator": "Exist"}]},
}


@pytest.mark.parametrize("name", WRONG)
def test_what_replicas_cannot_get_is_refused(name: str) -> None:
    problem = problem_of(TaskSettings.read, task(**WRONG[name]))
    assert problem.path.startswith("task_config.") and problem.received and problem.fix


def test_all_problems_of_a_task_come_at_once() -> None:
    names = ("a variable of the job", "no such volume", "half a GPU", "an operator")
    found = problems_of(
        TaskSettings.read, task(**{k: v for n in names for k, v in WRONG[n].items()})
    )
    assert len(found) == len(names)


def test_optional_objects_are_needed_by_replicas() -> None:
    secret = {"name": "hub", "key": "token", "optional": True}
    config = task(
        env=[{"name": "TOKEN", "valueFrom": {"secretKeyRef": secret}}],
        volumes=[{"name": "topology", "configMap": {"name": "topology", "optional": True}}],
        volume_mounts=[{"name": "topology", "mountPath": "/topology"}],
    )
    spec, (of_variable, of_volume) = merged(config)
    assert "hub" in of_variable and "topology" in of_volume
    assert [it.config_map for it in spec.pod.all.volumes or ()] == ["topology"]


def test_what_a_run_limits_or_mounts_otherwise_is_noted() -> None:
    config = task(
        resources={"requests": {"memory": "2Gi"}},
        volumes=[{"name": "scripts", "configMap": {"name": "m", "defaultMode": 0o755}}],
        volume_mounts=[{"name": "scripts", "mountPath": "/scripts"}],
    )
    spec, (of_memory, of_volume) = merged(config)
    assert spec.pod.all.memory == "2Gi" and "2Gi memory" in of_memory
    assert "0755" in of_volume


def test_a_back_end_that_passes_nothing_is_said_and_changes_nothing() -> None:
    """kfp.local leaves the TaskConfig of the executor empty; the compiled form has no input."""
    spec, (note,) = merged(vars(TaskConfig()))
    assert "kfp.local" in note and spec == JobSpec.parse(**DEFAULTS)
    problems = Problems()
    given, report = apply(DEFAULTS | {"task_config": None}, problems)
    assert (given, report.notes, report.settings) == (DEFAULTS, (), {})
    spec, notes = merged(task())  # an author who set nothing
    assert (spec, notes) == (JobSpec.parse(**DEFAULTS), [])


def test_wrong_parameters_are_left_to_their_own_check() -> None:
    wrong = [{"pod": pod} for pod in ({"cheif": {}}, {"all": 3}, "text")] + [{"train_gpus": -1}]
    for parameters in wrong:
        problems = Problems()
        given, _ = apply(DEFAULTS | parameters | {"task_config": task(resources=gpus(2))}, problems)
        assert not problems and problems_of(JobSpec.parse, **given)


# -- the two forms of the component ---------------------------------------------------------------


def test_the_compiled_form_differs_by_one_input() -> None:
    full = launch_tfjob.component_spec
    assert full.inputs.keys() - without.component_spec.inputs.keys() == {"task_config"}
    assert without.component_spec.outputs == full.outputs
    assert full.task_config_passthroughs and not without.component_spec.task_config_passthroughs
    *_, source = without.component_spec.implementation.container.command
    module: dict[str, Any] = {}
    exec(source, module)  # as the executor does
    left = inspect.signature(module["launch_tfjob"]).parameters
    assert [*left] == [
        it for it in inspect.signature(launch_tfjob.python_func).parameters if it != "task_config"
    ]
    with pytest.raises(ValueError, match="task_config"):
        without_task_config(sync_output)


@pytest.mark.parametrize("path", sorted(FOLDER.iterdir()), ids=lambda path: path.name)
def test_compiled_files_do_not_need_the_type(path: Path) -> None:
    text = path.read_text()
    assert not any(it in text for it in ("TaskConfig", "TASK_CONFIG", "taskConfig"))


def test_a_pipeline_of_an_author(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    compiler.Compiler().compile(task_config_pipeline, str(file))
    text = file.read_text()
    # The author's own Secret must exist, for the replicas too.
    assert {line.partition(":")[0] for line in broken(text)} == {"reference_that_must_exist"}
    pipeline, executors = parts_of(text)
    component = pipeline["components"]["comp-launch-tfjob"]
    config = component["inputDefinitions"]["parameters"]["task_config"]
    assert (config["parameterType"], config["isOptional"]) == ("TASK_CONFIG", True)
    applied = {
        it["field"]: it.get("applyToTask", False) for it in component["taskConfigPassthroughs"]
    }
    assert applied == {
        **dict.fromkeys(("RESOURCES", "KUBERNETES_TOLERATIONS", "KUBERNETES_NODE_SELECTOR"), False),
        **{"KUBERNETES_AFFINITY": False, "ENV": True, "KUBERNETES_VOLUMES": True},
    }
    # The launcher's own resources would be those of the replicas.
    container = pipeline["deploymentSpec"]["executors"]["exec-launch-tfjob"]["container"]
    resources = {it for it in container["resources"] if it.startswith("resource")}
    assert resources == {"resourceCpuLimit", "resourceMemoryLimit"}
    prepare = pipeline["deploymentSpec"]["executors"]["exec-prepare-data"]["container"]
    assert "resourceCpuRequest" in prepare["resources"]
    assert pipeline["root"]["dag"]["tasks"]["launch-tfjob"]["retryPolicy"]["maxRetryCount"] == 2
    mounts = [it["mountPath"] for it in executors["exec-launch-tfjob"]["secretAsVolume"]]
    assert mounts == [STORE, "/etc/secrets"]


def test_every_setter_that_the_component_passes_on_compiles(tmp_path: Path) -> None:
    @dsl.pipeline(name="own")
    def own() -> None:
        made = launch_tfjob(run_id="r", output_uri="s3://b/p")
        made.set_cpu_request("1").set_cpu_limit("2").set_memory_request("1G").set_memory_limit("2G")
        made.set_accelerator_type(GPU).set_accelerator_limit(2).set_env_variable("A", "b")
        kubernetes.add_toleration(made, key="a", operator="Exists")
        kubernetes.add_node_selector(made, "a", "b")
        kubernetes.add_node_affinity(
            made, match_expressions=[{"key": "a", "operator": "In", "values": ["b"]}]
        )
        kubernetes.mount_pvc(made, pvc_name="c", mount_path="/c")
        kubernetes.use_config_map_as_volume(made, "m", mount_path="/m")
        with_store(made)

    file = tmp_path / "own.yaml"
    compiler.Compiler().compile(own, str(file))
    assert yaml.safe_load_all(file.read_text())


def test_users_pipelines_find_with_store_under_its_former_name() -> None:
    from kfp_tfjob.pipelines import task

    assert task.with_store is with_store
