"""Tasks in processes: order, errors, stops, and processes that are killed."""

import math
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

import psutil
import pytest

from kfp_tfjob.common.errors import DataError, Example, Problem, StepError
from kfp_tfjob.components.prepare_data import engine
from kfp_tfjob.components.prepare_data.executors import processes, worker_count
from kfp_tfjob.components.prepare_data.executors.executor import Context, Executor
from kfp_tfjob.components.prepare_data.executors.processes import Processes
from kfp_tfjob.components.prepare_data.source.readers.open_table import Part
from kfp_tfjob.components.step import Step
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.supervisor import cores as cores_module
from tests.environments import ROOT
from tests.problems import problem_of
from tests.unit.prepared_files import write_table
from tests.waiting import until

HERE = __name__
COMMON = "of all tasks"


def square(context: Context, common: str, item: int) -> list[int]:
    assert common == COMMON
    context.buckets.write(f"squares/{item}", b"%d" % item**2)
    return [item, os.getpid()]


def divide(context: Context, common: str, item: int) -> float:
    return 1 / item


def variable(context: Context, common: str, item: int) -> str | None:
    return os.environ.get("OF_THE_STEP")


def refuse(context: Context, common: str, item: int) -> None:
    if item == 3:
        raise DataError(Problem("no", received="3", fix="give 4"), Example("row 1"), notes=["odd"])


def die_once(context: Context, common: str, item: list) -> int:
    """Kill the first process, other than the test's own, that gets the item."""
    number, parent = item
    mark = f"dead/{number}"
    if os.getpid() != parent and not (Path(context.place) / mark).exists():
        context.buckets.write(mark, b"")
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def die(context: Context, common: str, item: int) -> None:
    if os.getpid() != item:
        os.kill(os.getpid(), signal.SIGKILL)


def write_long(context: Context, common: object, item: int | Part) -> None:
    number = item if isinstance(item, int) else item.number
    for i in range(6000):
        if item == 3 and i == 2:
            raise DataError("no")
        context.buckets.write(f"long/{number}-{i}", b"")
        (context.folder / f"{number}-{i}").write_bytes(b"")
        time.sleep(0.1)


def test_results_come_in_the_order_of_the_items(tmp_path: Path) -> None:
    executor = Processes(Context(str(tmp_path)), 2)
    found = list(executor.map(f"{HERE}:square", COMMON, range(20)))
    assert list(executor.map(f"{HERE}:square", COMMON, range(0))) == []
    executor.close()
    assert [number for number, _ in found] == list(range(20))
    assert os.getpid() not in {process for _, process in found}
    folder = Executor(Context(str(tmp_path))).context.buckets
    found = [int(folder.read(f"squares/{i}")) for i in range(20)]
    assert found == [i * i for i in range(20)]


def test_processes_have_the_environment_of_now_and_not_of_an_earlier_pool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for value in ("first", "second"):
        monkeypatch.setenv("OF_THE_STEP", value)
        executor = Processes(Context(str(tmp_path)), 1)
        found.append(set(executor.map(f"{HERE}:variable", COMMON, range(3))))
        executor.close()
    assert found == [{"first"}, {"second"}]


def test_an_error_of_a_task_reaches_the_step_as_it_is(tmp_path: Path) -> None:
    executor = Processes(Context(str(tmp_path)), 2)
    with pytest.raises(DataError) as raised:
        list(executor.map(f"{HERE}:refuse", COMMON, range(6)))
    executor.close()
    assert raised.value.problems == (Problem("no", received="3", fix="give 4"), Example("row 1"))
    assert raised.value.notes == ("odd",)


def test_a_bug_in_a_task_stays_a_bug(tmp_path: Path) -> None:
    executor = Processes(Context(str(tmp_path)), 2)
    with pytest.raises(RuntimeError) as raised:
        list(executor.map(f"{HERE}:divide", COMMON, [1, 0]))
    executor.close()
    assert raised.type is RuntimeError  # and no StepError, which would blame the user
    trace = "".join(traceback.format_exception(raised.value))
    assert "ZeroDivisionError" in trace and "in divide" in trace


def test_a_fault_ends_the_tasks_beside_it_and_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    place = tmp_path / "buckets"
    place.mkdir()
    executor = Processes(Context(str(place)), 3)
    start = time.monotonic()
    with pytest.raises(DataError, match="no"):
        for _ in executor.map(f"{HERE}:write_long", COMMON, [3, 1, 2]):
            pass
    executor.close()
    written = len(list(place.rglob("*")))
    assert time.monotonic() - start < 200  # each of them would take ten minutes
    time.sleep(0.5)
    assert len(list(place.rglob("*"))) == written
    assert [path.name for path in tmp_path.glob("prepare-data-*")] == []


def test_a_killed_process_costs_its_tasks_only(tmp_path: Path) -> None:
    executor = Processes(Context(str(tmp_path)), 3)
    # Each dies once, perhaps one after the other: the third loss in a row would end the step.
    items = [[i, os.getpid()] for i in range(2)]
    assert list(executor.map(f"{HERE}:die_once", COMMON, items)) == [0, 1]
    executor.close()


def test_processes_that_die_again_and_again_end_the_step(tmp_path: Path) -> None:
    executor = Processes(Context(str(tmp_path)), 2)
    with pytest.raises(StepError, match="killed repeatedly.*pod.prepare.memory"):
        list(executor.map(f"{HERE}:die", COMMON, [os.getpid()] * 4))
    executor.close()


@pytest.mark.parametrize(
    ("allowed", "left", "parts", "cores", "workers", "limit"),
    [
        (8, math.inf, 100, 0, 8, "this container may use 8 cores"),
        (8, math.inf, 100, 3, 3, "pod.prepare.cpu requests 3 cores"),
        (2, math.inf, 100, 7, 2, "this container may use 2 cores"),
        (8, math.inf, 5, 0, 5, "the source has 5 parts"),
        (8, 2 << 30, 100, 0, 5, "2.1 GB of memory are left, and each worker gets 419.4 MB"),
        (8, 1 << 20, 100, 0, 1, "1.0 MB of memory are left, and each worker gets 419.4 MB"),
    ],
)
def test_the_workers_are_as_many_as_there_are_cores_memory_and_work_for(
    monkeypatch: pytest.MonkeyPatch,
    allowed: int,
    left: float,
    parts: int,
    cores: int,
    workers: int,
    limit: str,
) -> None:
    monkeypatch.setattr(worker_count, "available_cores", lambda shared: allowed)
    monkeypatch.setattr(worker_count, "memory_left", lambda: left)
    assert worker_count.worker_count(parts, cores) == worker_count.WorkerCount(workers, limit)


@pytest.mark.parametrize(("cores", "host"), [("2", "10.96.0.1"), ("7", "10.96.0.1"), ("3", "")])
def test_the_workers_are_as_many_as_the_pod_requests(
    step: Step,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    cores: str,
    host: str,
) -> None:
    """In a pod without a limit of cores, and on a machine with more of them."""
    counts: list[int] = []
    create = Processes.__init__

    def counted(executor: Processes, context: Context, count: int) -> None:
        counts.append(count)
        create(executor, context, count)

    monkeypatch.setattr(Processes, "__init__", counted)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setattr(worker_count, "memory_left", lambda: math.inf)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    monkeypatch.setattr(cores_module, "_limits", lambda *_: [])
    table = write_table(tmp_path / "t.csv", {"a": range(90), "y": ["u", "v", "w"] * 30})
    caplog.set_level("INFO")
    engine.run(step, str(table), "y", {}, part=1, cores=int(cores))
    assert counts == [int(cores)]
    assert f"{cores} workers, because pod.prepare.cpu requests {cores} cores" in caplog.messages


_STEP = """
import sys
from kfp_tfjob.components.prepare_data import engine, scan
from kfp_tfjob.components.step import Step
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.store import Store

if __name__ == "__main__":
    out, table = sys.argv[1:]
    scan._TASK = "tests.local.test_prepare_executors:write_long"
    step = Step("prepare_data", "r", Layout.parse(out), Store())
    engine.run(step, table, "y", {}, workers=2, part=99)
"""


def test_sigterm_ends_the_step_soon_and_leaves_no_folder(base: S3Address, tmp_path: Path) -> None:
    (tmp_path / "step.py").write_text(_STEP)
    table = write_table(tmp_path / "t.csv", {"a": range(90), "y": ["u", "v", "w"] * 30})
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    line = [sys.executable, str(tmp_path / "step.py"), str(base), str(table)]
    step = subprocess.Popen(
        line, env=os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(scratch)}
    )
    try:
        until(lambda: list(scratch.glob("prepare-data-*/long/*-3")) or step.poll() is not None)
        children = psutil.Process(step.pid).children(recursive=True)
        step.send_signal(signal.SIGTERM)
        assert step.wait(200) == 128 + signal.SIGTERM
    finally:
        step.kill()
    assert not list(scratch.glob("prepare-data-*"))
    assert children
    until(lambda: not any(child.is_running() for child in children))


def test_own_code_is_loaded_once_in_each_process(step: Step, tmp_path: Path) -> None:
    loads = tmp_path / "loads"
    (tmp_path / "in").mkdir()
    for name in "abcdef":
        (tmp_path / "in" / f"{name}.bin").write_bytes(b"x" * 100)
    (tmp_path / "mine.py").write_text(
        "import os\nimport pyarrow as pa\n"
        f"open({str(loads)!r}, 'a').write(f'{{os.getpid()}}\\n')\n"
        "def read(stream, name):\n"
        "    values = [float(ord(name[0]) + i) for i in range(60)]\n"
        "    yield pa.RecordBatch.from_pydict({'a': values, 'y': ['u', 'v', 'w'] * 20})\n"
    )
    given = {"reader": f"{tmp_path}/mine.py:read"}
    done = engine.run(step, str(tmp_path / "in"), "y", given, part=100, workers=2)
    assert sum(done.rows.values()) == 360
    processes = loads.read_text().split()
    assert len(processes) == len(set(processes)) and {*processes} - {str(os.getpid())}


def cannot_begin() -> None:
    raise RuntimeError("no")


def test_processes_that_cannot_start_end_the_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_begin", cannot_begin)
    executor = Processes(Context(str(tmp_path)), 2)
    problem = problem_of(list, executor.map(f"{HERE}:square", COMMON, range(9)), kind=StepError)
    executor.close()
    assert problem.received.startswith("BrokenProcessPool")
    assert "pod.prepare.cpu" in problem.fix
