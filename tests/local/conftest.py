"""Jobs of trainers, a laptop with a back end, and the worlds that the tables of faults run in."""

import os
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from examples import digits
from kfp_tfjob.components.step import Step
from kfp_tfjob.components.step import step as step_of
from kfp_tfjob.options.container_images import PLACEHOLDER
from kfp_tfjob.options.parameters import PARAMETERS
from kfp_tfjob.pipelines.commands.parameters import VARIABLE
from kfp_tfjob.pipelines.kubeflow.errors import ENDPOINT
from kfp_tfjob.pipelines.local.s3_server import Server
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.credentials import MOUNT_VARIABLE, SecretVolume
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.store import Store
from tests.faults.proxy import FaultProxy
from tests.faults.world import World
from tests.local import tiny_dataset
from tests.local.fake_pipelines import FakePipelines
from tests.local.laptop import COMPILED
from tests.local.replica import Replica
from tests.local.trainer_jobs import BATCH, ROOT, Job, Start

RunStep = Callable[..., tuple[int, str]]


@pytest.fixture(scope="session")
def datasets(s3: Server, tmp_path_factory: pytest.TempPathFactory) -> dict[str, S3Address]:
    """The prepared datasets `classification`, `regression` and `wrong` in the store."""
    sent = {}
    for name in ("classification", "regression", "wrong"):
        task = "regression" if name == "regression" else "classification"
        folder = tmp_path_factory.mktemp(name)
        tiny_dataset.write(folder, task, wrong_label=name == "wrong")
        sent[name] = tiny_dataset.send(s3.store(), folder, S3Address("test", f"trainer/{name}"))
    return sent


@pytest.fixture(scope="session")
def digits_csv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "digits.csv"
    digits.write(path)
    return path


@pytest.fixture(scope="module")
def jobs(
    s3: Server, datasets: dict[str, S3Address], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Start]:
    """Starts jobs, and ends what is left of them."""
    started: list[Job] = []

    def start(
        name: str,
        size: int = 1,
        data: str = "classification",
        code: str = "",
        folder: Path | None = None,
        late: Collection[int] = (),
        **environment: str,
    ) -> Job:
        folder = folder or tmp_path_factory.mktemp(name)
        for at in range(size):
            (folder / str(at) / "code").mkdir(parents=True, exist_ok=True)
            (folder / str(at) / "code" / "own.py").write_text(code)
        defaults = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
            MOUNT_VARIABLE: str(s3.secret),
            "RUN_ID": name,
            "ATTEMPT": "1",
            "DATASET_URI": str(datasets.get(data, f"s3://test/{data}")),
            "MODEL_CODE": "own:build_model" if code else "kfp_tfjob.trainer.models:mlp",
            "EPOCHS": "2",
            "BATCH_SIZE": str(BATCH),
            "EXPECTED_GPUS": "0",
        }
        started.append(Job(folder, defaults | environment, size))
        return started[-1].start(*(at for at in range(size) if at not in late))

    yield start
    for job in started:
        for process in job.processes.values():
            if process.poll() is None:
                left = psutil.Process(process.pid)
                for each in (left, *left.children(recursive=True)):  # trainers outlive it
                    with suppress(psutil.Error):
                        each.kill()
            process.wait()


@pytest.fixture
def replica(supervisor: Path, tmp_path: Path) -> Iterator[Replica]:
    found = Replica(supervisor, tmp_path)
    yield found
    found.end()


@pytest.fixture
def step(store: Store, base: S3Address) -> Step:
    """The step `prepare_data` of a run, whose output is in the folder `out`."""
    return Step("prepare_data", "r1", Layout(base / "out"), store)


@pytest.fixture
def run_step(base: S3Address, capsys: pytest.CaptureFixture) -> RunStep:
    """Runs a step in this process; returns its exit code and what it printed."""

    def run(error: BaseException | None = None, output_uri: str = str(base)) -> tuple[int, str]:
        code = 0
        try:
            with step_of("prepare_data", "run-1", output_uri):
                print("worked")
                if error:
                    raise error
        except SystemExit as ended:
            code = int(ended.code or 0)
        return code, "".join(capsys.readouterr())

    return run


@pytest.fixture
def fake() -> Iterator[FakePipelines]:
    with FakePipelines() as fake:
        yield fake


@pytest.fixture
def laptop(
    fake: FakePipelines, s3: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The environment of a person: a back end, a store, and no cluster."""
    for name in (f"{VARIABLE}{name.upper()}" for name in PARAMETERS):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(ENDPOINT, fake.host)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.endpoint)


@pytest.fixture
def ci_job(laptop: None, s3: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of a job of a CI system: the keys of the store, images, and the command."""
    for path in s3.secret.iterdir():
        monkeypatch.setenv(path.name, path.read_text())
    for image in ("TOOLS", "TRAINER"):
        monkeypatch.setenv(f"KFP_TFJOB_{image}_IMAGE", f"registry.example/{image.lower()}:1")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")


@pytest.fixture
def package(tmp_path: Path) -> Path:
    path = tmp_path / "pipeline.yaml"
    path.write_text(COMPILED.read_text().replace(PLACEHOLDER, "registry.example"))
    return path


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Mounts small disks, each in a folder of its own."""
    mounted: list[Path] = []

    def make(size: int, *options: str) -> Path:
        folder = tmp_path / f"disk-{len(mounted)}"
        folder.mkdir()
        words = ["-t", "tmpfs", "-o", ",".join([f"size={size}", *options])]
        if subprocess.run(["mount", *words, "none", folder], capture_output=True).returncode:
            pytest.skip("only root may mount a small disk")
        mounted.append(folder)
        return folder

    yield make
    for folder in mounted:
        subprocess.run(["umount", "-l", folder], check=True)


@pytest.fixture
def world(request, tmp_path, base, monkeypatch):
    server, way = request.param
    server = request.getfixturevalue(server)
    with FaultProxy(server.endpoint, server.secret) as proxy:
        truth = Store(secret=SecretVolume(server.secret))
        if way == "proxied":
            for name in ("no_proxy", "NO_PROXY", "HTTP_PROXY"):
                monkeypatch.delenv(name, raising=False)
            monkeypatch.setenv("http_proxy", proxy.endpoint)
        endpoint = proxy.endpoint if way == "direct" else server.endpoint
        folder = tmp_path / "folder"
        folder.mkdir()
        yield World(proxy, truth, server.secret, endpoint, base, folder)
