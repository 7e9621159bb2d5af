"""The job spec: every problem at once, each with what to do."""

import re

import pytest

from kfp_tfjob.jobs.spec import RESERVED, JobSpec
from tests.problems import problem_of, problems_of
from tests.unit.cluster_objects import manifest
from tests.unit.launch_parameters import DEFAULTS, EVERYTHING


def problems(**changes) -> list[str]:
    return [str(problem) for problem in problems_of(JobSpec.parse, **DEFAULTS | changes)]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"train_workers": -1.0}, "train_workers.*-1.0.*0 or more"),
        ({"train_workers": 1.5}, "train_workers.*1.5"),
        ({"train_workers": True}, "train_workers.*True"),
        ({"train_epochs": 0}, "train_epochs.*1 or more"),
        ({"train_epochs": float("nan")}, "train_epochs.*nan"),
        ({"train_batch_size": 63}, "63.*62 or 64"),
        ({"train_batch_size": 1, "train_workers": 3, "train_gpus": 2}, "multiple of 8.*to 8"),
        ({"storage_secret": " "}, "storage_secret"),
        ({"train_image": ""}, "train_image"),
        ({"train_image": "reg/t@sha256:abc"}, "train_image.*64"),
        ({"tools_image": "reg/t:-x"}, "steps' image.*tag"),
        ({"pod": {"all": {"env": {"VERSION": 1.1}}}}, "env.VERSION.*1.1.*in quotes"),  # or 1.10
        ({"pod": {"all": {"node_selector": {"v": 1.1}}}}, "node_selector.v.*in quotes"),
        ({"model_hyperparameters": [1]}, "model_hyperparameters.*dict"),
        ({"model_hyperparameters": {"a": float("inf")}}, "model_hyperparameters.*JSON"),
        ({"model_entry": "models.py"}, "model_entry|command"),
        ({"dataset_uri": "/tmp/x"}, "dataset_uri"),
        ({"train_options": {"sed": 1}}, "'sed'.*'seed'"),
        ({"train_options": {"early_stopping": {"patient": 1}}}, "'patience'"),
        ({"train_options": {"reduce_lr_on_plateau": {"factor": 1}}}, "reduce_lr_on_plateau.factor"),
        ({"train_options": {"checkpoint_seconds": "Infinity"}}, "train_options.checkpoint_seconds"),
        ({"train_options": {"max_attempts": 0}}, "train_options.max_attempts"),
        ({"train_options": {"ttl_seconds": 0}}, "train_options.ttl_seconds.*60"),
        ({"train_options": {"command": [" "]}}, "train_options.command"),
        (
            {"train_options": {"command": ["sh", "-c", "fit $(HYPERPARAMETER_FLAGS)"]}},
            "train_options.command",
        ),
        ({"pod": {"cheif": {}}}, "'cheif'.*'chief'"),
        ({"pod": {"worker": {"memroy": "1Gi"}}}, "pod.worker.*'memory'"),
        ({"pod": {"all": {"memory": "512m"}}}, "pod.all.memory.*512m.*16Gi"),
        ({"pod": {"all": {"memory": 16.0}}}, "pod.all.memory.*16Gi"),
        ({"pod": {"all": {"cpu": "four"}}}, "pod.all.cpu.*four"),
        ({"pod": {"all": {"run_as_user": 0}}}, "pod.all.run_as_user"),
        ({"pod": {"all": {"tolerations": [{"efect": "NoSchedule"}]}}}, "efect"),
        ({"pod": {"all": {"env": {"RUN_ID": "x"}}}}, "pod.all.env.RUN_ID"),
        ({"pod": {"all": {"env": {"a-b": "x"}}}}, "pod.all.env.*a-b"),
        ({"pod": {"chief": {"image": "https://r/x:1"}}}, "pod.chief.image.*r/x:1"),
        ({"pod": {"worker": {"output_claim": "c"}}}, "no key 'output_claim'"),
        ({"pod": {"Master": {}}}, "Master.*chief"),
        ({"pod": {"ps": {"replicas": 1}}}, "pod.ps.replicas"),
        ({"pod": {"evaluator": {"replicas": 2}}}, "pod.evaluator.replicas"),
    ],
)
def test_what_is_wrong_is_named(changes, words):
    found = problems(**changes)
    assert len(found) == 1
    assert re.search(words, found[0]), found[0]


@pytest.mark.parametrize(
    ("image", "suggestion"),
    [
        ("https://ghcr.io/me/x:1", "ghcr.io/me/x:1"),
        ("ghcr.io/Me/x:V1", "ghcr.io/me/x:V1"),
        ("http://[::1]:5000/Me/x", "[::1]:5000/me/x"),
        ("reg/t..x:1", ""),
        ("", ""),
    ],
)
def test_the_correction_of_an_image_is_valid(image: str, suggestion: str) -> None:
    (problem,) = problems_of(JobSpec.parse, **DEFAULTS | {"train_image": image})
    assert (problem.path, problem.suggestion) == ("train_image", suggestion)
    assert JobSpec.parse(**DEFAULTS | {"train_image": suggestion or "x"}).image == (
        suggestion or "x"
    )


@pytest.mark.parametrize(
    ("toleration", "is_valid"),
    [
        ({"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}, True),
        ({"key": "gpu", "value": "yes"}, True),
        ({"key": "gpu", "effect": "NoExecute", "tolerationSeconds": 300}, True),
        ({"operator": "Exists"}, True),
        ({"key": "", "operator": "Exists", "value": ""}, True),
        ({"key": "gpu", "effect": "NoSchedule", "tolerationSeconds": 300}, False),
        ({"key": "gpu", "operator": "Exists", "tolerationSeconds": 300}, False),
        ({"key": "gpu", "operator": "Exists", "value": "x"}, False),
        ({"value": "a"}, False),
        ({"operator": "Equal"}, False),
        ({}, False),
        ({"key": "no key!", "operator": "Exists"}, False),
        ({"key": 1, "operator": "Exists"}, False),  # the message itself failed
        ({"key": "gpu", "value": "no value!"}, False),
    ],
)
@pytest.mark.parametrize("pods", ["all", "prepare"])
def test_a_toleration_follows_the_rules_of_kubernetes(pods, toleration, is_valid):
    """Only the creation of a pod shows a wrong one, after preflight: TFJobs do not check it."""
    changes = {"pod": {pods: {"tolerations": [toleration]}}}
    if is_valid:
        assert JobSpec.parse(**DEFAULTS | changes)
    else:
        problem = problem_of(JobSpec.parse, **DEFAULTS | changes)
        assert problem.path.startswith(f"pod.{pods}.tolerations.0")


@pytest.mark.parametrize(
    ("name", "amount", "suggestion"),
    [
        ("cpu", 4, ""),
        ("memory", "4Gi", ""),
        ("ephemeral-storage", "4Gi", ""),
        ("nvidia.com/gpu", 1, ""),
        ("amd.com/gpu", 1, ""),
        ("nvidia.com/mig-1g.5gb", 1, ""),
        ("example.com/accelerator", 1, ""),  # gpu_resource, below
        ("efa", 1, ""),
        ("hugepages-", "2Mi", ""),
        ("kubernetes.io/efa", 1, ""),
        ("rdma/ib", 0, "1"),
        ("rdma/ib", 0.5, "1"),
        ("rdma/ib", "1Gi", "1"),
        ("hugepages-2Mi", 2, "2Mi"),
        ("hugepages-2Mi", "3Mi", "2Mi"),
        ("hugepages-1Gi", "512Mi", "1Gi"),
    ],
)
@pytest.mark.parametrize("role", ["all", "worker"])
def test_a_resource_that_no_pod_can_have_is_refused(role, name, amount, suggestion):
    pod = {"all": {"gpu_resource": "example.com/accelerator"}}
    pod[role] = pod.get(role, {}) | {"resources": {name: amount}}
    problem = problem_of(JobSpec.parse, **DEFAULTS | {"pod": pod})
    assert (problem.path, problem.suggestion) == (f"pod.{role}.resources.{name}", suggestion)


def test_resources_of_a_role_are_added_to_those_of_all():
    pod = {"all": {"resources": {"rdma/ib": 1.0, "hugepages-1Gi": "2Gi"}}}
    pod["worker"] = {"resources": {"rdma/ib": 2}}
    roles = manifest(DEFAULTS | {"pod": pod})["spec"]["tfReplicaSpecs"]
    found = {}
    for role, replica in roles.items():
        spec = replica["template"]["spec"]
        (main,) = spec["containers"]
        assert main["resources"]["requests"] == main["resources"]["limits"]
        found[role] = {it: main["resources"]["limits"][it] for it in ("rdma/ib", "hugepages-1Gi")}
        for helper in spec["initContainers"]:
            assert not found[role].keys() & helper["resources"]["limits"].keys()
    assert found["Chief"] == {"rdma/ib": "1", "hugepages-1Gi": "2Gi"}
    assert found["Worker"] == {"rdma/ib": "2", "hugepages-1Gi": "2Gi"}


@pytest.mark.parametrize(
    ("path", "is_valid"),
    [
        ("/etc/secrets", True),
        ("/etcetera", True),
        ("/dev/infiniband", True),
        ("/kfp-tfjob-data", True),
        ("/processed", True),
        ("/etc", False),
        ("/etc/kfp-tfjob", False),
        ("/etc/kfp-tfjob/storage/keys", False),
        ("/etc/hosts", False),
        ("/dev", False),
        ("/dev/shm", False),
        ("/proc/1", False),
        ("/sys", False),
        ("/kfp-tfjob/output", False),
    ],
)
def test_a_volume_may_lie_below_a_folder_of_the_system_but_not_on_it_or_on_ours(path, is_valid):
    """Every path that began with /etc, /dev or /proc was refused, including /etc/secrets."""
    for role, pod in (
        ("volumes", {"all": {"volumes": [{"secret_name": "s", "path": path}]}}),
        ("output_path", {"chief": {"output_path": path}}),
    ):
        if is_valid:
            assert JobSpec.parse(**DEFAULTS | {"pod": pod})
        else:
            problem = problem_of(JobSpec.parse, **DEFAULTS | {"pod": pod})
            assert (problem.received, problem.path.rpartition(".")[2]) == (path, role)


def test_the_output_and_a_volume_cannot_share_a_path():
    volumes = [{"claim": "c", "path": "/output"}]
    pod = {"all": {"volumes": volumes}, "chief": {"output_path": "/output/"}}
    assert problem_of(JobSpec.parse, **DEFAULTS | {"pod": pod}).received == "/output"
    pod["chief"]["volumes"] = []  # they replace those of all
    assert JobSpec.parse(**DEFAULTS | {"pod": pod})


def test_all_problems_come_at_once():
    found = problems(
        train_workers=-1, train_image="", storage_secret="", train_options={"sed": 1}, pod={"x": 1}
    )
    assert len(found) == 5


@pytest.mark.parametrize(
    ("workers", "gpus", "batch", "synchronizes"),
    [
        *((0, 0, 64, False), (1, 0, 64, True), (2, 0, 66, True), (4, 0, 65, True)),
        *((99, 0, 100, True), (0, 1, 64, False), (0, 2, 128, True), (4, 8, 2560, True)),
    ],
)
def test_the_defaults_fit_any_number_of_replicas(
    workers: int, gpus: int, batch: int, synchronizes: bool
) -> None:
    shape = {"train_workers": workers, "train_gpus": gpus, "train_batch_size": 0.0}
    spec = JobSpec.parse(**DEFAULTS | shape)
    assert (spec.batch_size, spec.options.sync_batch_norm) == (batch, synchronizes)
    assert spec.for_result["train_batch_size"] == batch
    assert spec.for_result["train_options.sync_batch_norm"] is synchronizes
    # A run that resumes keeps its own, whatever the defaults of its version were.
    trained = {"train_batch_size": 8 * batch, "train_options.sync_batch_norm": not synchronizes}
    kept = JobSpec.parse(trained=trained, **DEFAULTS | shape).for_result
    assert kept | trained == kept
    assert spec.continued(trained).for_result == kept and spec.continued({}) == spec
    given = shape | {"train_batch_size": batch, "train_options": {"sync_batch_norm": synchronizes}}
    assert JobSpec.parse(trained=trained, **DEFAULTS | given) == spec


def test_a_batch_that_a_run_began_with_must_fit_its_replicas() -> None:
    shape = {"train_workers": 2, "train_batch_size": 0}
    trained = {"train_batch_size": 64}
    for problem in (
        problem_of(JobSpec.parse, trained=trained, **DEFAULTS | shape),
        problem_of(JobSpec.parse(**DEFAULTS | shape).continued, trained),
    ):
        assert (problem.path, problem.suggestion) == ("train_workers", "")


def test_a_program_of_ones_own_needs_no_model_and_any_batch():
    options = {"command": ["python3", "train.py"]}
    changes = {"train_options": options, "model_entry": "", "train_batch_size": 63}
    spec = JobSpec.parse(**DEFAULTS | changes)
    assert spec.options.command == ("python3", "train.py")
    assert spec.options.sync_batch_norm is False  # which it does not read


def test_every_variable_of_the_manifest_is_reserved():
    setup = manifest(EVERYTHING)["spec"]["tfReplicaSpecs"]["Chief"]["template"]["spec"][
        "initContainers"
    ][0]
    names = {item["name"] for item in setup["env"]}
    # What a user may well want to say otherwise.
    assert names - RESERVED == {"AWS_ENDPOINT_URL", "AWS_REGION", "PYTHONUNBUFFERED"}


def test_what_a_program_sees_of_the_chief_counts_as_an_input_only_where_it_is_set():
    """Runs of earlier versions keep their digests."""
    options = {"command": ["train"]}
    result = JobSpec.parse(**DEFAULTS | {"train_options": options}).for_result
    assert not [name for name in result if "chief" in name]
    options["chief_in_tf_config"] = False
    changed = JobSpec.parse(**DEFAULTS | {"train_options": options}).for_result
    assert changed == result | {"train_options.chief_in_tf_config": False}
