"""A remedy is a promise: applied to the input that caused the problem, it makes the problem go.

Each case has an input, the place in the code that makes its problem, and how the remedy is applied:
as the command line says, or as the text spells it. Where a remedy cannot be applied here, a reason
stands in NOT_HERE.
"""

import asyncio
import base64
import gzip
import json
import os
import re
import shlex
import socket
from collections.abc import Callable
from dataclasses import replace
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import numpy as np
import openpyxl
import PIL.Image
import pyarrow as pa
import pyarrow.parquet
import pytest
import yaml
from kubernetes.client import ApiClient

from kfp_tfjob.checks import step_pods
from kfp_tfjob.cluster.create_job import lost_field, lost_fields
from kfp_tfjob.common.errors import ConfigurationError, Problem, Problems
from kfp_tfjob.common.names import check_task_key
from kfp_tfjob.components import code_copy
from kfp_tfjob.components.launch_tfjob import records, standalone
from kfp_tfjob.components.launch_tfjob.task import apply as apply_task
from kfp_tfjob.components.preflight import engine as preflight
from kfp_tfjob.components.preflight.plan import RunData, RunPlan
from kfp_tfjob.components.prepare_data import (
    column_profile,
    contracts,
    dataset,
    dictionary,
    kinds,
    labels,
    row_requirements,
    scan,
)
from kfp_tfjob.components.prepare_data.executors.executor import Context, Executor
from kfp_tfjob.components.prepare_data.hashes import number_words, row_hashes
from kfp_tfjob.components.prepare_data.images.image_list import with_images
from kfp_tfjob.components.prepare_data.reference import Reference
from kfp_tfjob.components.prepare_data.source.resolve import check_header, list_source
from kfp_tfjob.jobs.spec import JobSpec
from kfp_tfjob.judging.gate_columns import check_gate
from kfp_tfjob.options import address_fields
from kfp_tfjob.options.address_fields import Tick
from kfp_tfjob.options.container_images import TRAINER
from kfp_tfjob.options.data import DataOptions
from kfp_tfjob.options.parse import parse
from kfp_tfjob.options.pod import PodOptions
from kfp_tfjob.options.removed import REMOVED
from kfp_tfjob.pipelines import step_resources
from kfp_tfjob.pipelines.commands import compile as compiling
from kfp_tfjob.pipelines.commands import import_job as importing
from kfp_tfjob.pipelines.commands import parameters
from kfp_tfjob.pipelines.commands import run as running
from kfp_tfjob.pipelines.kubeflow.package import Package
from kfp_tfjob.pipelines.kubeflow.schedules import Trigger
from kfp_tfjob.registry import view
from kfp_tfjob.serving import listening, tensors
from kfp_tfjob.serving.column_names import check_columns
from kfp_tfjob.serving.limits import Limits
from kfp_tfjob.serving.request_columns import RequestColumns
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.retry import Patience
from kfp_tfjob.storage.store import Store
from kfp_tfjob.trainer.config import Config
from kfp_tfjob.user_code.model_code import ModelCode
from tests.fuzz.targets import FolderStore
from tests.typed_schema import typed as schema_of
from tests.unit import launch_parameters
from tests.unit.picture_files import animals, drawn, encoded, png_of_size, tree
from tests.unit.prepared_files import write_table
from tests.unit.remedies import (
    Case,
    Values,
    literal,
    problems_of,
    put,
    removed,
    sites,
    typed,
    values,
    without,
)
from tests.unit.test_import_job import tfjob
from tests.unit.test_serve_columns import ROW, Tensor
from tests.unit.test_serve_columns import SCHEMA as REQUESTS
from tests.unit.test_serve_limits import Client, Counts, application

BASE = S3Address("bucket", "d")
PREPARE = "components/prepare_data"
DATA_SOURCE, IMAGES = f"{PREPARE}/source", f"{PREPARE}/images/folders"
IMAGE_LIST = f"{PREPARE}/images/image_list"
HEADER, LISTING = f"{DATA_SOURCE}/column_names", f"{DATA_SOURCE}/listing"
ARROW = f"{DATA_SOURCE}/readers/arrow_table"
ENCODED = f"{DATA_SOURCE}/decoding"
CODE_ARGUMENTS, REFERENCE = "user_code/arguments", "options/container_images:reference_problems"
COMMAND = ["python3", "train.py"]


# -- what an input may be wrong for ---------------------------------------------------------------


def params(given: Values) -> list[Problem]:
    """Return what preflight says of the run parameters alone."""
    return problems_of(lambda: RunPlan.parse(given))


def at_tick(given: Values) -> list[Problem]:
    """Return what preflight says of a time of the back end and of data for it."""

    def read() -> None:
        dated = {name: given[name] for name in ("data_uri", "output_uri")}
        tick = preflight._tick(dated, given["tick"])
        uri = address_fields.fill(str(given["data_uri"]), tick)
        step: Any = SimpleNamespace(store=None)
        run_data = RunData(uri, given["data_label"], DataOptions())
        _, problems = preflight._check_data(step, run_data, tick)
        ConfigurationError.raise_if(problems)

    return problems_of(read)


def job(given: Values) -> list[Problem]:
    """Return what the launcher says of a job."""
    return problems_of(lambda: JobSpec.parse(**given))


def table(given: Values) -> list[Problem]:
    """Return what preflight and prepare_data say of the files of the working folder."""

    def prepare() -> None:
        store: Any = FolderStore({})
        options = parse(DataOptions, "data_options", given["data_options"])
        source = list_source(store, given["data_uri"], options)
        source = with_images(source, given["data_label"], options)
        ConfigurationError.raise_if(check_header(source, given["data_label"], options))
        spill = Path("spill")
        spill.mkdir(exist_ok=True)
        executor = Executor(Context(str(spill), opened=store))
        found = scan.read(source, given["data_label"], options, executor, 1 << 20)
        given["done"] = dataset.write(BASE, found, row_requirements.decide(found))

    return problems_of(prepare)


def contract(given: Values) -> list[Problem]:
    """Return how a dataset differs from that of the champion, whose parameters are `before`."""
    before = given["before"] | {"before": None}
    assert not table(before) and not (problems := table(given)), problems
    done = before["done"]
    reference = Reference("m", 1, "r", "d", done.schema, done.statistics)
    return contracts.changes(reference, given["done"].schema)


GATE_SCHEMA = schema_of(
    {
        "features": {"city": "category", "age": "float32", "day": "date"},
        "label": {"name": "y", "classes": ["no", "yes"]},
        "coding": [{"vocabulary": ["Rome"], "dictionary": ["Rome"]}, {}, {"origin": 0}],
    }
)


def gate(given: Values) -> list[Problem]:
    """Return what evaluate says of `gate` for a table with a category, a number and a date."""
    return problems_of(lambda: check_gate(given["gate"], GATE_SCHEMA))


def code(given: Values) -> list[Problem]:
    """Return what preflight says of the model code."""
    step: Any = SimpleNamespace(store=None)
    found: list[Any] = []

    def check() -> None:
        model_code = ModelCode.of_run(given)
        command = given["train_options"].get("command", ())
        hyperparameters = given["model_hyperparameters"]
        _, problems = code_copy.check_code(
            step, model_code, given["train_image"], command, hyperparameters
        )
        found.extend(problems)

    return [*problems_of(check), *found]


def launch(given: Values) -> list[Problem]:
    """Return what a launch outside the pipeline lacks."""
    has = given.pop("there", ())
    step: Any = SimpleNamespace(store=SimpleNamespace(has=lambda address: str(address) in has))
    return list(standalone._missing(step, JobSpec.parse(**given)))


def launch_images(given: Values) -> list[Problem]:
    """Return what a launch with a dataset of images lacks."""
    size = {"height": 8, "width": 8, "channels": 1}
    schema = schema_of({"picture": size}).to_bytes()
    store = SimpleNamespace(has=lambda _: True, read=lambda *_: schema)
    return list(standalone._missing(SimpleNamespace(store=store), JobSpec.parse(**given)))


def of_task(given: Values) -> list[Problem]:
    """Return what replicas cannot get of what a pipeline sets on the task of launch_tfjob."""
    found = Problems()
    task = {"resources": {}} | given.pop("task")
    apply_task(JOB | given | {"task_config": task}, found)
    return [it for it in found if isinstance(it, Problem)]


def continued(given: Values) -> list[Problem]:
    """Return what a run that is continued may not change."""
    before = JobSpec.parse(**launch_parameters.DEFAULTS).for_result
    now = JobSpec.parse(**given).for_result
    return problems_of(lambda: records.require_same(before, now))


def step_pod(given: Values) -> list[Problem]:
    """Return what the pipeline cannot give to the pods of its steps."""
    pods = step_pods.step_pods(parse(PodOptions, "pod", given["pod"]), given["compiled"])
    return list(step_pods.check(pods))


def rows(given: Any) -> list[Problem]:
    """Return what the server says of a request in V1."""
    return problems_of(lambda: RequestColumns(REQUESTS).of_rows(given["instances"]))


def list_rows(given: Any) -> list[Problem]:
    """Return what the server says of a request to a model with the elements of a list."""
    schema = schema_of(
        {"task": "regression", "features": {"emb[0]": "float32", "emb[1]": "float32"}}
    )
    return problems_of(lambda: RequestColumns(schema).of_rows(given["instances"]))


def image_row(content: bytes) -> dict[str, str]:
    return {"picture": base64.b64encode(content).decode()}


def image_rows(given: Any) -> list[Problem]:
    """Return what the server says of a request to a model of images."""
    schema = schema_of({"features": {"picture": "picture"}})
    return problems_of(lambda: RequestColumns(schema).of_rows(given["instances"]))


def inputs(given: Any) -> list[Problem]:
    """Return what the server says of a request in V2."""
    return problems_of(
        lambda: tensors.read(RequestColumns(REQUESTS), [Tensor(*it) for it in given["inputs"]])
    )


def port(given: Any) -> list[Problem]:
    """Return what the server says of its port."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = 0 if given["port"] == 0 else taken.getsockname()[1]
        return problems_of(lambda: listening.listen("127.0.0.1", number).close())


def request(given: Any) -> list[Problem]:
    """Return what the server says of a request before it reads its body."""
    client = Client([given["body"]])
    counts: Any = Counts()
    asyncio.run(client.ask(Limits(application, 1000, counts), headers=given["headers"]))
    start, *bodies = client.sent
    if start["status"] == HTTPStatus.OK:
        return []
    answer = json.loads(b"".join(it["body"] for it in bodies))
    return [Problem(**parts) for parts in answer["problems"]]


def in_request(name: str, value: Any) -> Callable[[Any, Problem], Any]:
    """Set a column of the only row."""

    def apply(given: Any, problem: Problem) -> Any:
        return {"instances": [{**given["instances"][0], name: value}]}

    return apply


def renamed(given: Any, problem: Problem) -> Any:
    """Rename the column of the only row to the suggestion; remove one without a suggestion."""
    row = dict(given["instances"][0])
    value = row.pop(problem.path)
    return {"instances": [row | ({problem.suggestion: value} if problem.suggestion else {})]}


class _Empty(BaseHTTPRequestHandler):
    """A store without objects and without TLS."""

    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.send_response(404)
        self.send_header("x-amz-request-id", "1")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def stored(given: Any) -> list[Problem]:
    """Return what reading from a store says; PORT stands for the port of one without TLS."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Empty) as server:
        Thread(target=server.serve_forever).start()
        port = str(server.server_port)
        endpoint = given["storage_endpoint"].replace("PORT", port)
        store = Store(endpoint, patience=Patience(5))
        found = problems_of(lambda: store.has(S3Address("bucket", "key")))
        server.shutdown()
    return [replace(it, suggestion=it.suggestion.replace(port, "PORT")) for it in found]


# -- run parameters -------------------------------------------------------------------------------

JOB = launch_parameters.DEFAULTS
MOUNTED = {"volumes": [{"name": "c", "persistentVolumeClaim": {"claimName": "c"}}]}
PARAMETERS = [
    Case(
        "components/preflight/plan:_missing_parameters",
        params,
        values(model_name=""),
        typed("churn"),
    ),
    Case(
        "components/preflight/plan:_check_output",
        params,
        values(output_uri="s3://bucket/p/runs/{user}"),
        typed("s3://bucket/p/runs/ann"),
    ),
    Case("jobs/spec:whole_number", params, values(train_epochs=0.5), typed(3)),
    Case("jobs/spec:_wrong_names", params, values(storage_secret=""), typed("objstore-cred")),
    Case(REFERENCE, params, values(train_image="a b"), typed("r.io/img:1")),
    Case(REFERENCE, params, values(train_image="https://R.io/Img:1"), typed(), "a correction"),
    Case(
        "jobs/spec:_wrong_model[0]",
        params,
        values(model_hyperparameters=[3]),
        typed({"units": [3]}),
    ),
    Case(
        "jobs/spec:_wrong_model[1]",
        params,
        values(model_hyperparameters={"rate": float("inf")}),
        typed({"rate": "inf"}),
    ),
    Case(
        "jobs/spec:_wrong_model[2]",
        job,
        JOB | {"model_entry": ""},
        put("model_entry", "kfp_tfjob.trainer.models:mlp"),
        "model_code",
    ),
    Case(
        "jobs/spec:_wrong_model[2]",
        job,
        JOB | {"model_entry": ""},
        put("train_options.command", COMMAND),
        "command",
    ),
    Case(
        "jobs/spec:_wrong_model[3]",
        params,
        values(
            train_options={"job": "pytorchjob", "command": COMMAND}, pod={"ps": {"replicas": 1}}
        ),
        typed(),
    ),
    Case("jobs/spec:_wrong_model[4]", params, values(pod={"ps": {"replicas": 1}}), typed()),
    Case(
        "jobs/spec:_wrong_model[4]",
        params,
        values(pod={"ps": {"replicas": 1}}),
        put("train_options.command", COMMAND),
        "command",
    ),
    Case(
        "jobs/spec:_wrong_batch[0]",
        job,
        launch_parameters.DEFAULTS
        | {"train_batch_size": 0, "train_workers": 2, "trained": {"train_batch_size": 64}},
        put("train_workers", 3),
    ),
    Case(
        "jobs/spec:_wrong_batch[1]", params, values(train_batch_size=64, train_workers=2), typed()
    ),
    Case(
        "jobs/spec:_wrong_batch[1]",
        params,
        values(train_batch_size=64, train_workers=2),
        lambda given, problem: put("train_batch_size", int(problem.fix.rpartition(" ")[2]))(
            given, problem
        ),
        "the next",
    ),
    Case("jobs/spec:_wrong_pod[0]", params, values(pod={"all": {"env": {"HOME": "/x"}}}), removed),
    Case(
        "jobs/spec:_wrong_pod[1]",
        params,
        values(pod={"all": {"volumes": [{"claim": "c", "path": "/dev/shm"}]}}),
        typed([{"claim": "c", "path": "/x"}]),
    ),
    Case(
        "jobs/spec:_wrong_resource[0]",
        params,
        values(pod={"all": {"resources": {"cpu": 4}}}),
        put("pod.all", {"cpu": 4}),
    ),
    Case(
        "jobs/spec:_wrong_resource[1]",
        params,
        values(pod={"all": {"resources": {"amd.com/gpu": 4}}}),
        lambda given, problem: (
            removed(given, problem)
            | {"train_gpus": 4, "pod": {"all": {"gpu_resource": problem.fix.rpartition("=")[2]}}}
        ),
    ),
    Case(
        "jobs/spec:_wrong_resource[2]",
        params,
        values(pod={"all": {"resources": {"efa": 4}}}),
        put("pod.all.resources", {"vpc.amazonaws.com/efa": 4}),
    ),
    Case(
        "jobs/spec:_wrong_resource[3]",
        params,
        values(pod={"all": {"resources": {"hugepages-2Mi": 4}}}),
        typed(),
    ),
    Case(
        "jobs/spec:_wrong_resource[4]",
        params,
        values(pod={"all": {"resources": {"vpc.amazonaws.com/efa": 0}}}),
        typed(),
    ),
    Case(
        "jobs/task_config:_contradictions",
        of_task,
        {"train_gpus": 4, "task": {"resources": {"limits": {"nvidia.com/gpu": "2"}}}},
        put("train_gpus", 0),
    ),
    Case(
        "jobs/task_config:_contradictions",
        of_task,
        {
            "pod": {"all": {"gpu_resource": "amd.com/gpu"}},
            "task": {"resources": {"limits": {"nvidia.com/gpu": "2"}}},
        },
        lambda given, problem: without(given, "pod.all.gpu_resource"),
        "another resource",
    ),
    Case(
        "jobs/task_config:_contradictions",
        of_task,
        {"train_gpus": 4, "task": {"resources": {"limits": {"nvidia.com/gpu": "2"}}}},
        put("task", {}),
        "no accelerator",
    ),
    Case(
        "jobs/task_config:_accelerator",
        of_task,
        {"task": {"resources": {"limits": {"NVIDIA_TESLA_K80": "2"}}}},
        put("task.resources", {"limits": {"nvidia.com/gpu": "2"}}),
    ),
    Case(
        "jobs/task_config:_environment[0]",
        of_task,
        {"task": {"env": [{"name": "EPOCHS", "value": "3"}]}},
        put("task.env", []),
    ),
    Case(
        "jobs/task_config:_environment[1]",
        of_task,
        {"task": {"env": [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "m"}}}]}},
        put(
            "task",
            {
                "volumes": [{"name": "m", "configMap": {"name": "m", "optional": False}}],
                "volume_mounts": [{"name": "m", "mountPath": "/m"}],
            },
        ),
    ),
    Case(
        "jobs/task_config:_volumes",
        of_task,
        {"task": MOUNTED | {"volume_mounts": [{"name": "c", "mountPath": "/c", "subPath": "a"}]}},
        put("task.volume_mounts", [{"name": "c", "mountPath": "/c"}]),
    ),
    Case(
        "jobs/task_config:_volumes",
        of_task,
        {"task": MOUNTED | {"volume_mounts": [{"name": "c", "mountPath": "/dev/shm"}]}},
        put("task.volume_mounts", [{"name": "c", "mountPath": "/c"}]),
        "a path of the job",
    ),
    Case("options/parse:parse", params, values(data_options="x"), typed({})),
    Case(
        "options/parse:bad_texts[0]",
        params,
        values(model_hyperparameters={"a": "\ud800"}),
        typed("x"),
    ),
    Case(
        "options/parse:bad_texts[1]",
        params,
        values(model_hyperparameters={"a": "{{$.inputs.parameters['x']}}"}),
        typed("x"),
    ),
    Case("options/parse:unknown_key[1]", params, values(train_options={"sed": 3}), typed(3)),
    Case(
        "options/parse:unknown_key[1]",
        params,
        values(train_options={"zzzz": 3}),
        removed,
        "without a suggestion",
    ),
    Case("options/parse:unknown_key[1]", params, values(train_epoch=3), typed(3), "parameter"),
    Case(
        "options/parse:unknown_key[1]",
        params,
        values(pod={"all": {"affinty": {}}}),
        typed({}),
        "a group",
    ),
    Case("options/parse:_problems", params, values(train_options={"job": "tfjb"}), typed("tfjob")),
    Case("options/parse:_problems", params, values(train_options={"seed": "x"}), typed(7), "type"),
    Case(
        "options/parse:_problems",
        params,
        values(gate={"mode": "point", "primary_metric": "acuracy"}),
        typed(),
        "metric",
    ),
    Case(
        "options/parse:_problems",
        params,
        values(gate={"mode": "point", "thresholds": {"acuracy": {"min": 0.5}}}),
        typed({"min": 0.5}),
        "a wrong name as a key",
    ),
    Case(
        "options/parse:_problems",
        params,
        values(pod={"all": {"node_selector": {"a b": "c"}}}),
        removed,
        "a key",
    ),
    Case(
        "options/address_fields:check[0]",
        params,
        values(data_uri="s3://b/{date/x.csv"),
        typed("s3://b/{date}/x.csv"),
    ),
    Case(
        "options/address_fields:check[1]",
        params,
        values(data_uri="s3://b/{dat}/x.csv"),
        typed(),
        then=lambda it: it["data_uri"] == "s3://b/{date}/x.csv",
    ),
    Case(
        "options/address_fields:check[1]",
        params,
        values(output_uri="s3://bucket/p/runs/{model_nme}/{date}"),
        typed(),
        "output_uri",
        lambda it: it["output_uri"] == "s3://bucket/p/runs/{model_name}/{date}",
    ),
    Case(
        "options/address_fields:parse",
        lambda given: problems_of(lambda: Tick.parse(given["tick"], "--tick")),
        {"tick": "now"},
        lambda given, problem: {"tick": problem.expected.rpartition(" ")[2]},
    ),
    Case("storage/address:parse", params, values(output_uri="bucket/p"), typed("s3://bucket/p")),
    Case(
        "storage/layout:_misplaced",
        params,
        values(output_uri="s3://bucket/{date}/p"),
        typed("s3://bucket/p/runs/{model_name}/{date}"),
    ),
    Case(
        "common/names:check_model_name",
        params,
        values(model_name="a b"),
        lambda given, problem: typed(problem.fix.rpartition(" ")[2])(given, problem),
    ),
    Case(
        "common/names:check_task_key",
        lambda given: check_task_key(given["task_key"]),
        {"task_key": "A"},
        lambda given, problem: {"task_key": problem.fix.rpartition(" ")[2]},
    ),
    Case(
        "storage/store:check_endpoint[0]",
        params,
        values(storage_endpoint="http://ann:pw@host:9000"),
        typed("http://host:9000"),
    ),
    Case(
        "storage/store:check_endpoint[1]", params, values(storage_endpoint="host:9000"), typed("")
    ),
    Case(
        "storage/s3_errors:explain[1]",
        stored,
        values(storage_endpoint="https://127.0.0.1:PORT"),
        typed(),
    ),
    Case(
        "storage/s3_session:_check_bucket",
        stored,
        values(storage_endpoint="http://127.0.0.1:PORT/bucket"),
        typed(),
    ),
    Case("options/no_data:run_problems", params, values(data_uri=""), put("data_uri", "d.csv")),
    Case(
        "options/no_data:_problem",
        params,
        values(
            data_uri="", data_label="", train_options={"command": ["fit"], "when_unchanged": "skip"}
        ),
        typed(),
        "train",
    ),
    Case(
        "options/no_data:_problem",
        params,
        values(data_uri="", train_options={"command": ["fit"]}),
        typed(),
        "label",
    ),
    Case(
        "options/no_data:_problem",
        params,
        values(
            data_uri="",
            data_label="",
            data_options={"drop": ["a"]},
            train_options={"command": ["fit"]},
        ),
        typed(),
        "options",
    ),
    Case(
        "user_code/model_code:parse",
        params,
        values(model_code="models.py"),
        lambda given, problem: typed(problem.expected.partition(",")[0])(given, problem),
    ),
    Case(
        "checks/step_pods:check[0]",
        step_pod,
        {"pod": {"prepare": {"cpu": "8"}}, "compiled": {}},
        put("compiled.prepare_data", {"cpu": "1", "memory": "2Gi"}),
        "without --plain-steps",
    ),
    Case(
        "checks/step_pods:check[0]",
        step_pod,
        {"pod": {"prepare": {"cpu": "8"}}, "compiled": {}},
        removed,
    ),
    Case(
        "checks/step_pods:check[1]",
        step_pod,
        {
            "pod": {"prepare": {"cpu": "8"}},
            "compiled": {"prepare_data": {"cpu": "1", "cpu_limit": "4"}},
        },
        put("pod.prepare.cpu", "4"),
    ),
    Case("jobs/spec:_wrong_model[5]", params, values(train_options={"stage_data": "npy"}), typed()),
    Case(
        "jobs/spec:_wrong_model[5]",
        params,
        values(train_options={"stage_data": "npy"}),
        put("train_options.command", COMMAND),
        "command",
    ),
    Case(
        "options/train:npy_problem",
        launch_images,
        JOB | {"train_options": {"command": COMMAND, "stage_data": "npy"}},
        typed(),
    ),
    Case(
        "options/train:npy_problem",
        launch_images,
        JOB | {"train_options": {"command": COMMAND, "stage_data": "npy"}},
        put("train_options.stage_data", False),
        "a program",
    ),
    Case(
        "components/launch_tfjob/standalone:_missing[0]",
        launch,
        JOB | {"train_image": TRAINER},
        put("train_image", "r.io/trainer:1"),
    ),
    Case(
        "components/launch_tfjob/standalone:_missing[1]",
        launch,
        JOB | {"dataset_uri": ""},
        put("train_options.command", COMMAND),
    ),
    Case(
        "components/launch_tfjob/standalone:_missing[2]",
        launch,
        JOB,
        put("there", ["s3://kfp-tfjob/datasets/5f3a/manifest.json"]),
    ),
    Case(
        "components/launch_tfjob/standalone:_missing[2]",
        launch,
        JOB | {"train_options": {"command": COMMAND}},
        put("train_options.stage_data", False),
        "a program",
    ),
    Case(
        "components/launch_tfjob/records:require_same",
        continued,
        JOB | {"train_epochs": 3},
        lambda given, problem: put(problem.path, json.loads(problem.expected))(given, problem),
    ),
]
# What a removed option is replaced with, where its remedy names something to set.
SUCCESSORS: dict[str, tuple[Any, str, Any]] = {
    "gate.relative_margin": (0.1, "gate", {"mode": "non_inferior", "margin": 0.1}),
    "train_options.checkpoint_best": (
        True,
        "train_options.early_stopping",
        {"patience": 3, "restore_best_weights": True},
    ),
    "train_options.run_deadline_seconds": (60, "train_options.deadline_seconds", 60),
    "data_options.contract.max_js": (0.1, "data_options.contract.max_psi", 0.1),
    "data_options.workers": (4, "data_options.dask", "tcp://scheduler:8786"),
    "pod.prepare.affinity": ({}, "pod.prepare.node_selector", {"disk": "ssd"}),
    "pod.evaluate.ephemeral_storage": ("9Gi", "pod.evaluate.node_selector", {"disk": "ssd"}),
}
GONE = [
    Case(
        "options/parse:unknown_key[0]",
        params,
        put(path, SUCCESSORS.get(path, (1,))[0])(values(), Problem("")),
        lambda given, problem, path=path: (
            put(*SUCCESSORS[path][1:])(without(given, path), problem)
            if path in SUCCESSORS
            else without(given, path)
        ),
        path,
    )
    for path in REMOVED
]

# -- gate and code --------------------------------------------------------------------------------

THRESHOLD = {"min": 0.5}
GATES = [
    Case(
        "options/gate:_metric_problem[0]",
        gate,
        values(gate={"mode": "point", "primary_metric": "rmse"}),
        typed("accuracy"),
    ),
    Case(
        "options/gate:_metric_problem[1]",
        gate,
        values(gate={"mode": "point", "primary_metric": "recall/yess"}),
        typed(),
    ),
    Case(
        "options/gate:_metric_problem[1]",
        gate,
        values(gate={"mode": "point", "thresholds": {"recall/yess": THRESHOLD}}),
        typed(THRESHOLD),
        "a threshold",
    ),
    Case(
        "options/gate:_metric_problem[2]",
        gate,
        values(gate={"mode": "point", "primary_metric": "top_2_accuracy"}),
        typed(),
    ),
    Case(
        "options/gate:_metric_problem[2]",
        gate,
        values(gate={"mode": "point", "thresholds": {"top_2_accuracy": THRESHOLD}}),
        typed(THRESHOLD),
        "a threshold",
    ),
    Case(
        "judging/gate_columns:_slice_problem[0]",
        gate,
        values(gate={"mode": "point", "slices": [{"column": "cty"}]}),
        lambda given, problem: typed([{"column": problem.fix.split("'")[1]}])(given, problem),
    ),
    Case(
        "judging/gate_columns:_slice_problem[1]",
        gate,
        values(gate={"mode": "point", "slices": [{"column": "city", "edges": [1, 2]}]}),
        typed([{"column": "city"}]),
    ),
    Case(
        "judging/gate_columns:_slice_problem[1]",
        gate,
        values(gate={"mode": "point", "slices": [{"column": "age", "edges": ["2026-01-31"]}]}),
        typed([{"column": "age", "edges": [30]}]),
        "numbers",
    ),
    Case(
        "judging/gate_columns:_slice_problem[1]",
        gate,
        values(gate={"mode": "point", "slices": [{"column": "day", "edges": [1]}]}),
        lambda given, problem: typed([{"column": "day", "edges": [problem.fix.split('"')[1]]}])(
            given, problem
        ),
        "dates",
    ),
    Case(
        "judging/gate_columns:_single_class_problem",
        gate,
        values(gate={"mode": "point", "slices": [{"column": "y"}], "primary_metric": "auc"}),
        put("gate.primary_metric", "accuracy"),
    ),
    Case(
        "judging/gate_columns:_single_class_problem",
        gate,
        values(gate={"mode": "point", "slices": [{"column": "y"}], "primary_metric": "auc"}),
        typed([{"column": "y", "thresholds": {"accuracy": THRESHOLD}}]),
        "thresholds",
    ),
]


def code_files() -> None:
    """Write model code of several kinds."""
    build = "def build(dataset, units=3): ...\n"
    texts = {"model.py": build, "needs.py": "def build(dataset, depth): ...\n"}
    texts |= {"large/model.py": build, "broken.py": "def build(dataset:\n"}
    texts |= {"listed/model.py": build, "listed/manifest.json": "{}"}
    texts |= {"pack/pack/task.py": "from . import model\n", "pack/pack/model.py": build}
    tree(Path(), {name: text.encode() for name, text in texts.items()})
    Path("empty").mkdir()
    with open("large/weights.bin", "wb") as weights:
        weights.truncate(60 << 20)


def declare(given: Values, argument: str) -> Values:
    """Declare an argument of the function as the remedy spells it out."""
    Path("declared.py").write_text(f"def build(dataset, {argument} = 3): ...\n")
    return given | {"model_code": "declared.py:build"}


CODE = [
    Case(
        "components/code_copy:check_code",
        code,
        values(model_code="mymodels:build", train_image=TRAINER),
        typed("model.py:build"),
    ),
    Case("user_code/model_code:definition", code, values(model_code="model.py:bild"), typed()),
    Case(
        f"{CODE_ARGUMENTS}:wrong_arguments[1]",
        code,
        values(model_code="model.py:build", model_hyperparameters={"unit": 3}),
        typed(3),
    ),
    Case(
        f"{CODE_ARGUMENTS}:wrong_arguments[1]",
        code,
        values(model_code="model.py:build", model_hyperparameters={"zzzz": 3}),
        removed,
        "without a suggestion",
    ),
    Case(
        f"{CODE_ARGUMENTS}:wrong_arguments[2]",
        code,
        values(model_code="needs.py:build"),
        put("model_hyperparameters.depth", 2),
    ),
    Case(
        f"{CODE_ARGUMENTS}:_string_problems",
        code,
        values(model_code="model.py:build", model_hyperparameters={"units": "7"}),
        typed(),
        then=lambda it: it["model_hyperparameters"]["units"] == 7,
    ),
    Case(
        f"{CODE_ARGUMENTS}:_string_problems",
        code,
        values(model_code="model.py:build", model_hyperparameters={"units": "many"}),
        typed(7),
        "without a suggestion",
    ),
    Case(
        f"{CODE_ARGUMENTS}:_string_problems",
        code,
        values(model_code="model.py:build", model_hyperparameters={"units": "many"}),
        lambda given, problem: declare(given, problem.fix.rpartition("declare it: ")[2]),
        "declared",
    ),
    Case(
        "user_code/model_code:read",
        code,
        values(model_code="./empty:build"),
        typed("model.py:build"),
    ),
    Case(
        "user_code/model_code:_missing",
        code,
        values(
            model_code="model.py",
            train_options={"command": ["sh", "$(JOB_DIR)/code/large/model.py"]},
        ),
        put("train_options.command", ["sh", "$(JOB_DIR)/code/model.py"]),
        then=lambda it: it["train_options"]["command"][1] == "$(JOB_DIR)/code/model.py",
    ),
    Case(
        "user_code/model_code:_manifest_problems",
        code,
        values(model_code="./listed:build"),
        lambda given, problem: after(
            lambda: Path("listed/manifest.json").rename("listed/own.json")
        )(given, problem),
    ),
    Case(
        "user_code/program_start:start_problems",
        code,
        values(model_code="model.py", train_options={"command": ["$(JOB_DIR)/code/model.py"]}),
        typed(),
        then=lambda it: it["train_options"]["command"] == ["python3", "$(JOB_DIR)/code/model.py"],
    ),
    Case(
        "user_code/program_start:_not_found",
        code,
        values(
            model_code="./pack",
            train_options={"command": ["python3", "$(JOB_DIR)/code/pack/task.py"]},
        ),
        literal(),
        then=lambda it: it["train_options"]["command"][2].endswith(" -m pack.task"),
    ),
    Case(
        "user_code/code_files:_too_large",
        code,
        values(model_code="./large:build"),
        typed("model.py:build"),
    ),
]


# -- data -----------------------------------------------------------------------------------------

Y = ["no", "yes", "no"] * 40
ROWS = range(len(Y))
_HASHES = row_hashes([number_words(np.arange(len(Y), dtype=np.float32))], len(Y), "0")
_NOT_IN_TRAIN = int(_HASHES.argmax())  # the last row of test
CITIES = ["Rome", "Oslo", "Bonn"] * 40
ODD = 'a "b"'  # a name that JSON has to escape


def data(uri: str = "d.csv", label: str = "y", before: Any = None, **options: Any) -> Values:
    """Return the parameters for data, and for those of the champion before."""
    found = values(data_uri=uri, data_label=label, data_options=options)
    return found | ({"before": before} if before else {})


def after(act: Callable[[], object]) -> Callable[[Values, Problem], Values]:
    """Change files as the remedy says."""

    def apply(given: Values, problem: Problem) -> Values:
        act()
        return given | {"changed": True}

    return apply


def file(name: str = "d.csv", /, **columns: Any) -> None:
    """Write a table with the label `y`."""
    write_table(Path(name), {"y": Y} | columns)


def arrow(table: pa.Table) -> None:
    pa.parquet.write_table(table, "d.parquet")


def excel(sheet: str, **columns: Any) -> None:
    """Write a table with the label `y` to a sheet of d.xlsx."""
    book = openpyxl.Workbook()
    page: Any = book.active
    page.title = sheet
    for row in (["y", *columns], *zip(Y, *columns.values(), strict=True)):
        page.append(row)
    book.save("d.xlsx")


def spread() -> None:
    """Write a table to folders of which only one names a split."""
    for folder in ("DATA/train", "DATA/test", "DATA/other"):
        file(f"{folder}/d.csv", a=[f"{folder}{i}" for i in ROWS], b=ROWS)


def pictures(*names: str) -> None:
    """Write images of two classes, with these names."""
    for number, name in enumerate(names):
        tree(Path("p"), {name: encoded(drawn(number))})


def drawers(each: int = 30) -> None:
    tree(Path("p"), animals(each))


def image_list(*bad: str, **columns: Any) -> None:
    """Write images of two classes, and a table of them with invalid paths and further columns."""
    drawers()
    paths = [*(it.relative_to("p").as_posix() for it in sorted(Path("p").rglob("*.jpg"))), *bad]
    labels = {"y": [path[:3] for path in paths]}
    write_table(Path("p/d.csv"), {"path": paths} | labels | columns)


def listing(label: str = "y", **given: Any) -> Values:
    """Return the parameters for the table of images."""
    return data("p/d.csv", label, **{"types": {"path": "image"}} | given)


def without_labels(label: str | None) -> None:
    """Write a table in which this stands for some labels."""
    arrow(pa.table({"a": ROWS, "y": [label if i % 20 == 0 else Y[i] for i in ROWS]}))


def unlike_files() -> None:
    """Write a folder with two tables, of which the second has a column more."""
    Path("p").mkdir()
    file("p/a.csv", a=ROWS)
    file("p/b.csv", **{"a": ROWS, ODD: ROWS})


def joined() -> None:
    """Write two files with their columns in different orders, and one that joins them."""
    file("p/1.csv", a=ROWS, b=CITIES)
    write_table(Path("p/2.csv"), {"b": CITIES, "y": Y, "a": ROWS})
    Path("d.csv").write_text(Path("p/1.csv").read_text() + Path("p/2.csv").read_text())


def recoded(encoding: str) -> None:
    """Write a table in an encoding, with characters that are not ASCII in header and rows."""
    rows = [f"{i},{'5 €' if i % 2 else 'Köln'},{y}" for i, y in zip(ROWS, Y, strict=True)]
    Path("d.csv").write_bytes("".join(f"{it}\n" for it in ("a,Größe,y", *rows)).encode(encoding))


def unreadable(value: bytes) -> None:
    """Write a table with a column that has this value in every row."""
    rows = [b"%d,%s,%s\n" % (i, value, y.encode()) for i, y in zip(ROWS, Y, strict=True)]
    Path("d.csv").write_bytes(b"".join([b"a,c,y\n", *rows]))


def images_in_cells(is_struct: bool) -> None:
    """Write a table of images, as bytes or as Hugging Face's datasets store them."""
    contents = [encoded(drawn(i)) for i in ROWS]
    cells = [{"bytes": content, "path": None} for content in contents] if is_struct else contents
    arrow(pa.table({"picture": cells, "y": Y}))


def images_to_files(given: Values, problem: Problem) -> Values:
    """Write the images of a table to files, their paths to the table, and set the type."""
    rows = pa.parquet.read_table("d.parquet").to_pylist()
    for i, row in enumerate(rows):
        cell = row["picture"]
        Path(f"{i}.jpg").write_bytes(cell["bytes"] if isinstance(cell, dict) else cell)
    arrow(pa.table({"picture": [f"{i}.jpg" for i in ROWS], "y": Y}))
    return literal(0, "types")(given, problem)


def written(*lines: str) -> None:
    """Write a table as these lines."""
    Path("d.csv").write_text("".join(f"{line}\n" for line in lines))


def cut(lines: int) -> None:
    """Delete the first lines of a table."""
    written(*Path("d.csv").read_text().splitlines()[lines:])


def write_first(line: str) -> None:
    """Write a line above a table."""
    written(line, *Path("d.csv").read_text().splitlines())


def convert(before: str = ".gif", after: str = ".png") -> None:
    """Write all images in another format, as the remedy says."""
    for path in list(Path("p").rglob(f"*{before}")):
        PIL.Image.open(path).save(path.with_suffix(after))
        path.unlink()


def _after(option: str, fix: str) -> str:
    """Return the word or number after an option in a remedy."""
    return re.split("[;, ]", fix.partition(option)[2])[0]


def _rare(row: int) -> list[str]:
    """Return labels of which one is rare."""
    return ["7" if i == row else str(i % 2) for i in ROWS]


AMOUNTS = [f"{i + 1},{i:03}.5" for i in ROWS]
FORMATS = {"numbers": ["1,234", "5,678", "1.234"] * 40, "dates": ["01/02/2024", "3/4/2023"] * 60}
DATA: list[tuple[Case, Callable[[], object]]] = [
    (
        Case(
            "components/preflight/engine:_tick",
            at_tick,
            data("{date}.csv") | {"tick": "{{unknown}}"},
            typed("2026-01-31.csv"),
        ),
        lambda: file("2026-01-31.csv", a=ROWS),
    ),
    (
        Case(
            "components/preflight/engine:_no_data_at",
            at_tick,
            data("{date}.csv") | {"tick": "2026-01-31T05:00:00Z"},
            typed("{date-1d}.csv"),
        ),
        lambda: file("2026-01-30.csv", a=ROWS),
    ),
    (
        Case(f"{HEADER}:_unknown", table, data(drop=["cty", "b"]), typed(), "drop"),
        lambda: file(city=CITIES, a=ROWS, b=ROWS),
    ),
    (
        Case(f"{HEADER}:_unknown", table, data(columns=["a", "cty"]), typed(), "columns"),
        lambda: file(city=CITIES, a=ROWS),
    ),
    (
        Case(f"{HEADER}:_unknown", table, data(types={"cty": "text"}), typed("text"), "types"),
        lambda: file(city=CITIES, a=ROWS),
    ),
    (
        Case(f"{HEADER}:_unknown", table, data(missing={"cty": "drop"}), typed("drop"), "missing"),
        lambda: file(city=CITIES, a=ROWS),
    ),
    (
        Case(f"{HEADER}:_unknown", table, data(split={"group": "cty"}), typed(), "group"),
        lambda: file(city=[str(i % 40) for i in ROWS], a=ROWS),
    ),
    (
        Case(f"{HEADER}:_unknown", table, data(weight="weigt"), typed(), "weight"),
        lambda: file(weight=[1.5] * len(Y), a=ROWS),
    ),
    (
        Case(f"{HEADER}:_used", table, data(drop=["y"]), put("data_options.drop", []), "drop"),
        lambda: file(a=ROWS),
    ),
    (
        Case(f"{HEADER}:_used", table, data(types={"y": "category"}), removed, "types"),
        lambda: file(a=ROWS),
    ),
    (
        Case(f"{HEADER}:_used", table, data(split={"group": "y"}), typed("g"), "group"),
        lambda: file(a=ROWS, g=[i % 40 for i in ROWS]),
    ),
    (Case(f"{HEADER}:_no_label[0]", table, data(label=""), typed("y")), lambda: file(a=ROWS)),
    (
        Case(
            f"{DATA_SOURCE}/unread_files:no_label_beside_images",
            table,
            data("p", ""),
            put("data_label", "y"),
        ),
        lambda: (drawers(), file("p/d.csv", a=ROWS)),
    ),
    (Case(f"{HEADER}:_no_label[1]", table, data(label="Y"), typed()), lambda: file(a=ROWS)),
    *(
        (
            Case(
                f"{HEADER}:_no_label[1]",
                table,
                data(delimiter=","),
                typed(),
                f"delimited by {delimiter!r}",
            ),
            lambda delimiter=delimiter: write_table(
                Path("d.csv"), {"a": ROWS, "b": CITIES, "y": Y}, delimiter
            ),
        )
        for delimiter in ";\t| "
    ),
    (
        Case(f"{HEADER}:no_rows", table, data(), typed("e.csv")),
        lambda: (Path("d.csv").write_text("a,y\n"), file("e.csv", a=ROWS)),
    ),
    (
        Case(f"{HEADER}:_unusable_names[0]", table, data(), put("data_options.drop", ["a"])),
        lambda: (
            file(a=ROWS, b=ROWS, c=ROWS),
            Path("d.csv").write_text(Path("d.csv").read_text().replace("a,b", "a,a", 1)),
        ),
    ),
    (
        Case(f"{HEADER}:_unusable_names[1]", table, data(), literal()),
        lambda: (
            file(b=ROWS, c=ROWS),
            Path("d.csv").write_text(Path("d.csv").read_text().replace("b,", ",", 1)),
        ),
    ),
    (
        Case(f"{HEADER}:choose", table, data(drop=["a"]), put("data_options.drop", [])),
        lambda: file(a=ROWS),
    ),
    (
        Case("options/parse:no_path", table, data("d.cvs"), typed()),
        lambda: file(a=ROWS),
    ),
    (
        Case(f"{LISTING}:list_address[0]", table, data("gs://b/d.csv"), typed("d.csv")),
        lambda: file(a=ROWS),
    ),
    (
        Case(
            f"{LISTING}:list_address[1]",
            table,
            data("p"),
            after(lambda: os.rename(b"p/\xff.csv", b"p/d.csv")),
        ),
        lambda: (file("p/e.csv", a=ROWS), os.rename(b"p/e.csv", b"p/\xff.csv")),
    ),
    (
        Case(f"{LISTING}:table_files[0]", table, data("*.cvs"), typed("*.csv"), "a pattern"),
        lambda: file(a=ROWS),
    ),
    (
        Case(f"{LISTING}:table_files[0]", table, data("p"), typed("d.csv"), "a folder"),
        lambda: (file(a=ROWS), Path("p").mkdir(), Path("p/x.log").write_text("")),
    ),
    (
        Case(f"{LISTING}:table_files[1]", table, data("d.csv, d.csv"), typed("d.csv")),
        lambda: file(a=ROWS),
    ),
    (
        Case(f"{LISTING}:_walk", table, data("p"), typed("q"), "the linked folder itself"),
        lambda: (file("q/d.csv", a=ROWS), Path("p").mkdir(), Path("p/l").symlink_to("../q")),
    ),
    (
        Case(f"{LISTING}:_walk", table, data("p"), after(lambda: Path("p/l").unlink()), "remove"),
        lambda: (file("p/d.csv", a=ROWS), Path("p/l").symlink_to("nothing")),
    ),
    (
        Case(f"{ARROW}:_pandas_index", table, data("d.parquet"), literal()),
        lambda: arrow(pa.table({"a": ROWS, "y": Y, "__index_level_0__": ROWS})),
    ),
    (
        Case(f"{ARROW}:_wrong_type", table, data("d.parquet"), literal()),
        lambda: arrow(pa.table({"a": ROWS, "y": Y, ODD: [["x"]] * len(Y)})),
    ),
    (
        Case(f"{DATA_SOURCE}/resolve:_not_the_table", table, data("p"), typed("p/**/*.csv")),
        lambda: (file("p/year=1/d.csv", a=ROWS, b=ROWS), file("p/year=2/d.csv", a=ROWS, b=Y)),
    ),
    (
        Case(
            f"{PREPARE}/split_rules:time_limits",
            table,
            data(split={"time": "t"}),
            after(lambda: file(a=ROWS, t=ROWS)),
        ),
        lambda: file(a=ROWS, t=[str(i) if i % 2 else f"2024-01-{i % 27 + 1:02}" for i in ROWS]),
    ),
    (Case(f"{PREPARE}/split_rules:folder_problems", table, data("DATA"), literal()), spread),
    (
        Case(
            f"{PREPARE}/split_rules:folder_problems",
            table,
            data("DATA"),
            lambda given, problem: typed(problem.fix.split('"')[1])(given, problem),
            "addresses",
        ),
        spread,
    ),
    (
        Case(f"{PREPARE}/row_weights:check", table, data(weight="w"), typed("v")),
        lambda: file(a=ROWS, w=[0.0] * len(Y), v=[1.0] * len(Y)),
    ),
    *(
        (
            Case(
                f"{PREPARE}/kinds:_unclear",
                table,
                data("d.parquet"),
                literal(number),
                f"{what} {number}",
            ),
            lambda what=what: arrow(pa.table({ODD: FORMATS[what], "a": ROWS, "y": Y})),
        )
        for what in FORMATS
        for number in range(4)
    ),
    (
        Case(f"{PREPARE}/kinds:_unclear", table, data(delimiter=";"), typed(), "plain numbers"),
        lambda: write_table(Path("d.csv"), {"a": ["1,5", "1.234"] * 60, "b": ROWS, "y": Y}, ";"),
    ),
    (
        Case(
            f"{PREPARE}/kinds:_gaps_problem",
            table,
            data(missing={"c": "mean"}),
            typed("drop"),
            "the rule",
        ),
        lambda: file(c=CITIES, a=ROWS),
    ),
    (
        Case(f"{PREPARE}/kinds:too_many", table, data(types={ODD: "category"}), literal()),
        lambda: file(**{ODD: [f"t{i}" for i in ROWS], "a": ROWS}),
    ),
    (
        Case(f"{PREPARE}/dictionary:too_large", table, data(), put("data_options.drop", ["c"])),
        lambda: file(c=CITIES, a=ROWS),
    ),
    (
        Case(
            f"{PREPARE}/dictionary:too_large",
            table,
            data(),
            put("data_options.types", {"c": "text"}),
            "types",
        ),
        lambda: file(c=CITIES, a=ROWS),
    ),
    (
        Case(f"{PREPARE}/column_profile:too_many_others", table, data(), typed(["a", "c0"])),
        lambda: file(a=ROWS, **{f"c{i}": CITIES for i in range(9)}),
    ),
    (
        Case(f"{PREPARE}/labels:problem", table, data(), typed("a")),
        lambda: file(y=[1e9 + i / 1e3 for i in ROWS], a=[i / 7 for i in ROWS], b=ROWS),
    ),
    (
        Case(f"{PREPARE}/labels:decide[2]", table, data(task="classification"), literal()),
        lambda: file(y=[i / 7 for i in ROWS], a=ROWS),
    ),
    (
        Case(
            f"{PREPARE}/labels:decide[2]",
            table,
            data("d.parquet", task="classification"),
            lambda given, problem: literal(1)(literal(0)(given, problem), problem),
            "a format and the task",
        ),
        lambda: arrow(pa.table({"a": ROWS, "y": AMOUNTS})),
    ),
    (
        Case(f"{PREPARE}/labels:decide[2]", table, data("d.parquet"), literal(), "a format"),
        lambda: arrow(pa.table({"a": ROWS, "y": AMOUNTS})),
    ),
    (
        Case(f"{PREPARE}/labels:_not_classes", table, data("d.parquet"), literal()),
        lambda: arrow(pa.table({"a": ROWS, "y": AMOUNTS})),
    ),
    (
        Case(
            f"{PREPARE}/labels:_not_classes", table, data("d.parquet"), literal(), "plain numbers"
        ),
        lambda: arrow(pa.table({"a": ROWS, "y": [f"{i},5" if i % 3 else "1.234" for i in ROWS]})),
    ),
    *(
        (
            Case(f"{PREPARE}/labels:_not_classes", table, data(delimiter=";"), typed(), what),
            lambda labels=labels: write_table(Path("d.csv"), {"a": ROWS, "y": labels}, ";"),
        )
        for what, labels in {
            "classes with a comma": ["1,5", "2,5", "3,5"] * 40,
            "dates as classes": [f"2024-01-{i % 28 + 1:02}" for i in ROWS],
        }.items()
    ),
    (
        Case(
            f"{PREPARE}/labels:_not_classes",
            table,
            data("d.parquet"),
            lambda given, problem: (
                without_labels(None),
                put("data_options.on_bad_row", "drop")(given, problem),
            )[1],
            "missing",
        ),
        lambda: without_labels("nan"),
    ),
    (
        Case(f"{PREPARE}/labels:_not_classes", table, data("d.parquet"), typed(), "nan"),
        lambda: without_labels("nan"),
    ),
    (
        Case(f"{PREPARE}/row_requirements:_not_in_train", table, data(), literal()),
        lambda: file(y=_rare(_NOT_IN_TRAIN), a=ROWS),
    ),
    (
        Case(
            f"{PREPARE}/row_requirements:check_bad",
            table,
            data(on_bad_row="drop", max_bad_fraction=0.01),
            put("data_options.max_bad_fraction", 0.2),
        ),
        lambda: file(a=["x", "y", *map(str, ROWS[2:])]),
    ),
    (
        Case(f"{PREPARE}/faults:_invalid_rows", table, data(max_bad_fraction=0.2), literal()),
        lambda: file(a=["x", *map(str, ROWS[1:])], b=ROWS),
    ),
    (
        Case(f"{PREPARE}/faults:_without_label", table, data(), typed()),
        lambda: file(y=["", *Y[1:]], a=ROWS),
    ),
    (
        Case(
            f"{PREPARE}/faults:_without_label",
            table,
            data(),
            lambda given, problem: put(
                "data_options.max_bad_fraction", float(_after("max_bad_fraction=", problem.fix))
            )(literal()(given, problem), problem),
            "many",
        ),
        lambda: file(y=[""] * 30 + Y[30:], a=ROWS),
    ),
    (
        Case(
            f"{PREPARE}/faults:_without_label",
            table,
            data(on_bad_row="drop"),
            lambda given, problem: put(
                "data_options.max_bad_fraction", float(_after("max_bad_fraction=", problem.fix))
            )(given, problem),
            "many, which are dropped",
        ),
        lambda: file(y=[""] * 30 + Y[30:], a=ROWS),
    ),
    (Case(f"{PREPARE}/faults:order_problem", table, data(), typed("p")), joined),
    (
        Case(f"{PREPARE}/tasks:_other_columns", table, data("p"), literal(0, "drop")),
        unlike_files,
    ),
    (
        Case(
            f"{PREPARE}/faults:column_problems",
            table,
            data("d.parquet", types={ODD: "number"}),
            literal(1),
        ),
        lambda: arrow(pa.table({ODD: CITIES, "a": ROWS, "y": Y})),
    ),
    *(
        (
            Case(
                f"{PREPARE}/faults:column_problems", table, data(), literal(0, "drop"), f"{value!r}"
            ),
            lambda value=value: unreadable(value),
        )
        for value in (b"caf\xe9", b"x\0")
    ),
    (
        Case(
            f"{PREPARE}/faults:column_problems",
            table,
            data(),
            put("data_options.encoding", "cp1252"),
            "encoding",
        ),
        lambda: unreadable(b"caf\xe9"),
    ),
    *(
        (
            Case(f"{PREPARE}/{site}", table, data("d.parquet"), images_to_files, "images"),
            lambda is_struct=is_struct: images_in_cells(is_struct),
        )
        for site, is_struct in (
            ("faults:column_problems", False),
            ("source/readers/arrow_table:_wrong_type", True),
        )
    ),
    (
        Case(
            f"{ENCODED}:_wrong",
            table,
            data(encoding="ascii"),
            typed("cp1252"),
            "without a suggestion",
        ),
        lambda: recoded("cp1252"),
    ),
    *(
        (
            Case(f"{ENCODED}:_wrong", table, data(encoding=encoding), typed(), encoding),
            lambda: recoded("cp1252"),
        )
        for encoding in ("iso8859-1", "iso8859-15")
    ),
    *(
        (
            Case(f"{ENCODED}:_other_encoding", table, data(encoding="cp1252"), typed(), encoding),
            lambda encoding=encoding: recoded(encoding),
        )
        for encoding in ("utf-8", "utf-8-sig", "utf-16")
    ),
    *(
        (
            Case(f"{DATA_SOURCE}/readers/csv_table:_parsed_header", table, data(), typed(), it),
            lambda it=it: recoded(it),
        )
        for it in ("cp1252", "utf-16-le", "utf-16-be")
    ),
    (
        Case(
            f"{DATA_SOURCE}/readers/json_table:_find_keys",
            table,
            data("d.jsonl"),
            typed("cp1252"),
        ),
        lambda: Path("d.jsonl").write_bytes(
            "".join(f'{{"Größe": {i}, "y": "{y}"}}\n' for i, y in zip(ROWS, Y, strict=True)).encode(
                "cp1252"
            )
        ),
    ),
    (
        Case(f"{DATA_SOURCE}/readers/json_table:_other_shape", table, data("d.json"), typed()),
        lambda: (file(a=ROWS), os.rename("d.csv", "d.json")),
    ),
    (
        Case(
            f"{DATA_SOURCE}/readers/open_table:_refuse_names",
            table,
            data("d.parquet", names=["a", "y"]),
            typed(),
        ),
        lambda: arrow(pa.table({"a": ROWS, "y": Y})),
    ),
    (
        Case(f"{DATA_SOURCE}/readers/open_table:_refuse_sheet", table, data(sheet="A"), typed()),
        lambda: file(a=ROWS),
    ),
    (
        Case(
            f"{DATA_SOURCE}/readers/excel_sheet:_no_sheet",
            table,
            data("d.xlsx", sheet="Tabelle"),
            typed(),
        ),
        lambda: excel("Tabelle1", a=ROWS),
    ),
    (
        Case(f"{DATA_SOURCE}/delimiter:_ambiguous", table, data(), typed()),
        lambda: written("y;a;b|c", *(f"{y};{i};{i % 3}|0" for i, y in zip(ROWS, Y, strict=True))),
    ),
    (
        Case(
            f"{HEADER}:_below_header",
            table,
            data(),
            lambda given, problem: (cut(1), typed()(given, problem))[1],
        ),
        lambda: written("sep=;", "y;a", *(f"{y};{i}" for i, y in zip(ROWS, Y, strict=True))),
    ),
    (
        Case(f"{HEADER}:_below_header", table, data(), after(lambda: cut(2)), "lines above"),
        lambda: written("A report", "", "y,a", *(f"{y},{i}" for i, y in zip(ROWS, Y, strict=True))),
    ),
    (
        Case(f"{HEADER}:aligned_with_blanks", table, data(delimiter=" "), typed()),
        lambda: written("y  a", *(f"{y}  {i}" for i, y in zip(ROWS, Y, strict=True))),
    ),
    (
        Case(f"{HEADER}:has_header", table, data(names=["y", "a"]), typed()),
        lambda: file(a=ROWS),
    ),
    (
        Case(
            f"{HEADER}:has_header",
            table,
            data(names=["y", "a"]),
            put("data_options.header", False),
            "a row",
        ),
        lambda: (file(a=ROWS), cut(1), write_first("maybe,1000")),
    ),
    (
        Case(
            f"{HEADER}:without_header",
            table,
            data(label="no"),
            lambda given, problem: (
                literal()(given, problem) | {"data_label": _after("data_label=", problem.fix)}
            ),
        ),
        lambda: (file(a=ROWS), cut(1)),
    ),
    (
        Case(
            f"{HEADER}:without_header",
            table,
            data(label="30"),
            put("data_options.header", True),
            "a header",
        ),
        lambda: written("10,30", *(f"{i},{i % 2}" for i in ROWS)),
    ),
    (
        Case(
            f"{DATA_SOURCE}/readers/csv_table:_names_problems",
            table,
            data(names=["y", "a"], delimiter=","),
            typed(),
        ),
        lambda: written(*(f"{y};{i}" for i, y in zip(ROWS, Y, strict=True))),
    ),
    (
        Case(
            f"{DATA_SOURCE}/readers/csv_table:_names_problems",
            table,
            data(names=["y", "a"]),
            typed(["y", "a", "b"]),
            "the names",
        ),
        lambda: written(*(f"{y},{i},{i}" for i, y in zip(ROWS, Y, strict=True))),
    ),
    (
        Case(f"{IMAGES}:refuse_other_images", table, data("p", ""), typed()),
        lambda: (drawers(), [os.rename(it, it.with_suffix("")) for it in Path("p").rglob("*.jpg")]),
    ),
    (
        Case(f"{IMAGES}:refuse_other_images", table, data("p", ""), after(convert), "other images"),
        lambda: (drawers(), convert(".jpg", ".gif")),
    ),
    (
        Case(
            f"{DATA_SOURCE}/readers/open_table:_reader_of",
            table,
            data(format="jsonl"),
            lambda given, problem: without(given, "data_options.format"),
        ),
        lambda: file(a=ROWS),
    ),
    (
        Case(f"{IMAGES}:_none", table, data("d.csv", "", format="pictures"), typed("p")),
        lambda: (file(a=ROWS), drawers()),
    ),
    (
        Case(
            f"{PREPARE}/faults:image_problems",
            table,
            data("p", "", max_bad_fraction=0.1),
            literal(),
        ),
        lambda: (drawers(), Path("p/cat/x.jpg").write_bytes(encoded(drawn())[:-9])),
    ),
    (
        Case(f"{IMAGES}:option_problems", table, data("p", "", delimiter=";"), removed),
        drawers,
    ),
    (
        Case(f"{IMAGES}:option_problems", table, data("p", "", task="regression"), removed, "task"),
        drawers,
    ),
    (
        Case(f"{IMAGES}:_label_named_as_images", table, data("p", "picture"), typed()),
        drawers,
    ),
    (
        Case(f"{PREPARE}/scan:_no_feature", table, data("p/d.csv"), typed()),
        image_list,
    ),
    (
        Case(f"{IMAGES}:option_problems", table, listing(weight="w"), removed, "a list"),
        image_list,
    ),
    (
        Case(
            f"{IMAGES}:option_problems",
            table,
            listing(split={"time": "w"}),
            put("data_options.split", {"group": "w"}),
            "the time of a list",
        ),
        lambda: image_list(w=[i % 30 for i in range(60)]),
    ),
    (
        Case(f"{IMAGE_LIST}:_other_features", table, listing(), typed()),
        lambda: image_list(w=ROWS[:60], v=ROWS[:60]),
    ),
    (
        Case(f"{IMAGE_LIST}:_other_features", table, listing(drop=["v"]), literal(), "drop"),
        lambda: image_list(w=ROWS[:60], v=ROWS[:60]),
    ),
    (
        Case(
            f"{IMAGE_LIST}:_other_types",
            table,
            listing(drop=["w"], types={"path": "image", "w": "text"}),
            put("data_options.types", {"path": "image"}),
        ),
        lambda: image_list(w=ROWS[:60]),
    ),
    (
        Case(
            f"{IMAGE_LIST}:_class_problems",
            table,
            listing("w", columns=["path"]),
            typed("y"),
        ),
        lambda: image_list(w=["x"] * 60),
    ),
    (
        Case(
            f"{IMAGE_LIST}:_label_named_as_images",
            table,
            listing("picture", columns=["path"]),
            typed("y"),
        ),
        lambda: image_list(picture=["x", "y"] * 30),
    ),
    (
        Case(f"{PREPARE}/faults:image_problems", table, listing(), literal(), "a list"),
        lambda: image_list("cat/none.jpg", "../out.jpg"),
    ),
    (
        Case(
            f"{IMAGES}:_folders[0]",
            table,
            data("p", ""),
            after(lambda: os.rename("p/9.jpg", "p/cat/9.jpg")),
        ),
        lambda: (drawers(), pictures("9.jpg")),
    ),
    (
        Case(f"{IMAGES}:_folders[0]", table, data("p/cat", ""), typed("p"), "one class"),
        drawers,
    ),
    (
        Case(
            f"{IMAGES}:_folders[1]",
            table,
            data(".", ""),
            lambda given, problem: typed(_after("such as ", problem.fix))(given, problem),
            "the folder above",
        ),
        drawers,
    ),
]
# Limits that take too much data to reach.
LIMITS: dict[str, tuple[tuple[Any, str, int], ...]] = {
    f"{PREPARE}/kinds:too_many": (
        (kinds, "MOST_TEXTS", 50),
        (column_profile, "MOST_TEXTS", 50),
        (dictionary, "MOST_TEXTS", 50),
    ),
    f"{PREPARE}/dictionary:too_large": ((dictionary, "_MOST_BYTES", 5),),
    f"{PREPARE}/column_profile:too_many_others": (
        (column_profile, "MOST_OTHERS", 5),
        (kinds, "MOST_OTHERS", 5),
    ),
    f"{PREPARE}/labels:decide[2]": ((labels, "MOST_CLASSES", 50),),
}


# -- the data of a champion -----------------------------------------------------------------------

BEFORE = data("before.csv")


def both(before: dict[str, Any], now: dict[str, Any]) -> Callable[[], None]:
    def write() -> None:
        file("before.csv", **before)
        file(**now)

    return write


PLAIN = {"a": ROWS, "c": CITIES}
MANY = {f"n{i}": ROWS for i in range(25)}
CONTRACT = f"{PREPARE}/contracts"
CONTRACTS: list[tuple[Case, Callable[[], object]]] = [
    (
        Case(f"{CONTRACT}:_columns[0]", contract, data(before=BEFORE), literal()),
        both(PLAIN | {"d": CITIES}, PLAIN | {"d": [f"t{i}" for i in ROWS]}),
    ),
    (
        Case(
            f"{CONTRACT}:_columns[0]",
            contract,
            data(before=BEFORE, drop=["c"]),
            lambda given, problem: without(given, problem.fix.removeprefix("remove it from ")),
            "drop",
        ),
        both(PLAIN, PLAIN),
    ),
    (
        Case(f"{CONTRACT}:_columns[1]", contract, data(before=BEFORE), literal()),
        both(PLAIN, PLAIN | {"b'": ROWS}),
    ),
    (
        Case(
            f"{CONTRACT}:_columns[1]", contract, data(before=BEFORE, drop=["c"]), literal(), "drop"
        ),
        both({"a": ROWS}, PLAIN | {"e": ROWS}),
    ),
    (
        Case(
            f"{CONTRACT}:_columns[1]",
            contract,
            data(before=BEFORE, drop=["n0"]),
            literal(),
            "many",
        ),
        both(PLAIN, PLAIN | MANY),
    ),
    (
        Case(f"{CONTRACT}:_columns[2]", contract, data(before=BEFORE), literal()),
        both(PLAIN | {"d": CITIES}, PLAIN | {"d": [i % 9 for i in ROWS]}),
    ),
    (
        Case(f"{CONTRACT}:_columns[3]", contract, data(before=BEFORE), literal()),
        both(PLAIN, {"c": CITIES, "a": ROWS}),
    ),
    (
        Case(
            f"{CONTRACT}:_rules",
            contract,
            data(before=BEFORE, task="regression"),
            literal(),
            "task",
        ),
        both(PLAIN | {"y": [i % 2 for i in ROWS]}, PLAIN | {"y": [i % 2 for i in ROWS]}),
    ),
    (
        Case(
            f"{CONTRACT}:_rules",
            contract,
            data(before=BEFORE, split={"train": 0.6, "validation": 0.2, "test": 0.2}),
            literal(),
            "split",
        ),
        both(PLAIN, PLAIN),
    ),
]


# -- requests -------------------------------------------------------------------------------------

ANSWERED = [
    ("age", "FP64", [30.0]),
    ("job", "BYTES", ["nurse"]),
    ("signed up", "BYTES", ["2012-03-01"]),
    ("member", "BOOL", [True]),
    ("note", "BYTES", ["x"]),
    ("height", "FP64", [1.5]),
]


def _input(name: str, *other: Any) -> dict[str, Any]:
    return {"inputs": [(name, *other) if it[0] == name else it for it in ANSWERED]}


COLUMNS, TENSORS = "serving/request_columns", "serving/tensors"
SERVING = [
    Case(
        f"{COLUMNS}:of_rows",
        rows,
        {"instances": []},
        lambda given, problem: {"instances": [ROW]},
    ),
    Case(
        f"{COLUMNS}:_rows_by_column",
        rows,
        {"instances": [[1, 2]]},
        lambda given, problem: {"instances": [ROW]},
    ),
    Case(
        f"{COLUMNS}:_column_mismatch[0]",
        list_rows,
        {"instances": [{"emb": [0.5, 1.5]}]},
        lambda given, problem: {
            "instances": [dict.fromkeys(problem.fix.partition(": ")[2].split(", "), 0.5)]
        },
    ),
    Case(
        f"{COLUMNS}:_describe_unusable",
        image_rows,
        {"instances": [image_row(png_of_size(20_000, 20_000))]},
        lambda given, problem: {"instances": [image_row(png_of_size(200, 200))]},
    ),
    Case(
        f"{COLUMNS}:_column_mismatch[1]",
        rows,
        {"instances": [{key: it for key, it in ROW.items() if key != "job"}]},
        lambda given, problem: in_request(problem.path, "nurse")(given, problem),
    ),
    Case(
        f"{COLUMNS}:_column_mismatch[2]",
        rows,
        {"instances": [{"jb" if key == "job" else key: it for key, it in ROW.items()}]},
        renamed,
        "renamed",
    ),
    Case(f"{COLUMNS}:_column_mismatch[2]", rows, {"instances": [ROW | {"income": 1}]}, renamed),
    Case(
        f"{COLUMNS}:_describe_invalid[0]",
        rows,
        {"instances": [ROW | {"age": "x"}]},
        in_request("age", 30),
    ),
    Case(
        f"{COLUMNS}:_describe_missing",
        rows,
        {"instances": [ROW | {"height": None}]},
        in_request("height", 1.5),
    ),
    Case(
        f"{TENSORS}:read[0]",
        inputs,
        {"inputs": [*ANSWERED, ANSWERED[0]]},
        lambda given, problem: {"inputs": ANSWERED},
    ),
    Case(
        f"{TENSORS}:read[1]",
        inputs,
        _input("age", "BYTES", [30.0]),
        lambda given, problem: _input("age", problem.fix.rpartition(" ")[2], [30.0]),
    ),
    Case(
        f"{TENSORS}:_flatten",
        inputs,
        _input("age", "FP64", [30.0, 31.0], [1, 2]),
        lambda given, problem: _input("age", "FP64", [30.0], [1, 1]),
    ),
    Case(
        "serving/column_names:check_columns",
        lambda given: problems_of(
            lambda: check_columns("--sample-without", given["names"], [it[0] for it in ANSWERED])
        ),
        {"names": ("heigth",)},
        lambda given, problem: {"names": (problem.suggestion,)},
    ),
    Case(
        "serving/limits:_refuse_compressed",
        request,
        {"headers": [(b"content-encoding", b"gzip")], "body": gzip.compress(b"{}")},
        lambda given, problem: {
            "headers": [it for it in given["headers"] if it[0].decode() not in problem.fix.lower()],
            "body": gzip.decompress(given["body"]),
        },
    ),
    Case(
        "serving/listening:listen",
        port,
        {"port": "one that is taken"},
        lambda given, problem: {"port": 0},
    ),
]


# -- the command line -----------------------------------------------------------------------------


def settings(given: Any) -> list[Problem]:
    """Return what is wrong with values of `--set`."""
    return problems_of(lambda: parameters._apply(values(), [(it, "--set") for it in given["set"]]))


def parameters_file(given: Any) -> list[Problem]:
    """Return what is wrong with a file of run parameters."""
    file = Path("run.json")
    file.write_text(json.dumps(given))
    return problems_of(lambda: parameters.parameters_of({"file": file, "settings": ()}))


def command(given: Any) -> list[Problem]:
    """Return what is wrong with the arguments of a command."""
    called: Any = {"compile": compiling.compile_, "import": importing.import_}[given["command"]]
    for name, job in given.get("files", {}).items():
        Path(name).write_text(yaml.safe_dump_all(job))
    return problems_of(lambda: called.main(given["arguments"], standalone_mode=False))


JOB_FILE = {"files": {"job.yaml": [tfjob()]}}
OF_IMPORT = {"command": "import", "arguments": ["job.yaml"]} | JOB_FILE


def arguments(*more: str) -> Callable[[Any, Problem], Any]:
    return lambda given, problem: given | {"arguments": [*given["arguments"], *more]}


def typed_again(given: Any, problem: Problem) -> Any:
    """Type what the remedy spells out after `--set`."""
    text = problem.fix.partition("--set ")[2]
    return {"set": [text.replace("VALUE", "3").replace("KEY", "mode")]}


def models(given: Any) -> list[Problem]:
    store: Any = SimpleNamespace(folders=lambda address: ["churn", "fraud"])
    return problems_of(lambda: view.require(store, Layout.parse("s3://bucket"), given["model"]))


def trainer(given: Any) -> list[Problem]:
    """Return what the trainer says of its environment."""
    return problems_of(lambda: Config.from_environment(given))


ENVIRONMENT = {
    "RUN_ID": "r",
    "ATTEMPT": "1",
    "DATASET_URI": "s3://bucket/d",
    "MODEL_CODE": "m:f",
    "EPOCHS": "1",
    "BATCH_SIZE": "4",
    "JOB_DIR": "/tmp/j",
    "OUTPUT_DIR": "/tmp/o",
    "EXPECTED_REPLICAS": "1",
}
PIPELINE = ["--registry", "r.io/team", "--output", "compiled"]
COMMANDS = [
    Case(
        "pipelines/commands/parameters:_apply[0]",
        settings,
        {"set": ["gate"]},
        put("set", ['gate={"mode": "point"}']),
    ),
    Case(
        "pipelines/commands/parameters:_apply[1]",
        settings,
        {"set": ["train_epochs.x=3"]},
        typed_again,
    ),
    Case("pipelines/commands/parameters:_apply[2]", settings, {"set": ["gate=x"]}, typed_again),
    Case(
        "pipelines/commands/parameters:_read[3]",
        parameters_file,
        {"model_name": ["churn"]},
        lambda given, problem: {problem.path: "churn"},
    ),
    Case(
        "pipelines/compilation:_write",
        command,
        {"command": "compile", "arguments": ["--output", "job.yaml/compiled"]} | JOB_FILE,
        put("arguments", PIPELINE),
    ),
    Case(
        "pipelines/commands/compile:compile_[0]",
        command,
        {"command": "compile", "arguments": [*PIPELINE, "--run-as-user", "0"]},
        put("arguments", PIPELINE),
    ),
    Case(
        "pipelines/commands/compile:compile_[1]",
        command,
        {"command": "compile", "arguments": ["--gpu", "--output", "compiled"]},
        arguments("--registry", "r.io/team"),
    ),
    Case(
        REFERENCE,
        command,
        {"command": "compile", "arguments": ["--registry", "a b", "--output", "compiled"]},
        put("arguments", PIPELINE),
        "registry",
    ),
    Case(
        REFERENCE,
        command,
        {"command": "compile", "arguments": ["--output", "compiled", "--registry", "https://A.b"]},
        lambda given, problem: (
            given | {"arguments": [*given["arguments"][:-1], problem.suggestion]}
        ),
        "registry with a correction",
    ),
    Case(
        "pipelines/commands/import_job:import_",
        command,
        OF_IMPORT | {"files": {"job.yaml": [tfjob(), tfjob()]}},
        lambda given, problem: arguments(*problem.fix.split()[1:])(given, problem),
    ),
    Case(
        "pipelines/commands/import_job:_program",
        command,
        OF_IMPORT | {"arguments": ["job.yaml", "--command", "train.py"]},
        put("arguments", ["job.yaml", "--command", '["train.py"]']),
    ),
    Case(
        "pipelines/commands/import_job:_write",
        command,
        OF_IMPORT | {"arguments": ["job.yaml", "--output", "folder/params.yaml"]},
        put("arguments", ["job.yaml", "--output", "params.yaml"]),
    ),
    Case(
        "pipelines/job_import/documents:_unreadable",
        command,
        OF_IMPORT | {"files": {"job.yaml": [tfjob() | {"apiVersion": "kubeflow.org/v1alpha1"}]}},
        put("files", {"job.yaml": [tfjob()]}),
    ),
    Case(
        "pipelines/job_import/source_job:_problem",
        command,
        OF_IMPORT | {"files": {"job.yaml": [tfjob(image=["a"])]}},
        put("files", {"job.yaml": [tfjob(image="a")]}),
    ),
    Case(
        "pipelines/job_import/report:refuse",
        command,
        OF_IMPORT | {"files": {"job.yaml": [tfjob(command=[])]}},
        lambda given, problem: arguments(
            *shlex.split(problem.fix[problem.fix.index("--command") :])
        )(given, problem),
        "no command",
    ),
    Case(
        "pipelines/job_import/report:refuse",
        command,
        OF_IMPORT | {"files": {"job.yaml": [tfjob({"securityContext": {"runAsUser": 0}})]}},
        put("files", {"job.yaml": [tfjob({"securityContext": {"runAsUser": 7}})]}),
        "root",
    ),
    Case(
        "pipelines/step_resources:parse",
        lambda given: problems_of(lambda: step_resources.parse(given["settings"])),
        {"settings": ["prepare.memory=8Gi"]},
        lambda given, problem: {"settings": [problem.fix.rpartition(" ")[2]]},
    ),
    Case(
        "pipelines/kubeflow/schedules:__post_init__",
        lambda given: problems_of(lambda: Trigger(given["cron"])),
        {"cron": "0 3 * * *"},
        lambda given, problem: {"cron": problem.fix.split("'")[1]},
    ),
    Case(
        "pipelines/kubeflow/schedules:__post_init__",
        lambda given: problems_of(lambda: Trigger(given["cron"])),
        {"cron": "daily"},
        lambda given, problem: {"cron": problem.fix.split("'")[1]},
        "an example",
    ),
    Case(
        "pipelines/commands/run:_missing_secrets",
        lambda given: list(running._missing_secrets(given)),
        values(pod={"all": {"env": {"API_KEY": "******"}}}),
        typed("k"),
    ),
    Case(
        "registry/view:require",
        models,
        {"model": "chrun"},
        lambda given, problem: {"model": problem.suggestion},
    ),
    Case(
        "trainer/config:_wrong",
        trainer,
        ENVIRONMENT | {"EPOCHS": "0"},
        lambda given, problem: given | {problem.path: "1"},
    ),
    Case(
        "trainer/config:problem_of",
        trainer,
        ENVIRONMENT | {"TF_CONFIG": "{"},
        lambda given, problem: {key: it for key, it in given.items() if key != problem.path},
    ),
    Case(
        "cluster/create_job:lost_field",
        lambda given: [
            lost_field(path, it) for path, it in lost_fields(ApiClient(), given["job"], "V1Pod")
        ],
        {"job": {"kind": "Pod", "spec": {"containers": [], "nodeSelecter": {"a": "b"}}}},
        lambda given, problem: {"job": {"kind": "Pod", "spec": {"containers": []}}},
    ),
    Case(
        "pipelines/kubeflow/package:problems[1]",
        lambda given: list(Package("p", {"pipeline_spec": {}}).problems(given["train_image"])),
        values(train_image=TRAINER),
        typed("r.io/trainer:1"),
    ),
]

# Where the remedy cannot be applied here, and what else holds it.
_OF_TRAINER = "tests/local/test_trainer_remedies.py: it needs TensorFlow"
NOT_HERE = {
    "checks/step_memory:out_of_memory": "it needs a pod with more memory",
    "cluster/local/backend:_free_ports": "it needs a machine without free ports",
    "components/task_claim:_same_task_key": "tests/local/test_launch_alone.py sets task_key",
    f"{PREPARE}/contracts:consequence": "tests/local/test_evaluate_publish.py treats it as first",
    f"{PREPARE}/data_validation:_drifted": "tests/local/test_data_validation.py ignores columns",
    f"{PREPARE}/data_validation:_limit_problem": "tests/local/test_data_validation.py has warnings",
    f"{PREPARE}/executors/distributed:_problem": "tests/local/test_prepare_dask.py has a cluster",
    f"{PREPARE}/executors/distributed:_short_of_memory": "it needs a worker with more memory",
    f"{PREPARE}/reference:find": "tests/local/test_data_validation.py has warnings",
    f"{LISTING}:refuse": "the tests may run as root, who reads every folder",
    f"{DATA_SOURCE}/readers/own_reader:_failed": "the user's own code",
    "jobs/nccl_log:problem": "it needs nodes with another network",
    "features/types/words:_too_few_words": "tests/local/test_free_text.py: it needs a store",
    "judging/judge:_load_tensorflow": "it needs a GPU",
    "judging/own_metrics:_failure": "the user's own code",
    "pipelines/commands/parameters:_user": "it needs a machine without the user's name",
    "pipelines/kubeflow/code_upload:_copied": "it needs a store that refuses",
    "serving/protocol:decode_inference_request[0]": "it needs kserve: tests/serve",
    "serving/protocol:decode_inference_request[2]": "it needs kserve: tests/serve",
    "serving/protocol:_requested_outputs": "it needs kserve: tests/serve",
    "serving/protocol:_predict_rows": "it needs kserve: tests/serve",
    "serving/protocol:_require_version": "it needs kserve: tests/serve",
    "trainer/__main__:_translate_error[0]": "it needs a pod with more memory",
    "trainer/__main__:_translate_error[2]": _OF_TRAINER,
    "trainer/callback_choice:_monitor_problems[0]": _OF_TRAINER,
    "trainer/callback_choice:_monitor_problems[1]": _OF_TRAINER,
    "trainer/models:_not_pixels_problem": _OF_TRAINER,
    "trainer/profiler:__init__": _OF_TRAINER,
    "trainer/models:module[0]": _OF_TRAINER,
    "trainer/models:module[1]": _OF_TRAINER,
    "trainer/user_model:_missing_function_problem": _OF_TRAINER,
    "user_code/code_files:local": "the tests may run as root, who reads every file",
}
WITHOUT_REMEDY = {
    "serving/request_columns:_describe_invalid[1]": "it counts others",
    "common/errors:first": "it counts others",
    "common/errors:as_problems": "a text that another error has",
    "jobs/failure_record:reason": "its remedy is shown beside it",
    "trainer/errors:from_message": "the message of another replica contains its remedy",
}


@pytest.mark.parametrize("case", [*PARAMETERS, *GONE, *GATES, *CODE, *SERVING, *COMMANDS], ids=str)
def test_a_remedy_works(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if case in CODE:
        code_files()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "key")
    case.prove()


@pytest.mark.parametrize(
    ("case", "write"),
    [*DATA, *CONTRACTS],
    ids=lambda it: str(it) if isinstance(it, Case) else "",
)
def test_a_remedy_for_data_works(
    case: Case,
    write: Callable[[], object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    for module, name, value in LIMITS.get(case.site, ()):
        monkeypatch.setattr(module, name, value)
    write()
    case.prove()


def test_every_problem_has_a_remedy_and_every_value_is_proven() -> None:
    without = {name for name, it in sites().items() if it.parts.get("fix", "''") in ("''", '""')}
    assert without == WITHOUT_REMEDY.keys(), "say what to do: fix=..."
    cases = [*PARAMETERS, *GONE, *GATES, *CODE, *SERVING, *COMMANDS]
    proven = {it.site for it in (*cases, *(case for case, _ in (*DATA, *CONTRACTS)))}
    named = {name for name, it in sites().items() if it.names_a_value}
    assert named - proven - NOT_HERE.keys() == set(), "add a case that applies the remedy"
    assert (proven | NOT_HERE.keys()) - sites().keys() == set()
    assert not NOT_HERE.keys() & proven
