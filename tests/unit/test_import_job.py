"""`kfp-tfjob import`: what becomes of a job that a team already has."""

import io
import json
import re
import stat
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st

from kfp_tfjob.common.errors import ConfigurationError
from kfp_tfjob.common.escaping import MASK
from kfp_tfjob.components.preflight.parameters import defaults
from kfp_tfjob.jobs.kinds import kind_of
from kfp_tfjob.options.parameters import RunParameters, completed
from kfp_tfjob.pipelines.cli import main
from kfp_tfjob.pipelines.commands.parameters import parameters_of
from kfp_tfjob.pipelines.commands.render import first_attempt
from kfp_tfjob.pipelines.job_import import documents
from kfp_tfjob.pipelines.job_import.conversion import ImportedJob, convert
from kfp_tfjob.pipelines.job_import.image_config import ImageConfig, inspect
from kfp_tfjob.pipelines.job_import.parameters_file import to_yaml
from tests.problems import problem_of, problems_of

JOBS = Path(__file__).parents[1] / "data" / "jobs"
NAMES = sorted(path.stem for path in JOBS.glob("*.yaml"))
IMAGE = ImageConfig(("python3", "/app/train.py"), ("--steps", "5"), "docker image inspect x")


def of_image(image: str) -> ImageConfig | None:
    return IMAGE


def nobody(image: str) -> None:
    return None


def read(name: str) -> dict[str, Any]:
    (job,) = documents.read(JOBS / f"{name}.yaml").jobs
    return job


def imported(name: str) -> ImportedJob:
    return convert(read(name), ask=of_image)


def tfjob(pod: Mapping[str, Any] | None = None, **container: Any) -> dict[str, Any]:
    """Return a TFJob with one worker, with these fields of its pod and its container."""
    main = {"name": "tensorflow", "image": "team/x:1", "command": ["train"], **container}
    template = {"spec": {"containers": [main], **(pod or {})}}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "TFJob",
        "metadata": {"name": "j"},
        "spec": {"tfReplicaSpecs": {"Worker": {"replicas": 1, "template": template}}},
    }


def jobset(*roles: dict[str, Any], **network: Any) -> dict[str, Any]:
    """Return a JobSet with these replicatedJobs."""
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "js"},
        "spec": {"network": network, "replicatedJobs": list(roles)},
    }


def replicated(pods: int = 4, jobs: int = 1, name: str = "worker", **container: Any) -> Any:
    """Return a replicatedJob with these numbers of Jobs and pods in each, and one container."""
    main = {"name": "jax", "image": "team/x:1", "command": ["train"], **container}
    spec = {"parallelism": pods, "completions": pods, "template": {"spec": {"containers": [main]}}}
    return {"name": name, "replicas": jobs, "template": {"spec": spec}}


def variables(**values: str) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in values.items()]


def command_of(job: dict[str, Any]) -> list[str]:
    return convert(job).parameters["train_options"]["command"]


def rendered(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the job that `render` prints for parameters."""
    given = {"output_uri": "s3://bucket", "model_name": "model"} | dict(parameters)
    return yaml.safe_load(first_attempt(completed(defaults(), given), "RUN-ID"))


# --- What is equal between a job and the run's job, and every difference with its reason.

DIFFERENCES = {
    r"sidecar-upload chief mount/results": "on the claim, each attempt has a folder of its own",
    r"parameter-servers (worker|ps) mount/train": "it is a folder below JOB_DIR",
    r"parameter-servers \w+ command": "the shell changes the folder first",
    r"workers-only \w+ command": "the image's ENTRYPOINT, before the job's arguments",
}


def facts(role: str, pod: Mapping[str, Any], main: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield what a pod template says about a program's pod, by path."""
    volumes = {it["name"]: {k: v for k, v in it.items() if k != "name"} for it in pod["volumes"]}
    command = [*main.get("command", ()), *main.get("args", ())]
    yield f"{role} command", command[command.index("--") + 1 :] if "--" in command else command
    yield f"{role} image", main["image"]
    for item in main.get("env", ()):
        yield f"{role} env/{item['name']}", item.get("value", item.get("valueFrom"))
    for name, quantity in main.get("resources", {}).get("limits", {}).items():
        yield f"{role} limit/{name}", str(quantity)
    for it in main.get("volumeMounts", ()):
        source = volumes[it["name"]] | {name: it.get(name) for name in ("readOnly", "subPath")}
        yield f"{role} mount{it['mountPath']}", source
    for name in ("nodeSelector", "priorityClassName", "serviceAccountName", "imagePullSecrets"):
        if name in pod:
            yield f"{role} {name}", pod[name]
    for number, item in enumerate(pod.get("tolerations", ())):
        yield f"{role} toleration/{number}", item


def facts_of_source(job: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    (specs,) = [it for name, it in job["spec"].items() if name.endswith("ReplicaSpecs")]
    has_chief = {"chief", "master"} & {name.lower() for name in specs}
    for name, item in specs.items():
        role = "chief" if name.lower() == "master" else name.lower()
        pod = {"volumes": [], **item["template"]["spec"]}
        roles = [role] if has_chief or role != "worker" else ["chief", "worker"]
        for each in roles:
            yield from facts(each, pod, pod["containers"][0])
            for key, value in item["template"].get("metadata", {}).get("annotations", {}).items():
                yield f"{each} annotation/{key}", value


def facts_of_run(job: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for item in kind_of(dict(job)).replicas(dict(job)):
        yield from facts(item.role, item.pod, item.pod["containers"][0])
        for key, value in item.template["metadata"]["annotations"].items():
            yield f"{item.role} annotation/{key}", value


@pytest.mark.parametrize("kind", ["tfjob", "jobset"])
@pytest.mark.parametrize("name", NAMES)
def test_every_other_field_of_a_job_is_in_the_run_s_job(name: str, kind: str) -> None:
    job = imported(name)
    options = job.parameters["train_options"] | {"job": kind}
    run = rendered({**job.parameters, "train_options": options})
    theirs, ours = dict(facts_of_source(read(name))), dict(facts_of_run(run))
    different = {key for key, value in theirs.items() if ours.get(key) != value}
    expected = {key for key in theirs for it in DIFFERENCES if re.fullmatch(it, f"{name} {key}")}
    assert different == expected


@pytest.mark.parametrize(
    ("name", "counts", "gpus"),
    [
        ("sidecar-upload", {"chief": 1, "worker": 2}, 3),
        ("workers-only", {"chief": 1, "worker": 2}, 0),
        ("parameter-servers", {"chief": 1, "worker": 1, "ps": 2}, 0),
        ("master-v1beta1", {"chief": 1, "worker": 1}, 0),
        ("pytorch-gpus", {"chief": 1, "worker": 3}, 32),
    ],
)
def test_the_run_has_as_many_replicas_and_gpus(name, counts, gpus):
    run = rendered(imported(name).parameters)
    replicas = kind_of(run).replicas(run)
    assert {it.role: it.count for it in replicas} == counts
    limits = [(it.count, it.pod["containers"][0]["resources"]["limits"]) for it in replicas]
    assert sum(n * int(its.get("nvidia.com/gpu", 0)) for n, its in limits) == gpus


@pytest.mark.parametrize("name", NAMES)
def test_the_written_file_gives_the_same_parameters(name: str, tmp_path: Path) -> None:
    job = imported(name)
    file = tmp_path / "params.yaml"
    file.write_text(to_yaml(job.parameters, job.notes, "Title"))
    given = {"settings": (), "file": file}
    values = parameters_of(given, here=False, environment={}).values
    assert {key: values[key] for key in job.parameters} == job.parameters
    comments = " ".join(it.strip(" #") for it in file.read_text().splitlines() if "#" in it)
    for note in job.notes:
        assert " ".join(note.field.split()) in " ".join(comments.split())


def test_the_sidecar_of_a_chief_becomes_the_run_s_own():
    job = imported("sidecar-upload")
    found = job.parameters
    assert (found["output_uri"], found["storage_secret"]) == (
        "s3://vision-results/nightly",
        "vision-store",
    )
    assert found["pod"]["chief"] == {"output_path": "/results", "output_claim": "vision-results"}
    assert (found["train_workers"], found["train_gpus"]) == (2, 1)
    assert found["train_options"]["command"] == ["python3", "fit.py"]
    fields = {note.field: note.anchor for note in job.notes}
    assert (
        fields.items()
        >= {
            "Chief.containers.copier (amazon/aws-cli)": ("output_uri",),
            "$(HOSTNAME)": ("output_uri",),
            "Chief.restartPolicy: OnFailure, worker.restartPolicy: OnFailure": ("train_options",),
            "runPolicy.cleanPodPolicy: None": ("train_options",),
            "Chief.containers.train, worker.containers.train": ("train_image",),
            "shared memory": ("pod",),
            "namespace: vision": (),
        }.items()
    )


def test_of_workers_alone_the_first_becomes_the_chief():
    job = imported("workers-only")
    options = job.parameters["train_options"]
    assert options["command"] == ["python3", "/app/train.py", "--steps", "20"]
    assert options["chief_in_tf_config"] is False
    assert job.parameters["pod"]["all"]["queue"] == "team-queue"
    run = rendered(job.parameters)
    assert run["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team-queue"
    for item in kind_of(run).replicas(run):
        env = {it["name"]: it.get("value") for it in item.pod["containers"][0]["env"]}
        assert (env["CHIEF_IN_TF_CONFIG"], env["EXPECTED_REPLICAS"]) == ("0", "3")
        assert item.template["metadata"]["labels"]["team"] == "ranking"


def test_one_worker_alone_needs_no_tf_config():
    assert "chief_in_tf_config" not in convert(tfjob()).parameters["train_options"]


def test_policies_become_options_or_comments():
    job = imported("parameter-servers")
    options = job.parameters["train_options"]
    assert options["command"][:3] == ["sh", "-c", 'cd \'/srv/rec\' && exec "$0" "$@"']
    assert (options["deadline_seconds"], options["ttl_seconds"]) == (86400, 600)
    pod = job.parameters["pod"]
    assert (pod["ps"]["image"], pod["ps"]["replicas"]) == ("registry.example.com/rec/ps:2", 2)
    settings = {"cpu": "4", "memory": "16Gi", "priority_class": "training"}
    assert pod["chief"] == pod["worker"] == {"output_path": "/train"} | settings
    assert {"runPolicy.backoffLimit: 3", "successPolicy: AllWorkers"} <= {
        it.field for it in job.notes
    }


def test_a_variable_that_is_also_a_parameter_becomes_one():
    job = imported("master-v1beta1")
    assert job.parameters["train_epochs"] == 7
    token = {"WAREHOUSE_TOKEN": {"secret": "warehouse", "key": "token"}}
    assert job.parameters["pod"]["all"]["env"] == token
    volume = {"secret_name": "warehouse", "path": "/etc/secrets", "read_only": True}
    assert job.parameters["pod"]["all"]["volumes"] == [volume]
    assert "cleanPodPolicy: All" in {it.field for it in job.notes}


def test_an_elastic_job_meets_at_the_chief_with_a_fixed_number_of_replicas():
    job = read("pytorch-gpus")
    policy = {"minReplicas": 1, "maxReplicas": 4, "rdzvBackend": "c10d", "maxRestarts": 3}
    policy["rdzvConf"] = [{"key": "timeout", "value": "60"}]
    job["spec"]["elasticPolicy"] = policy
    found = convert(job)
    assert found.parameters["train_workers"] == 3
    assert (
        found.parameters["pod"]["all"]["env"].items()
        >= {
            "PET_NPROC_PER_NODE": "8",
            "PET_RDZV_BACKEND": "c10d",
            "PET_RDZV_CONF": "timeout=60",
            "PET_MAX_RESTARTS": "3",
        }.items()
    )
    command = found.parameters["train_options"]["command"]
    assert command[2].startswith("export PET_RDZV_ENDPOINT=$MASTER_ADDR:$MASTER_PORT && exec")
    assert "elasticPolicy" in {it.field for it in found.notes}


def test_a_claim_of_all_roles_is_not_the_output():
    job = imported("pytorch-gpus")
    pod = job.parameters["pod"]
    assert "chief" not in pod and pod["all"]["shared_memory"] == "64Gi"
    assert pod["all"]["volumes"] == [{"claim": "checkpoints", "path": "/checkpoints"}]
    assert pod["all"]["env"]["PET_NPROC_PER_NODE"] == "8"
    (note,) = [it for it in job.notes if it.field.startswith("output:")]
    assert "/checkpoints" in note.field


@pytest.mark.parametrize(
    ("pod", "container", "chief"),
    [
        (
            {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]},
            {"args": ["--log_dir=/train/logs"]},
            {"output_path": "/train", "output_claim": "c"},
        ),
        (
            {"volumes": [{"name": "v", "emptyDir": {}}]},
            {"args": ["--log_dir", "/train/logs"]},
            {"output_path": "/train"},
        ),
        ({"volumes": [{"name": "v", "emptyDir": {}}]}, {}, {"output_path": "/train"}),
        (
            {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]},
            {"args": ["--data=/train/data", "--log_dir=/train/logs"]},
            {"volumes": [{"claim": "c", "path": "/train"}]},
        ),
    ],
)
def test_the_output_is_where_flags_say(pod, container, chief):
    """A claim from which the program also reads stays a volume, or its files would be missing."""
    mounts = {"volumeMounts": [{"name": "v", "mountPath": "/train"}]}
    found = convert(tfjob(pod, **mounts, **container)).parameters["pod"]
    assert found.get("chief", found.get("all")) == chief


CLAIMS = {
    "volumes": [
        {"name": name, "persistentVolumeClaim": {"claimName": name}} for name in ("in", "out")
    ]
}
BOTH = [{"name": name, "mountPath": f"/{name}"} for name in ("in", "out")]


@pytest.mark.parametrize(
    ("args", "env", "path"),
    [
        (["--init_checkpoint=/in/bert.ckpt", "--output_dir=/out/run1"], {}, "/out"),
        (["--catalog=/in/x", "--outputDir", "/out/run1"], {}, "/out"),
        (["--resume_from_checkpoint", "/in/x"], {}, None),
        (["--logging_dir=/in/x", "--model-dir=/out"], {}, None),
        (["--log_dir=/out/logs"], {"TRAIN_FILE": "/out/train.tfrecord"}, None),
        (["--log_dir=/out/logs"], {"LOG_DIR": "/out/logs", "TRAIN_FILE": "/in/train"}, "/out"),
    ],
)
def test_a_claim_that_a_program_reads_is_not_its_output(args, env, path):
    job = convert(tfjob(CLAIMS, args=args, env=variables(**env), volumeMounts=BOTH))
    output = job.parameters["pod"].get("chief", {})
    assert output.get("output_path") == path
    assert ("output_claim" in output) == (path is not None)


def test_an_empty_folder_that_no_flag_names_is_not_the_output():
    """The flag's folder is in the container itself, so the output would have been the cache."""
    pod = {"volumes": [{"name": "v", "emptyDir": {}}]}
    mounts = [{"name": "v", "mountPath": "/cache"}]
    job = tfjob(pod, args=["--log_dir=/logs"], volumeMounts=mounts)
    assert problem_of(convert, job).path == "Worker.volumes.v at /cache"


def test_of_several_folders_in_flags_an_empty_one_is_the_output():
    volumes = [*CLAIMS["volumes"], {"name": "v", "emptyDir": {}}]
    mounts = [*BOTH, {"name": "v", "mountPath": "/logs"}]
    args = ["--model_dir=/out", "--log_dir=/logs/x"]
    job = convert(tfjob({"volumes": volumes}, args=args, volumeMounts=mounts))
    assert job.parameters["pod"]["chief"] == {"output_path": "/logs"}
    fields = {note.field: note.reason for note in job.notes}
    assert "/logs/x" in fields["output: /logs"] and "output: /out" in fields


def test_an_empty_folder_of_each_worker_is_its_own_output():
    """Only the chief's is stored, but the path has to exist in all of them."""
    pod = {"volumes": [{"name": "v", "emptyDir": {}}, {"name": "w", "emptyDir": {}}]}
    job = tfjob(pod, volumeMounts=[{"name": "v", "mountPath": "/train"}])
    spec = job["spec"]["tfReplicaSpecs"]["Worker"]
    spec["replicas"] = 2
    path = {"output_path": "/train"}
    assert convert(job).parameters["pod"] == {"chief": path, "worker": path}
    main = spec["template"]["spec"]["containers"][0]
    main["volumeMounts"].append({"name": "w", "mountPath": "/cache"})
    fields = {it.path for it in problems_of(convert, job)}
    assert fields == {"Worker.volumes.v at /train", "Worker.volumes.w at /cache"}


def test_a_program_that_uploads_by_itself_is_no_sidecar():
    """It was taken for its own sidecar, and its address for that of the run."""
    command = ["bash", "-c", "train && aws s3 cp --recursive /out s3://bucket/x"]
    job = tfjob(command=command)
    main = job["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    others = [{"name": "board", "image": "team/board", "command": ["tensorboard"]}]
    job["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["containers"] = [main, *others]
    found = convert(job)
    assert "output_uri" not in found.parameters
    assert found.parameters["train_options"]["command"] == command
    assert "Worker.containers.board (team/board)" in {it.field for it in found.notes}


SYNC = {"name": "up", "image": "aws", "volumeMounts": [{"name": "v", "mountPath": "/results"}]}


def with_sidecar(command: str, role: str = "Worker", replicas: int = 1) -> dict[str, Any]:
    """Return a TFJob whose pods have a sidecar with the program's only volume."""
    job = tfjob({"volumes": [{"name": "v", "emptyDir": {}}]}, volumeMounts=SYNC["volumeMounts"])
    spec = job["spec"]["tfReplicaSpecs"].pop("Worker") | {"replicas": replicas}
    spec["template"]["spec"]["containers"].append({**SYNC, "command": ["sh", "-c", command]})
    job["spec"]["tfReplicaSpecs"][role] = spec
    return job


def test_of_workers_with_a_sidecar_each_only_one_is_stored():
    job = convert(with_sidecar("aws s3 sync /results s3://out/x", replicas=4))
    assert job.parameters["output_uri"] == "s3://out/x"
    anchors = {note.anchor for note in job.notes if note.field == "Worker.containers.up (aws)"}
    assert anchors == {("output_uri",), ("pod",)}


@pytest.mark.parametrize(
    "command",
    [
        "while true; do aws s3 sync s3://lake/train /results; sleep 60; done",
        "aws s3 cp --recursive 's3://lake/$(NAME)/x' ./data",
        "aws s3 cp s3://lake/x.tar - | tar x -C /results",
        "aws s3 sync --endpoint-url http://minio:9000 \\\n  s3://lake/x \\\n  /results",
        "s5cmd cp 's3://lake/x/*' \"$DATA_DIR\"",
        "gsutil -m rsync -r gs://lake/x /results",
        "gcloud storage cp -r gs://lake/x /results && sleep infinity",
        "rclone copy --progress lake:train /results",
        "mc mirror store/lake/train /results",
    ],
)
def test_a_sidecar_that_downloads_is_refused_and_names_no_store(command):
    """Its address was taken for the output's, and the data for the output."""
    job = with_sidecar(command, "Chief")
    assert {it.path for it in problems_of(convert, job)} >= {"Chief.containers.up"}
    main, sidecar = job["spec"]["tfReplicaSpecs"]["Chief"]["template"]["spec"]["containers"]
    sidecar["volumeMounts"] = []
    assert main["volumeMounts"]
    parameters = convert(job).parameters  # it does not share the files with the program
    assert "output_uri" not in parameters


@pytest.mark.parametrize(
    "command",
    [
        "aws s3 sync s3://lake/x /cache; aws s3 sync /results s3://out/x --delete; done",
        "aws s3 sync /results s3://out/x 2>&1 | tee log",
        "aws s3 sync /results s3://out/x $FLAGS\nsleep 60",
        "aws s3 cp --recursive --exclude tmp/* /results s3://out/x",
        "(s5cmd sync /results/ s3://out/x) || true",
        "mc mirror --watch /results store/out",
        "rclone copy /results out:x --progress",
        "rclone copy results/ $REMOTE:x",
    ],
)
def test_a_sidecar_that_uploads_is_replaced(command):
    job = convert(with_sidecar(command, "Chief"))
    uri = "s3://out/x" if "s3://" in command else None
    assert job.parameters.get("output_uri") == uri
    assert job.parameters["pod"]["chief"]["output_path"] == "/results"
    assert "Chief.containers.up (aws)" in {note.field for note in job.notes}


def test_a_program_that_fetches_its_data_is_not_taken_for_a_helper():
    """The metrics' exporter was trained."""
    fetch = ["bash", "-c", "aws s3 cp s3://lake/x.csv /tmp && train && aws s3 cp /tmp s3://out/x"]
    main = {"name": "trainer", "image": "team/x:1", "command": fetch}
    exporter = {"name": "exporter", "image": "team/dcgm:1", "command": ["dcgm-exporter"]}
    role = replicated(pods=1)
    containers = role["template"]["spec"]["template"]["spec"]["containers"]
    containers[:] = [exporter, main | {"resources": {"limits": {"nvidia.com/gpu": 1}}}]
    parameters = convert(jobset(role)).parameters
    assert (parameters["train_image"], parameters["train_gpus"]) == ("team/x:1", 1)
    containers[:] = [main, exporter]  # without GPUs, neither its name nor its program shows it
    assert problem_of(convert, jobset(role)).path == "worker.containers"
    containers[0] = main | {"name": "tensorflow"}
    assert command_of(jobset(role)) == fetch
    containers[:] = [main]
    assert command_of(jobset(role)) == fetch


def test_a_name_that_the_server_completes_names_the_model():
    job = tfjob() | {"metadata": {"generateName": "nightly-"}}
    assert convert(job).parameters["model_name"] == "nightly"


# --- What a run cannot do.


@pytest.mark.parametrize(
    ("pod", "container", "field"),
    [
        ({}, {"envFrom": [{"secretRef": {"name": "s"}}]}, "Worker.envFrom"),
        ({}, {"env": [{"name": "RUN_ID", "value": "7"}]}, "Worker.env.RUN_ID"),
        ({}, {"env": [{"name": "EPOCHS", "value": "many"}]}, "env.EPOCHS"),
        (
            {},
            {"env": [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "m", "key": "k"}}}]},
            "Worker.env.A",
        ),
        (
            {},
            {
                "env": [{"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
                "args": ["--host=$(IP)"],
            },
            "Worker.env.IP",
        ),
        (
            {"volumes": [{"name": "v", "hostPath": {"path": "/data"}}]},
            {"volumeMounts": [{"name": "v", "mountPath": "/data"}]},
            "Worker.volumes.v at /data",
        ),
        (
            {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]},
            {"volumeMounts": [{"name": "v", "mountPath": "/data", "subPath": "a"}]},
            "Worker.volumes.v at /data",
        ),
        ({"initContainers": [{"name": "i", "image": "x"}]}, {}, "Worker.initContainers.i"),
        ({"securityContext": {"runAsUser": 0}}, {}, "Worker.securityContext"),
        ({}, {"securityContext": {"privileged": True}}, "Worker.securityContext"),
        (
            {},
            {"resources": {"limits": {"nvidia.com/gpu": "half"}}},
            "Worker.resources.nvidia.com/gpu",
        ),
        ({}, {"resources": {"claims": [{"name": "gpu"}]}}, "Worker.resources.claims"),
        ({}, {"command": ["train", "--master=j-worker-1.default.svc:2222"]}, "command"),
    ],
)
def test_what_would_train_something_else_is_refused(pod, container, field):
    assert problem_of(convert, tfjob(pod, **container)).path == field


@pytest.mark.parametrize(
    ("chief", "field"),
    [
        ({"command": ["lead"]}, "Worker.command"),
        ({"resources": {"limits": {"nvidia.com/gpu": 2}}}, "resources"),
        ({"workingDir": "/srv"}, "workingDir"),
    ],
)
def test_a_chief_that_differs_from_the_workers_is_refused(chief, field):
    job = tfjob()
    specs = job["spec"]["tfReplicaSpecs"]
    main = specs["Worker"]["template"]["spec"]["containers"][0]
    specs["Chief"] = {"template": {"spec": {"containers": [{**main, **chief}]}}}
    assert problem_of(convert, job).path == field
    specs["Chief"]["template"]["spec"]["containers"] = [{**main, "image": "team/lead:1"}]
    assert convert(job).parameters["pod"]["worker"]["image"] == "team/x:1"


def test_all_reasons_come_at_once():
    pod = {"initContainers": [{"name": "i", "image": "x"}], "securityContext": {"runAsUser": 0}}
    assert len(problems_of(convert, tfjob(pod, envFrom=[{"secretRef": {"name": "s"}}]))) == 3


def _kind(**changes: Any) -> dict[str, Any]:
    return tfjob() | changes


@pytest.mark.parametrize(
    ("text", "path"),
    [
        (yaml.dump(_kind(apiVersion="kubeflow.org/v1alpha1")), "apiVersion"),
        (yaml.dump(_kind(apiVersion="trainer.kubeflow.org/v1alpha1", kind="TrainJob")), "kind"),
        (yaml.dump(_kind(kind="MPIJob")), "kind"),
        (yaml.dump(_kind(apiVersion="apps/v1", kind="Deployment")), ""),
        ("a: [1", ""),
        ("a: &a [*a]", ""),
        ("", ""),
        ("text", ""),
        ("- 1", ""),
        (yaml.dump(_kind(spec={})), "spec.tfReplicaSpecs"),
        (yaml.dump(_kind(spec={"tfReplicaSpecs": {"Worker": None}})), "Worker.template.spec"),
        (yaml.dump(_kind(spec={"tfReplicaSpecs": {"Wroker": {}}})), "spec.Wroker"),
        (yaml.dump(_kind(spec={"tfReplicaSpecs": []})), "spec.tfReplicaSpecs"),
        (yaml.dump(tfjob(env="A=1")), "Worker.template.spec.containers.0.env"),
        (yaml.dump(tfjob(image="Team/:1")), ""),
    ],
)
def test_what_import_cannot_read_is_one_message(text: str, path: str, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(text)
    result = CliRunner().invoke(main, ["import", str(file)])
    assert result.exit_code == 2 and isinstance(result.exception, SystemExit)
    assert result.stderr.count("Received:") == 1
    problem = problem_of(lambda: [convert(it) for it in documents.read(file).jobs])
    assert problem.path == path and problem.fix


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every place in a document: the container, and the key or index in it."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        yield value, key
        if isinstance(inner, dict | list):
            yield from _places(inner)


@pytest.mark.parametrize("name", NAMES)
def test_no_field_of_another_type_ends_in_a_traceback(name):
    job = json.loads(json.dumps(read(name)))
    for container, key in list(_places(job["spec"])):
        before = container[key]
        for value in (None, 1, "", [], {}, True, [1], {"a": 1}):
            container[key] = value
            with suppress(ConfigurationError):
                found = convert(job, ask=nobody)
                to_yaml(found.parameters, found.notes, "Title")
        container[key] = before


def test_of_two_jobs_the_wrong_one_is_named_and_nothing_is_written(tmp_path):
    wrong = tfjob(securityContext={"privileged": True}) | {"metadata": {"name": "wrong"}}
    file = tmp_path / "jobs.yaml"
    file.write_text(yaml.dump_all([tfjob(), wrong]))
    result = CliRunner().invoke(main, ["import", str(file), "--output", str(tmp_path / "p.yaml")])
    assert result.exit_code == 2 and "TFJob wrong" in result.stderr
    assert [it.name for it in tmp_path.iterdir()] == ["jobs.yaml"]


def test_several_jobs_become_one_file_each(tmp_path):
    other = tfjob() | {"metadata": {"name": "other"}}
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}}
    file = tmp_path / "jobs.yaml"
    file.write_text(yaml.dump_all([tfjob(), other, service]))
    assert CliRunner().invoke(main, ["import", str(file)]).exit_code == 2
    result = CliRunner().invoke(main, ["import", str(file), "--output", str(tmp_path / "p.yaml")])
    assert result.exit_code == 0, result.stderr
    names = [tmp_path / "p-j.yaml", tmp_path / "p-other.yaml"]
    same = tmp_path / "same.yaml"
    same.write_text(yaml.dump_all([tfjob(), tfjob()]))
    numbered = CliRunner().invoke(main, ["import", str(same), "--output", str(tmp_path / "n.yaml")])
    assert [Path(it).name for it in numbered.stdout.split()] == ["n-1-j.yaml", "n-2-j.yaml"]
    assert result.stdout.split() == list(map(str, names))
    assert [yaml.safe_load(it.read_text())["model_name"] for it in names] == ["j", "other"]
    assert all("Service/s" in it.read_text() for it in names)


# --- Where the job comes from.


def test_a_live_object_gives_the_same_parameters(monkeypatch):
    """`kubectl get tfjob NAME -o yaml | kfp-tfjob import -`."""
    live = read("master-v1beta1")
    live["metadata"] |= {
        "uid": "6a1f3c1e",
        "resourceVersion": "7",
        "creationTimestamp": "2026-11-28T10:00:00Z",
        "managedFields": [{"manager": "kubectl", "fieldsV1": {"f:spec": {}}}],
        "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}"},
    }
    live["status"] = {"conditions": [{"type": "Running", "status": "True"}]}
    live["spec"]["tfReplicaSpecs"]["Master"]["template"]["metadata"]["creationTimestamp"] = None
    text = yaml.dump({"apiVersion": "v1", "kind": "List", "items": [live]})
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    (job,) = documents.read(documents.STDIN).jobs
    found = convert(job)
    assert (found.parameters, found.notes) == (
        imported("master-v1beta1").parameters,
        imported("master-v1beta1").notes,
    )


# --- How the replicas find each other.


def test_a_jobset_of_one_role_is_numbered_as_before():
    command = ["run", "--host=js-node-0-0.js", "$JOB_COMPLETION_INDEX", "$(JOB_COMPLETION_INDEX)"]
    env = variables(MASTER_ADDR="js-node-0-0")
    role = replicated(name="node", command=command, env=env)
    role["template"]["spec"]["backoffLimit"] = 0
    job = convert(jobset(role, enableDNSHostnames=True))
    options = job.parameters["train_options"]
    assert options["job"] == "jobset" and job.parameters["train_workers"] == 3
    shell, _, script, *program = options["command"]
    assert shell == "sh" and script == 'export JOB_COMPLETION_INDEX=$RANK && exec "$0" "$@"'
    assert program == ["run", "--host=$(MASTER_ADDR)", "$JOB_COMPLETION_INDEX", "$(RANK)"]
    assert "env" not in job.parameters.get("pod", {}).get("all", {})
    fields = {it.field for it in job.notes}
    assert {"network", "node.backoffLimit", "node.env.MASTER_ADDR"} <= fields


INDEX = "JOB_COMPLETION_INDEX"
CHIEF = replicated(pods=1, name="chief")


@pytest.mark.parametrize(
    ("roles", "script", "is_noted"),
    [
        ([replicated(pods=4)], f"export {INDEX}=$RANK", True),
        ([replicated(pods=1)], "", False),
        ([replicated(pods=1, jobs=4)], "", True),
        ([replicated(pods=1), replicated(pods=2, name="ps")], "", True),
        ([CHIEF, replicated(pods=3)], "", False),  # both Jobs are as before
        ([CHIEF, replicated(pods=1, jobs=3)], "", True),
    ],
)
def test_a_program_that_reads_its_index_in_the_job_sees_the_same(roles, script, is_noted):
    """Without a chief, the run's pods are in two Jobs, and each has a pod 0."""
    job = convert(jobset(*roles))
    command = job.parameters["train_options"]["command"]
    assert command == (
        ["sh", "-c", f'{script} && exec "$0" "$@"', "train"] if script else ["train"]
    )
    assert (INDEX in {note.field for note in job.notes}) == is_noted
    if is_noted and not script:
        for role in roles:
            (main,) = role["template"]["spec"]["template"]["spec"]["containers"]
            main["command"] = ["train", f"$({INDEX})"]
        assert problem_of(convert, jobset(*roles)).path == INDEX


def test_torchrun_finds_the_chief_of_the_run_and_not_of_the_old_job():
    """A JobSet of Kubeflow Trainer names its own node 0, and torchrun waited for it."""
    path = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    env = [
        *variables(PET_NNODES="2", PET_NPROC_PER_NODE="8", PET_MASTER_ADDR="js-node-0-0.js"),
        *variables(PET_MASTER_PORT="29500"),
        {"name": "PET_NODE_RANK", "valueFrom": {"fieldRef": {"fieldPath": path}}},
    ]
    command = ["torchrun", "--nnodes=$(PET_NNODES)", "--node-rank=$(PET_NODE_RANK)", "train.py"]
    job = convert(jobset(replicated(pods=2, name="node", env=env, command=command)))
    assert job.parameters["pod"]["all"]["env"] == {"PET_NPROC_PER_NODE": "8"}
    options = job.parameters["train_options"]
    assert options["command"][2] == f'export {INDEX}=$RANK && exec "$0" "$@"'
    arguments = ["--nnodes=$(WORLD_SIZE)", "--node-rank=$(RANK)", "train.py"]
    assert options["command"][4:] == arguments
    names = ("PET_NNODES", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT")
    assert ", ".join(f"node.env.{name}" for name in sorted(names)) == ", ".join(
        sorted(field for note in job.notes for field in note.field.split(", ") if "PET_" in field)
    )
    shell = ["sh", "-c", "torchrun --nnodes=$PET_NNODES train.py"]
    alone = command_of(jobset(replicated(pods=1, name="node", env=env, command=shell)))
    assert alone == ["sh", "-c", 'export PET_NNODES=$WORLD_SIZE && exec "$0" "$@"', *shell]


@pytest.mark.parametrize(
    ("job", "path"),
    [
        (tfjob(env=variables(COORDINATOR="j-worker-0.team.svc:2222")), "Worker.env.COORDINATOR"),
        (tfjob(env=variables(HOSTS="j-worker-0,j-worker-1")), "Worker.env.HOSTS"),
        (tfjob(env=variables(COORD="$(MASTER_ADDR):1234")), "Worker.env.COORD"),
        (tfjob(env=variables(NODES="$(PET_NNODES)")), "Worker.env.NODES"),
        (
            jobset(replicated(env=variables(JAX="js-worker-0-0.sub:1")), subdomain="sub"),
            "worker.env.JAX",
        ),
    ],
)
def test_a_variable_with_an_address_of_the_old_job_is_refused(job, path):
    assert problem_of(convert, job).path == path


def test_a_variable_that_only_resembles_an_address_is_kept():
    env = {"A": "$$(MASTER_ADDR)", "B": "proj-worker-0", "C": "j-worker", "D": "$(A)"}
    assert convert(tfjob(env=variables(**env))).parameters["pod"]["all"]["env"] == env


@pytest.mark.parametrize(
    ("host", "namespace"),
    [
        ("j-worker-0:2222", ""),
        ("j-worker-0.team:2222", ""),
        ("j-worker-0.team.svc:2222", ""),
        ("j-worker-0.default.svc.cluster.local.:2222", ""),
        ("j-worker-0.team.svc.cluster.local:2222", "team"),
    ],
)
def test_the_chief_s_host_name_is_replaced_with_its_whole_domain(host, namespace):
    job = tfjob(command=["train", f"--master=grpc://{host},b"])
    job["metadata"]["namespace"] = namespace
    assert command_of(job) == ["train", "--master=grpc://$(MASTER_ADDR):2222,b"]


@pytest.mark.parametrize("host", ["j-worker-0.other.svc", "j-worker-0.log", "j-worker-7"])
def test_another_name_after_a_pod_s_is_refused(host):
    job = tfjob(command=["train", f"--master={host}:1"])
    job["metadata"]["namespace"] = "team"
    problem = problem_of(convert, job)
    assert problem.path == "command" and host in problem.received


@pytest.mark.parametrize("host", ["js-worker-0-0", "js-worker-0-0.sub", "js-worker-0-0.sub.a.svc"])
def test_the_pods_of_a_jobset_have_its_subdomain(host):
    role = replicated(pods=1, jobs=4, command=["train", f"--host={host}:1"])
    assert command_of(jobset(role, subdomain="sub")) == ["train", "--host=$(MASTER_ADDR):1"]
    role = replicated(pods=1, jobs=4, command=["train", f"--hosts={host},js-worker-1-0.sub"])
    problem = problem_of(convert, jobset(role, subdomain="sub"))
    assert problem.path == "command" and "js-worker-1-0.sub" in problem.received


def test_world_size_is_the_number_of_processes_as_before():
    """The operator multiplies the replicas by nprocPerNode, if there is a Master."""
    job = read("pytorch-gpus")
    specs = job["spec"]["pytorchReplicaSpecs"]
    main = specs["Master"]["template"]["spec"]["containers"][0]  # YAML gives all roles the same
    main["command"] = ["python3", "spawn.py", "--size=$(WORLD_SIZE)"]
    script = 'export WORLD_SIZE=32 && exec "$0" "$@"'
    assert command_of(job) == ["sh", "-c", script, "python3", "spawn.py", "--size=32"]
    assert "WORLD_SIZE with nprocPerNode 8" in {note.field for note in convert(job).notes}
    main["command"] = ["torchrun", "spawn.py", "--size=$(WORLD_SIZE)"]
    assert command_of(job) == ["torchrun", "spawn.py", "--size=32"]
    job["spec"]["nprocPerNode"] = "gpu"
    assert command_of(job) == main["command"]


# --- The program of an image.


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str, int], None]:
    """Return a function that installs a program which prints a text and ends with a code."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def install(name: str, output: str, code: int = 0) -> None:
        file = folder / name
        file.write_text(f"#!/bin/sh\n/bin/cat <<'EOF'\n{output}\nEOF\nexit {code}\n")
        file.chmod(file.stat().st_mode | stat.S_IXUSR)

    return install


CONFIG = {"Entrypoint": ["python3", "$(x).py"], "Cmd": ["--fast"], "User": ""}


@pytest.mark.parametrize(
    ("tool", "output"),
    [
        ("docker", json.dumps(CONFIG)),
        ("skopeo", json.dumps({"architecture": "amd64", "config": CONFIG})),
        ("crane", json.dumps({"config": CONFIG})),
    ],
)
def test_an_installed_tool_tells_the_program_of_an_image(tools, tool, output):
    tools(tool, output)
    job = convert(tfjob(command=[]))
    assert job.parameters["train_options"]["command"] == ["python3", "$$(x).py", "--fast"]
    job = convert(tfjob(command=[], args=["$(A)"]))
    assert job.parameters["train_options"]["command"] == ["python3", "$$(x).py", "$(A)"]


def test_the_next_tool_is_asked_if_one_does_not_have_the_image(tools):
    tools("docker", "Error: No such image", 1)
    tools("crane", json.dumps({"config": {"Cmd": ["train"]}}))
    found = inspect("team/x:1")
    assert found and (found.cmd, found.entrypoint) == (("train",), ())


@pytest.mark.parametrize("tool", ["", "docker", "skopeo", "crane"])
def test_without_an_answer_the_line_to_type_is_named(tools, tool, tmp_path):
    if tool:
        tools(tool, "no such image", 1)
    job = tfjob(command=[], args=["--a"])
    problem = problem_of(convert, job)
    assert problem.path == "command" and f"{tool or 'docker'} " in problem.fix
    assert "team/x:1" in problem.fix
    given = re.findall(r"--command '(\[.*\])'", problem.fix)[0]
    assert json.loads(given) == ["PROGRAM", "--a"]
    file = tmp_path / "job.yaml"
    file.write_text(yaml.dump(job))
    result = CliRunner().invoke(main, ["import", str(file), "--command", given])
    assert result.exit_code == 0
    assert yaml.safe_load(result.stdout)["train_options"]["command"] == ["PROGRAM", "--a"]


@pytest.mark.parametrize("text", ["train.py", "[]", "[1]", "{}"])
def test_a_command_must_be_a_list_of_strings(text):
    result = CliRunner().invoke(
        main, ["import", str(JOBS / "sidecar-upload.yaml"), "--command", text]
    )
    assert (result.exit_code, result.stderr.count("Received:")) == (2, 1)


# --- Values that a run cannot take over, or that YAML reads otherwise.


def test_a_number_to_the_base_60_is_a_string_as_in_kubernetes(tmp_path):
    file = tmp_path / "job.yaml"
    job = yaml.safe_dump(tfjob(args=["ARGS"])).replace("ARGS", "[8:1:1, 1:30.5, 2026-12-01]")
    file.write_text(job.replace("- [", "[").replace("args:\n", "args:"))
    (manifest,) = documents.read(file).jobs
    assert command_of(manifest) == ["train", "8:1:1", "1:30.5", "2026-12-01"]


def test_a_request_that_becomes_a_limit_is_noted():
    resources = {"requests": {"cpu": "1", "memory": "2Gi"}, "limits": {"cpu": "1"}}
    job = convert(tfjob(resources=resources))
    assert job.parameters["pod"]["all"]["memory"] == "2Gi"
    fields = {note.field for note in job.notes}
    assert "Worker.resources.requests.memory: 2Gi" in fields


def test_the_mode_of_a_volume_s_files_is_noted():
    volumes = [
        {"name": "a", "configMap": {"name": "a", "defaultMode": 0o755}},
        {"name": "b", "secret": {"secretName": "b", "defaultMode": 0o400}},
        {"name": "c", "secret": {"secretName": "c", "defaultMode": 0o644}},
    ]
    mounts = [{"name": name, "mountPath": f"/{name}"} for name in "abc"]
    job = convert(tfjob({"volumes": volumes}, volumeMounts=mounts))
    assert len(job.parameters["pod"]["all"]["volumes"]) == 3
    fields = {field for note in job.notes for field in note.field.split(", ") if "Mode" in field}
    assert fields == {
        "Worker.volumes.a at /a: defaultMode 0755",
        "Worker.volumes.b at /b: defaultMode 0400",
    }


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ({"hostPath": {"path": "/dev/shm"}}, "hostPath"),
        ({"persistentVolumeClaim": {"claimName": "c"}}, "claim"),
        ({"emptyDir": {"medium": "Memory"}}, "memory of the pod"),
    ],
)
def test_any_volume_at_dev_shm_is_shared_memory(source, reason):
    pod = {"volumes": [{"name": "v", **source}]}
    job = convert(tfjob(pod, volumeMounts=[{"name": "v", "mountPath": "/dev/shm/"}]))
    assert "pod" not in job.parameters
    (note,) = [note for note in job.notes if note.field == "shared memory"]
    assert reason in note.reason and "64 MiB" not in note.reason


# --- From one command to the next.


def test_render_reads_the_parameters_that_import_writes():
    runner = CliRunner()
    result = runner.invoke(main, ["import", str(JOBS / "master-v1beta1.yaml")])
    options = ["--output", "s3://bucket"]
    result = runner.invoke(main, ["render", "--params", "-", *options], input=result.stdout)
    assert result.exit_code == 0, result.stderr
    job = yaml.safe_load(result.stdout)
    assert job["metadata"]["labels"]["kfp-tfjob/model"] == "fraud"
    assert "DATASET_URI" not in result.stdout and "DATA_DIR" not in result.stdout
    broken = runner.invoke(main, ["render", "--params", "-"], input="a: [")
    assert broken.exit_code == 2 and "standard input" in broken.stderr


def test_a_value_that_render_hides_is_asked_for():
    values = completed(
        defaults(),
        {"output_uri": "s3://bkt", "model_name": "m", "train_options": {"command": ["train"]}},
        {"pod": {"all": {"env": {"API_TOKEN": "a", "LEVEL": "2"}}}},
    )
    found = convert(yaml.safe_load(first_attempt(values, "RUN-ID")), ask=nobody)
    (note,) = [it for it in found.notes if it.anchor[:1] == ("pod",)]
    assert note.anchor == ("pod", "all", "env", "API_TOKEN")


def test_a_secret_in_a_plain_variable_and_annotations_of_the_job_are_named():
    job = tfjob(env=[{"name": "DB_PASSWORD", "value": "x"}, {"name": "LEVEL", "value": "2"}])
    job["metadata"]["annotations"] = {"example.com/topology": "rack"}
    fields = {it.field for it in convert(job).notes}
    assert {"Worker.env.DB_PASSWORD", "metadata.annotations.example.com/topology"} <= fields
    assert "Worker.env.LEVEL" not in fields


# --- A job of this project is read back as the parameters that render it.

_NAMES = st.from_regex(r"[a-z]([a-z0-9-]{0,6}[a-z0-9])?", fullmatch=True)
# The job's label cannot hold every model name.
_MODELS = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,20}[A-Za-z0-9])?", fullmatch=True)
_TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), max_size=12)
_VARIABLES = st.from_regex(r"X_[A-Z0-9]{1,3}", fullmatch=True) | st.sampled_from(
    ["PYTHONUNBUFFERED", "AWS_REGION", "AWS_ACCESS_KEY_ID", "TF_USE_LEGACY_KERAS", "NCCL_DEBUG"]
)
_VALUES = _TEXTS | st.fixed_dictionaries({"secret": _NAMES, "key": _NAMES})
_QUANTITIES = st.sampled_from(["512Mi", "8Gi", "16Gi", "20Gi"])
_LABELS = st.dictionaries(_NAMES, _NAMES, max_size=3)
_VOLUMES = st.lists(
    st.fixed_dictionaries(
        {"path": _NAMES.map(lambda name: f"/data/{name}")}, optional={"read_only": st.just(True)}
    ).flatmap(
        lambda volume: _NAMES.flatmap(
            lambda name: st.sampled_from(
                [{"claim": name, **volume}, {"secret_name": name, **volume}]
            )
        )
    ),
    max_size=3,
    unique_by=lambda volume: volume["path"],
)
_POD = {
    "cpu": st.sampled_from(["2", "4", "500m"]),
    "memory": _QUANTITIES,
    "ephemeral_storage": _QUANTITIES,
    "shared_memory": _QUANTITIES,
    "env": st.dictionaries(_VARIABLES, _VALUES, max_size=4),
    "labels": _LABELS,
    "annotations": st.dictionaries(_NAMES, _TEXTS, max_size=3),
    "node_selector": st.dictionaries(_NAMES, _NAMES, min_size=1, max_size=3),
    "tolerations": st.lists(
        st.fixed_dictionaries({"key": _NAMES, "operator": st.just("Exists")}), max_size=2
    ),
    "affinity": st.just({"nodeAffinity": {"requiredDuringScheduling": {"a": [1, "x"]}}}),
    "priority_class": _NAMES,
    "scheduler": _NAMES,
    "service_account": _NAMES,
    "image_pull_secret": _NAMES,
    "run_as_user": st.integers(1, 2000) | st.just("none"),
    "gpu_resource": st.sampled_from(["nvidia.com/gpu", "amd.com/gpu", "nvidia.com/mig-1g.5gb"]),
    "grace_seconds": st.sampled_from([60, 300, 600]),
    "volumes": _VOLUMES,
}
_ROLE = {**_POD, "image": st.just("team/other:1"), "output_path": st.just("/output")}


def _some(keys: Mapping[str, Any], **always: Any) -> Any:
    return st.fixed_dictionaries(always, optional=dict(keys))


@st.composite
def runs(draw: Any) -> RunParameters:
    """Draw run parameters with a command and code in the image."""
    kind = draw(st.sampled_from(["auto", "tfjob", "jobset", "pytorchjob"]))
    extras = {"replicas": st.integers(0, 1), "gpus": st.integers(0, 2)}
    roles = {
        "all": _some({**_POD, "queue": _NAMES}),
        "chief": _some({**_ROLE, "output_claim": _NAMES}),
        "worker": _some(_ROLE),
    }
    if kind != "pytorchjob":
        roles |= {"ps": _some(_ROLE, **extras), "evaluator": _some(_ROLE, **extras)}
    options = {
        "stage_data": st.sampled_from([True, False, "npy"]),
        "keras": st.sampled_from(["auto", 2, 3]),
        "chief_in_tf_config": st.booleans(),
        "seed": st.integers(0, 9),
        "early_stopping": st.just({"patience": 3}),
        "class_weight": st.just({"a": 2.5}),
        "checkpoint_seconds": st.sampled_from([60, 30.5]),
        "deadline_seconds": st.integers(60, 9999),
        "start_timeout_seconds": st.integers(60, 9999),
        "store_deadline_seconds": st.integers(60, 9999),
        "orphan_timeout_seconds": st.integers(60, 9999),
        "cancel_grace_seconds": st.integers(1, 3600),
        "ttl_seconds": st.integers(60, 9999),
        "max_restarts": st.integers(0, 9),
    }
    command = draw(st.lists(_TEXTS, min_size=1, max_size=4).map(lambda its: ["run", *its]))
    return completed(
        defaults(),
        {
            "data_uri": draw(st.sampled_from(["", "s3://bucket/x.csv"])),
            "model_name": draw(_MODELS),
            "model_hyperparameters": draw(st.dictionaries(_NAMES, _TEXTS | st.integers())),
            "output_uri": draw(
                st.sampled_from(
                    ["s3://bkt", "s3://bkt/p/runs/{model_name}", "s3://bkt/runs/{date}/{hour}"]
                )
            ),
            "storage_endpoint": draw(st.sampled_from(["", "https://s3.example.com"])),
            "storage_region": draw(st.sampled_from(["", "eu-1"])),
            "storage_secret": draw(_NAMES),
            "train_workers": draw(st.integers(0, 3)),
            "train_gpus": draw(st.integers(0, 2)),
            "train_epochs": draw(st.integers(1, 99)),
            "train_batch_size": draw(st.integers(1, 999)),
            "train_image": "team/own:1",
            "train_options": draw(_some(options)) | {"command": command, "job": kind},
            "pod": draw(_some(roles)),
        },
    )


@settings(deadline=None, max_examples=40, phases=[Phase.generate])
@given(run=runs())
def test_render_of_import_of_render_is_render(run: RunParameters, tmp_path_factory: Any) -> None:
    job = first_attempt(run, "RUN-ID")
    assume(MASK not in job)  # a value that render hides is not in the job
    found = convert(yaml.safe_load(job), ask=nobody)
    file = tmp_path_factory.mktemp("run") / "params.yaml"
    file.write_text(to_yaml(found.parameters, found.notes, "Title"))
    given = {"settings": (), "file": file}
    values = parameters_of(given, here=False, environment={}).values
    assert first_attempt(values, "RUN-ID") == job


@pytest.mark.parametrize(
    ("where", "name", "value"),
    [
        ("initContainers", "env", []),
        ("initContainers", "name", "other"),
        ("containers", "command", ["train"]),
        ("containers", "resources", {}),
    ],
)
def test_a_job_of_the_project_that_was_changed_is_refused(where, name, value):
    values = completed(
        defaults(), {"output_uri": "s3://bkt", "model_name": "m", "data_uri": "s3://bkt/x"}
    )
    job = yaml.safe_load(first_attempt(values, "RUN-ID"))
    worker = job["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]
    worker[where][0][name] = value
    assert all(it.path.startswith("Worker.") for it in problems_of(convert, job))
    job["metadata"]["labels"]["app.kubernetes.io/managed-by"] = "a person"
    assert problems_of(convert, job)[0].path == "Chief.initContainers.setup"


def test_a_job_of_the_projects_own_trainer_is_read_back_too():
    given: dict[str, Any] = {"train_batch_size": 32}
    given["train_options"] = {"max_restarts": 3, "micro_batches": 2}
    values = completed(
        defaults(), given, {"output_uri": "s3://bkt", "model_name": "m", "data_uri": "s3://bkt/x"}
    )
    job = first_attempt(values, "RUN-ID")
    found = convert(yaml.safe_load(job), ask=nobody)
    assert found.parameters["train_batch_size"] == 32
    assert found.parameters["train_options"].items() >= given["train_options"].items()
    assert first_attempt(completed(defaults(), found.parameters), "RUN-ID") == job
