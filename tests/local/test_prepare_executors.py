"""Tasks in processes: order, errors, and processes that are killed."""

import os
import signal
import tempfile
import time
from pathlib import Path

import pytest

from kfp_tfjob.common.errors import DataError, Example, Problem, StepError
from kfp_tfjob.components.prepare_data.executors import processes
from kfp_tfjob.components.prepare_data.executors.executor import Context, Executor
from kfp_tfjob.components.prepare_data.executors.processes import Processes
from kfp_tfjob.components.step import Step
from kfp_tfjob.storage.address import S3Address
from tests.environments import run_python
from tests.problems import problem_of
from tests.unit.prepared_files import write_table

HERE = __name__
COMMON = "of all tasks"


def square(context: Context, common: str, item: int) -> list[int]:
    assert common == COMMON
    context.buckets.write(f"squares/{item}", b"%d" % item**2)
    return [item, os.getpid()]


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


def write_long(context: Context, common: str, item: int) -> None:
    for i in range(6000):
        if item == 3 and i == 2:
            raise DataError("no")
        context.buckets.write(f"long/{item}-{i}", b"")
        (context.folder / f"{i}").write_bytes(b"")
        time.sleep(0.1)


@pytest.mark.parametrize("count", [1, 3])
def test_results_come_in_the_order_of_the_items(tmp_path: Path, count: int) -> None:
    executor = Processes(Context(str(tmp_path)), count)
    found = list(executor.map(f"{HERE}:square", COMMON, range(20)))
    executor.close()
    assert [number for number, _ in found] == list(range(20))
    assert (len({process for _, process in found}) > 1) == (count > 1)
    folder = Executor(Context(str(tmp_path))).context.buckets
    found = [int(folder.read(f"squares/{i}")) for i in range(20)]
    assert found == [i * i for i in range(20)]


def test_processes_have_the_environment_of_now_and_not_of_an_earlier_pool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for value in ("first", "second"):
        monkeypatch.setenv("OF_THE_STEP", value)
        executor = Processes(Context(str(tmp_path)), 2)
        found.append(set(executor.map(f"{HERE}:variable", COMMON, range(6))))
        executor.close()
    assert found == [{"first"}, {"second"}]


@pytest.mark.parametrize("count", [1, 2])
def test_an_error_of_a_task_reaches_the_step_as_it_is(tmp_path: Path, count: int) -> None:
    executor = Processes(Context(str(tmp_path)), count)
    with pytest.raises(DataError) as raised:
        list(executor.map(f"{HERE}:refuse", COMMON, range(6)))
    executor.close()
    assert raised.value.problems == (Problem("no", received="3", fix="give 4"), Example("row 1"))
    assert raised.value.notes == ("odd",)


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


def test_processes_fit_the_cores_the_memory_and_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "available_cores", lambda shared: 8)
    left = {"bytes": float("inf")}
    monkeypatch.setattr(processes, "memory_left", lambda: left["bytes"])
    assert [processes.count_for(parts) for parts in (1, 5, 100)] == [1, 5, 8]
    left["bytes"] = 2 << 30
    assert processes.count_for(100) == 5
    left["bytes"] = 1 << 20
    assert processes.count_for(100) == 1


_STEP = """
import os
import sys
import threading
from kfp_tfjob.components.prepare_data import engine
from kfp_tfjob.components.prepare_data.executors.executor import Context
from kfp_tfjob.components.prepare_data.executors.processes import Processes, spare

if __name__ == "__main__":
    with spare(2):
        executor = Processes(Context(sys.argv[1]), 2)
        print(executor._pool is not None)  # before any task
        items = [[i, os.getpid()] for i in range(2)]
        print(list(executor.map("tests.local.test_prepare_executors:die_once", "", items)))
        executor.close()
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    with spare(2):
        print(Processes(Context(sys.argv[1]), 2)._pool is not None)
"""


def test_the_first_processes_are_forks_unless_a_thread_could_hold_a_lock(tmp_path: Path) -> None:
    (tmp_path / "step.py").write_text(_STEP)
    done = run_python(tmp_path / "step.py", tmp_path, timeout=180)
    assert done.stdout.split("\n") == ["True", "[0, 1]", "False", ""], done.stderr
    # Processes that were killed were replaced, by the server.
    assert "process died" in done.stderr


_COUNT = """
import os
import sys
from kfp_tfjob.components.prepare_data import engine, scan
from kfp_tfjob.components.prepare_data.executors import processes
from kfp_tfjob.components.step import Step
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.store import Store

def counted(source, label, options, executor, *sizes):
    print(len(executor._pool._processes))
    sys.exit()

if __name__ == "__main__":
    scan.read, processes.memory_left = counted, lambda: float("inf")
    os.sched_getaffinity = lambda _: set(range(64))
    step = Step("prepare_data", "r", Layout.parse(sys.argv[1]), Store())
    engine.run(step, sys.argv[2], "y", {}, part=1, cores=int(sys.argv[3]))
"""


@pytest.mark.parametrize(("cores", "host"), [("2", "10.96.0.1"), ("7", "10.96.0.1"), ("3", "")])
def test_the_forks_are_as_many_as_the_pod_requests(
    step: Step, base: S3Address, tmp_path: Path, cores: str, host: str
) -> None:
    """In a pod without a limit of cores, and on a machine with more of them."""
    (tmp_path / "count.py").write_text(_COUNT)
    table = write_table(tmp_path / "t.csv", {"a": range(90), "y": ["u", "v", "w"] * 30})
    given = (tmp_path / "count.py", base, table, cores)
    found = run_python(*given, timeout=180, KUBERNETES_SERVICE_HOST=host)
    assert found.stdout.split() == [cores], found.stderr


def cannot_begin(environment: dict[str, str]) -> None:
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
