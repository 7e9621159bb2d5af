"""Tasks on a real Dask cluster: order, errors, lost workers, other code, TLS, the same bytes."""

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import dask
import pytest

from kfp_tfjob.common.errors import ConfigurationError, DataError, Example, Problem, StepError
from kfp_tfjob.components.prepare_data import engine
from kfp_tfjob.components.prepare_data.executors import distributed
from kfp_tfjob.components.prepare_data.executors.distributed import Distributed, code_version
from kfp_tfjob.components.prepare_data.executors.executor import Context, Executor
from kfp_tfjob.components.step import Step
from kfp_tfjob.pipelines.local.s3_server import Server
from kfp_tfjob.storage.credentials import MOUNT_VARIABLE
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.store import Store
from tests.cluster.pki import Authority
from tests.local.dask_cluster import DaskCluster, dask_cluster
from tests.local.prepare_attempts import digests
from tests.local.test_prepare_executors import COMMON
from tests.local.test_prepare_parts import CASES
from tests.problems import problem_of, problems_of

HERE = __name__
TASKS = "tests.local.test_prepare_executors"
SLOW = pytest.param("numbers", True, marks=pytest.mark.slow)


def die(context: Context, common: None, item: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[DaskCluster]:
    """A cluster, to which the first test adds two workers."""
    with dask_cluster(tmp_path_factory.mktemp("dask")) as found:
        yield found


def two_workers(cluster: DaskCluster, s3: Server) -> None:
    while len(cluster.workers) < 2:
        cluster.add(**{MOUNT_VARIABLE: str(s3.secret)})


def wait_for(executor: Distributed, workers: int) -> None:
    executor._client.wait_for_workers(workers, timeout=120)


def test_results_come_in_the_order_of_the_items(
    cluster: DaskCluster, s3: Server, tmp_path: Path, monkeypatch
) -> None:
    executor = Distributed(Context(str(tmp_path)), cluster.address)
    with monkeypatch.context() as impatient, pytest.raises(ConfigurationError, match="no workers"):
        impatient.setattr(distributed, "_ALONE_SECONDS", 0)
        list(executor.map(f"{TASKS}:square", COMMON, range(9)))
    two_workers(cluster, s3)
    wait_for(executor, 2)
    found = list(executor.map(f"{TASKS}:square", COMMON, range(200)))
    assert [number for number, _ in found] == list(range(200))
    assert {process for _, process in found} == {worker.pid for worker in cluster.workers}
    folder = Executor(Context(str(tmp_path))).context.buckets
    found = [int(folder.read(f"squares/{i}")) for i in range(200)]
    assert found == [i * i for i in range(200)]
    assert list(executor.map(f"{TASKS}:square", COMMON, [])) == []
    with pytest.raises(DataError) as raised:
        list(executor.map(f"{TASKS}:refuse", COMMON, range(100)))
    assert raised.value.problems == (Problem("no", received="3", fix="give 4"), Example("row 1"))
    assert raised.value.notes == ("odd",)
    results = executor.map(f"{TASKS}:square", COMMON, range(9))
    next(results)
    executor.close()
    results.close()


def test_an_answer_that_takes_longer_than_a_look_arrives(
    cluster: DaskCluster, s3: Server, tmp_path: Path, monkeypatch
) -> None:
    two_workers(cluster, s3)
    executor = Distributed(Context(str(tmp_path)), cluster.address)
    wait_for(executor, 2)
    monkeypatch.setattr(distributed, "_LOOK_SECONDS", 0.003)
    squares = [number for number, _ in executor.map(f"{TASKS}:square", COMMON, range(100))]
    executor.close()
    assert squares == list(range(100))


@pytest.mark.parametrize(("name", "kill"), [("people", True), SLOW])
def test_the_dataset_has_the_bytes_of_one_process(
    cluster: DaskCluster, s3: Server, store: Store, base, tmp_path: Path, monkeypatch, name, kill
) -> None:
    two_workers(cluster, s3)  # one may have been killed
    make, write, file, given = CASES[name]
    write(make(), tmp_path / file)
    part = (tmp_path / file).stat().st_size // 23

    def prepare(out: str, **how) -> dict[str, str]:
        step = Step("prepare_data", "r1", Layout(base / out), store)
        options = given | {"dask": how.pop("dask", "")}
        engine.run(step, str(tmp_path), "y", options, block=1 << 12, part=part, **how)
        return digests(store, base / out)

    expected, submit, submitted = prepare("alone", workers=1), Distributed._submit, []

    def submit_and_kill(self, *task):
        submitted.append(submit(self, *task))
        if len(submitted) == 10:
            cluster.workers[0].kill()  # 23 tasks are handed over before the first answer is read
        return submitted[-1]

    if kill:
        monkeypatch.setattr(Distributed, "_submit", submit_and_kill)
    assert prepare("dask", dask=cluster.address) == expected
    if kill:
        assert cluster.workers.pop(0).wait() == -signal.SIGKILL and len(submitted) > 23


@pytest.mark.slow
def test_a_task_that_kills_every_worker_ends_the_step(tmp_path: Path) -> None:
    with dask_cluster(tmp_path) as cluster:
        cluster.add("--nanny", "--nworkers", "2")
        executor = Distributed(Context(str(tmp_path)), cluster.address)
        with pytest.raises(StepError, match="4 workers died.*at least 400 MiB"):
            list(executor.map(f"{HERE}:die", None, [1]))
        executor.close()


def test_a_scheduler_that_is_lost_or_never_there_ends_the_step(
    cluster: DaskCluster, tmp_path: Path, monkeypatch
) -> None:
    """The last test with this cluster: it is lost."""
    if not cluster.workers:
        cluster.add()
    executor = Distributed(Context(str(tmp_path)), cluster.address)
    wait_for(executor, 1)
    monkeypatch.setattr(distributed, "_CONNECT_SECONDS", 2)
    monkeypatch.setattr(distributed, "_ALONE_SECONDS", 0)
    results = executor.map(f"{TASKS}:square", COMMON, range(500))
    next(results)
    cluster.scheduler.kill()
    with pytest.raises(StepError, match="lost"):
        list(results)
    executor.close()
    problem = problem_of(Distributed, Context(str(tmp_path)), cluster.address)
    assert problem.path == "data_options.dask" and cluster.address in problem.expected


@pytest.mark.slow
def test_a_worker_with_other_code_is_refused(tmp_path: Path) -> None:
    none, other = tmp_path / "none", tmp_path / "other"
    (none / "kfp_tfjob").mkdir(parents=True)
    (none / "kfp_tfjob/__init__.py").touch()
    other.mkdir()
    patch = "import kfp_tfjob.options.container_images as found\nfound.VERSION = '0.0.1'\n"
    (other / "sitecustomize.py").write_text(patch)
    with dask_cluster(tmp_path) as cluster:
        executor = Distributed(Context(str(tmp_path)), cluster.address)  # before the workers

        def refused(run: Callable[[], object], received: str) -> None:
            wait_for(executor, 1)
            problem = problem_of(run)
            assert received in problem.received and problem.expected == code_version()
            assert problem.path == "data_options.dask"

        def connect() -> None:
            Distributed(Context(str(tmp_path)), cluster.address)

        worker = cluster.add(PYTHONPATH=str(none))
        refused(connect, "No module named 'kfp_tfjob")
        worker.kill()
        while executor._threads():
            time.sleep(0.05)
        cluster.add(PYTHONPATH=str(other))
        refused(connect, "0.0.1, code ")
        refused(lambda: list(executor.map(f"{TASKS}:square", COMMON, [1])), "0.0.1, code ")
        executor.close()


@pytest.mark.slow
def test_tls_is_set_by_the_variables_of_dask(s3: Server, tmp_path: Path, monkeypatch) -> None:
    secret, authority = shutil.copytree(s3.secret, tmp_path / "secret"), Authority(tmp_path / "pki")
    certificate, key = authority.issue("dask", "/CN=dask")
    files = ["--tls-ca-file", str(authority.certificate), "--tls-cert", str(certificate)]
    options = ("--protocol", "tls", *files, "--tls-key", str(key))
    as_it_was = {f"distributed.comm.tls.{name}": None for name in ("ca-file", "client")}
    with dask_cluster(tmp_path, *options) as cluster, dask.config.set(as_it_was):
        cluster.add()
        monkeypatch.setenv(MOUNT_VARIABLE, str(secret))
        monkeypatch.setattr(distributed, "_CONNECT_SECONDS", 5)
        assert cluster.address.startswith("tls://")
        problem, *_ = problems_of(Distributed, Context(str(tmp_path)), cluster.address)
        assert problem.path == "data_options.dask"
        tls = "DASK_DISTRIBUTED__COMM__TLS__"
        (secret / f"{tls}CA_FILE").write_text(str(authority.certificate))
        (secret / f"{tls}CLIENT__CERT").write_text(certificate.read_text())
        (secret / f"{tls}CLIENT__KEY").write_text(str(key))
        monkeypatch.setattr(distributed, "_CONNECT_SECONDS", 60)
        executor = Distributed(Context(str(tmp_path)), cluster.address)
        assert [number for number, _ in executor.map(f"{TASKS}:square", COMMON, [5])] == [5]
        executor.close()
