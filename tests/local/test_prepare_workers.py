"""Tasks on workers over mutual TLS: order, errors, losses, deadlines, and who is not let in."""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from kfp_tfjob.components.prepare_data import engine
from kfp_tfjob.components.prepare_data.executors import local_workers
from kfp_tfjob.components.prepare_data.executors.certificate import Certificate
from kfp_tfjob.components.prepare_data.executors.distributed import Distributed
from kfp_tfjob.components.prepare_data.executors.executor import Context, Recipe
from kfp_tfjob.components.prepare_data.executors.inline import Inline
from kfp_tfjob.components.prepare_data.executors.local_workers import LocalWorkers
from kfp_tfjob.components.step import Step
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.errors import DataError, Example, Problem, StepError
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.store import Store
from tests.local.test_prepare_parts import CASES, digests

HERE = __name__


def square(context: Context, item: int) -> list[int]:
    context.exchange.write_plain(f"squares/{item}", item * item)
    return [item, os.getpid()]


def refuse(context: Context, item: int) -> None:
    if item == 3:
        raise DataError(Problem("no", received="3", fix="give 4"), Example("row 1"), notes=["odd"])


def once(context: Context, item: list) -> int:
    """Die, or hang, in the first process that gets the item."""
    number, how = item
    if f"{how}/{number}" not in context.exchange.names(how):
        context.exchange.write(f"{how}/{number}", b"")
        if how == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)
    return number


def die(context: Context, item: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("exchange")


@pytest.fixture(scope="module")
def executor(folder: Path) -> Iterator[Distributed]:
    found = Distributed(Recipe(str(folder)), LocalWorkers(2))
    yield found
    workers = found._workers.processes
    found.close()
    assert workers and all(process.returncode is not None for process in workers)


def test_results_come_in_the_order_of_the_items(executor: Distributed, folder: Path) -> None:
    found = list(executor.map(f"{HERE}:square", range(200)))
    assert [number for number, _ in found] == list(range(200))
    assert len({process for _, process in found}) == 2
    exchange = Inline(Recipe(str(folder))).context.exchange
    assert [exchange.read_plain(f"squares/{i}") for i in range(200)] == [i * i for i in range(200)]
    assert list(executor.map(f"{HERE}:square", [])) == []


def test_an_error_of_a_task_reaches_the_step_as_it_is(executor: Distributed) -> None:
    with pytest.raises(DataError) as raised:
        list(executor.map(f"{HERE}:refuse", range(100)))
    assert raised.value.problems == (
        Problem("no", received="3", fix="give 4"),
        Example("row 1"),
    )
    assert raised.value.notes == ("odd",)


def test_a_task_that_hangs_runs_again_elsewhere(executor: Distributed, monkeypatch) -> None:
    monkeypatch.setattr(executor, "_task_seconds", 1.0)
    assert list(executor.map(f"{HERE}:once", [[7, "hang"]])) == [7]


def test_a_stranger_is_refused(executor: Distributed) -> None:
    from distributed import Security
    from distributed.comm import connect

    assert list(executor.map(f"{HERE}:square", [1]))
    scheduler = executor._client.scheduler.address
    host = scheduler.removeprefix("tls://")
    workers = list(executor._connected.names)
    ours = Certificate.read(Path(executor._workers._folder.name))

    async def reaches(address: str, security: Security, seconds: float = 1) -> bool:
        arguments = security.get_connection_args("client")
        try:
            comm = await connect(address, timeout=seconds, **arguments)
            await comm.write({"op": "identity", "reply": True})
            return (await asyncio.wait_for(comm.read(), 100 * seconds))["type"] in (
                "Scheduler",
                "Reasoned",
            )
        except OSError:
            return False

    stranger = Certificate.new()
    for address in (scheduler, *workers):
        assert asyncio.run(reaches(address, ours.security(), 100))
        assert not asyncio.run(reaches(address, stranger.security()))
    # Without TLS, and with a certificate of its own that trusts ours.
    plain = Security(require_encryption=False)
    assert not asyncio.run(reaches(f"tcp://{host}", plain))
    half = Certificate(stranger.certificate, stranger.key).security()
    half.tls_ca_file = ours.certificate
    assert not asyncio.run(reaches(scheduler, half))


def test_workers_with_other_code_end_the_step(tmp_path: Path, monkeypatch, capfd) -> None:
    monkeypatch.setattr(local_workers, "code_version", lambda: "0.1.0, code 0")
    executor = Distributed(Recipe(str(tmp_path)), LocalWorkers(1))
    with pytest.raises(StepError, match="all workers of prepare_data have ended.*exit codes 2"):
        list(executor.map(f"{HERE}:square", [1]))
    executor.close()
    assert "run another version than its step" in capfd.readouterr().out


def test_results_may_be_dropped_after_the_end(tmp_path: Path) -> None:
    executor = Distributed(Recipe(str(tmp_path)), LocalWorkers(1))
    results = executor.map(f"{HERE}:square", range(9))
    next(results)
    executor.close()
    results.close()


def _step(folder: str) -> None:
    """Be a step that waits for a task that hangs."""
    executor = Distributed(Recipe(folder), LocalWorkers(2))
    print(json.dumps([one[1] for one in executor.map(f"{HERE}:square", range(20))]), flush=True)
    print([process.pid for process in executor._workers.processes], flush=True)
    list(executor.map(f"{HERE}:once", [[0, "hang"], [1, "hang"]]))


@pytest.mark.slow
def test_a_killed_process_costs_its_tasks_only(executor: Distributed) -> None:
    items = [[i, "die"] for i in range(4)]
    assert list(executor.map(f"{HERE}:once", items)) == [0, 1, 2, 3]


@pytest.mark.slow
def test_workers_end_with_a_step_that_is_killed(tmp_path: Path) -> None:
    program = f"from {HERE} import _step; _step({str(tmp_path)!r})"
    step = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    found = {*json.loads(step.stdout.readline()), *json.loads(step.stdout.readline())}
    assert len(found) == 4
    step.kill()
    step.wait()

    def alive() -> set[int]:
        return {one for one in found if Path(f"/proc/{one}").exists()}

    deadline = time.monotonic() + 120
    while alive() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not alive()


@pytest.mark.slow
def test_a_task_that_kills_every_worker_ends_the_step(tmp_path: Path) -> None:
    executor = Distributed(Recipe(str(tmp_path)), LocalWorkers(3))
    with pytest.raises(StepError, match="6 workers died or hung.*raise pod.prepare.memory"):
        list(executor.map(f"{HERE}:die", [1]))
    executor.close()


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 7])
def test_more_workers_give_the_same_results(tmp_path: Path, count: int) -> None:
    executor = Distributed(Recipe(str(tmp_path)), LocalWorkers(count))
    found = [number for number, _ in executor.map(f"{HERE}:square", range(50))]
    executor.close()
    assert found == list(range(50))


def _kill_some(workers: LocalWorkers, stop: threading.Event, seed: int, killed: list[int]) -> None:
    """Kill a process that does tasks, now and then."""
    import psutil

    generator = random.Random(seed)
    while not stop.wait(generator.uniform(0.3, 1.2)):
        running = []
        for process in workers.processes:
            with suppress(psutil.NoSuchProcess):  # the step has ended
                running += psutil.Process(process.pid).children()
        if len(running) > 1:
            child = generator.choice(running)
            child.kill()
            killed.append(child.pid)


@pytest.mark.slow
@pytest.mark.parametrize(("count", "kills"), [(1, False), (2, False), (7, False), (3, True)])
@pytest.mark.parametrize("name", ["numbers", "people"])
def test_workers_write_the_same_bytes(
    store: Store, base: S3Address, tmp_path: Path, name: str, count: int, kills: bool
) -> None:
    make, write, file, given = CASES[name]
    write(make(), tmp_path / file)
    data = (str(tmp_path), "y", given)
    alone = Step("prepare_data", "r1", Layout(base / "alone"), store)
    expected = digests(store, engine.run(alone, *data).dataset_uri)
    started: list[LocalWorkers] = []

    def workers(recipe: Recipe, opened: Store) -> Distributed:
        started.append(LocalWorkers(count))
        return Distributed(recipe, started[0], opened)

    stop, killed = threading.Event(), []
    step = Step("prepare_data", "r1", Layout(base / "workers"), store)
    part = (tmp_path / file).stat().st_size // 23

    def kill() -> None:
        while not started or not started[0].processes:
            time.sleep(0.1)
        _kill_some(started[0], stop, 7, killed)

    if kills:
        threading.Thread(target=kill, daemon=True).start()
    done = engine.run(step, *data, block=1 << 12, part=part, workers=workers)
    stop.set()
    assert digests(store, done.dataset_uri) == expected
    assert bool(killed) == kills
