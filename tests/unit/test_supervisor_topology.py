"""Where the other replicas are: each kind's job manifest and its operator tell the supervisor."""

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from kfp_tfjob.jobs.job_identity import Identity
from kfp_tfjob.jobs.jobset import JOBSET
from kfp_tfjob.jobs.kind import JobKind
from kfp_tfjob.jobs.manifest import build_job
from kfp_tfjob.jobs.pytorchjob import PYTORCHJOB
from kfp_tfjob.jobs.spec import JobSpec
from kfp_tfjob.supervisor.tf_config import Topology, expand
from tests.unit.launch_parameters import DEFAULTS

PARAMETERS = DEFAULTS | {"train_batch_size": 60, "train_options": {"command": ["true"]}}


def replicas(kind: JobKind, **parameters: object) -> Iterator[tuple[str, Topology]]:
    """Yield what the supervisor of each pod reads from its manifest and its labels."""
    spec = replace(JobSpec.parse(**PARAMETERS | parameters), kind=kind)
    job = build_job(spec, Identity("x", 1))
    for item in kind.replicas(job):
        (main,) = item.pod["containers"]
        for index in range(item.count):
            labels = kind.pod_labels("x-1", item.role, index)
            read = {"EXPECTED_REPLICAS": str(spec.replicas)}
            for it in main["env"]:
                if it["name"] == "TOPOLOGY":
                    read["TOPOLOGY"] = it["value"]
                if it["name"] == "REPLICA_INDEX":
                    path = it["valueFrom"]["fieldRef"]["fieldPath"]
                    read["REPLICA_INDEX"] = labels[path.split("'")[1]]
            yield f"{item.role}-{index}", Topology.read(read)


def test_a_jobset_tells_every_replica_where_the_others_are():
    pod = {"ps": {"replicas": 1}, "evaluator": {"replicas": 1}}
    found = dict(replicas(JOBSET, train_workers=2, pod=pod))
    assert list(found) == ["chief-0", "worker-0", "worker-1", "ps-0", "evaluator-0"]
    members = {
        "chief": ["js-x-1-chief-0-0.js-x-1:2222"],
        "worker": ["js-x-1-worker-0-0.js-x-1:2222", "js-x-1-worker-0-1.js-x-1:2222"],
        "ps": ["js-x-1-ps-0-0.js-x-1:2222"],
        "evaluator": ["js-x-1-evaluator-0-0.js-x-1:2222"],
    }
    for name, read in found.items():
        config = json.loads(read.variables["TF_CONFIG"])
        assert config["cluster"] == read.members == members
        assert f"{config['task']['type']}-{config['task']['index']}" == name
    assert found["chief-0"].writes and not found["worker-1"].writes
    # As torch.distributed reads it; parameter servers and evaluators take no part in it.
    torch = found["worker-1"].variables
    del torch["TF_CONFIG"]
    address = {"MASTER_ADDR": "js-x-1-chief-0-0.js-x-1", "MASTER_PORT": "2222"}
    torchrun = {f"PET_{name}": value for name, value in address.items()}
    torchrun |= {"PET_NODE_RANK": "2", "PET_NNODES": "3"}
    assert torch == address | {"RANK": "2", "WORLD_SIZE": "3"} | torchrun
    assert "RANK" not in found["ps-0"].variables


def test_a_program_of_workers_sees_no_chief():
    pod = {"ps": {"replicas": 1}}
    read = dict(replicas(JOBSET, train_workers=2, pod=pod))
    host = "js-x-1-{}-0-{}.js-x-1:2222"
    workers = [host.format("chief", 0), host.format("worker", 0), host.format("worker", 1)]
    configs = {
        name: json.loads(it.without_chief.tf_config["TF_CONFIG"]) for name, it in read.items()
    }
    for config in configs.values():
        assert config["cluster"] == {"worker": workers, "ps": [host.format("ps", 0)]}
    tasks = {name: (it["task"]["type"], it["task"]["index"]) for name, it in configs.items()}
    assert tasks == {
        "chief-0": ("worker", 0),
        "worker-0": ("worker", 1),
        "worker-1": ("worker", 2),
        "ps-0": ("ps", 0),
    }
    assert read["chief-0"].without_chief.writes and not read["worker-0"].without_chief.writes
    assert Topology().without_chief.tf_config == {}


def test_a_command_gets_the_rank_of_its_replica():
    worker = dict(replicas(JOBSET, train_workers=1))["worker-0"]
    command = ["torchrun", "--node_rank=$(RANK)", "$(MASTER_ADDR):$(MASTER_PORT)", "$(OTHER)"]
    assert expand([*command, "$(WORLD_SIZE)"], worker.variables) == [
        "torchrun",
        "--node_rank=1",
        "js-x-1-chief-0-0.js-x-1:2222",
        "$(OTHER)",
        "2",
    ]


def test_hyperparameters_become_the_flags_of_a_command():
    hyperparameters = {
        "units": [64, 32],
        "optimizer": "adam $(RANK)",
        "augment": True,
        "shuffle": False,
        "schedule": {"warm-up": 3},
        "shapes": [[1, 2], True],
        "momentum": None,
        "offset": -1e-05,
        "rate": 0.1,
        "empty": [],
    }
    variables = {"HYPERPARAMETERS": json.dumps(hyperparameters), "RANK": "0"}
    found = expand(["fit", "$(HYPERPARAMETER_FLAGS)", "--rank=$(RANK)"], variables)
    flags = ["--units", "64", "--units", "32", "--optimizer", "adam $(RANK)", "--augment"]
    flags += ["--no-shuffle", "--schedule", '{"warm-up": 3}', "--shapes", "[1, 2]", "--shapes"]
    flags += ["true", "--offset=-1e-05", "--rate", "0.1"]
    assert found == ["fit", *flags, "--rank=0"]
    assert expand(["fit", "$(HYPERPARAMETER_FLAGS)"], {}) == ["fit"]


def test_replicas_ask_no_proxy_for_each_other():
    read = dict(replicas(JOBSET, train_workers=1))["worker-0"]
    assert read.without_proxy({"no_proxy": ".corp"}) == {}
    proxy = {"http_proxy": "http://proxy.corp:3128"}
    hosts = "js-x-1-chief-0-0.js-x-1,js-x-1-worker-0-0.js-x-1"
    assert read.without_proxy(proxy) == {"no_grpc_proxy": hosts}
    known = read.without_proxy({**proxy, "no_proxy": ".corp"})
    assert known == {"no_grpc_proxy": f".corp,{hosts}"}


def test_a_pytorchjob_names_the_services_of_its_operator():
    found = dict(replicas(PYTORCHJOB, train_workers=1))
    assert found["worker-0"].members == {
        "chief": ["pytorchjob-x-1-master-0:23456"],
        "worker": ["pytorchjob-x-1-worker-0:23456"],
    }
    assert found["worker-0"].variables["RANK"] == "1"


@pytest.mark.parametrize("kind", [JOBSET, PYTORCHJOB], ids=lambda kind: kind.name)
def test_one_replica_alone_has_no_cluster(kind):
    ((_, read),) = replicas(kind, train_workers=0)
    assert read == Topology()
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    assert read.variables == address | {"RANK": "0", "WORLD_SIZE": "1"}


def test_an_operators_variable_comes_first():
    cluster = {"chief": ["a:1"], "worker": ["b:1"]}
    config = json.dumps({"cluster": cluster, "task": {"type": "chief", "index": 0}})
    assert Topology.read({"TF_CONFIG": config, "TOPOLOGY": "{"}).members == cluster
