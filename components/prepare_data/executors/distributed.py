"""Runs tasks on a Dask cluster that the user has, as futures.

Nothing else of Dask is used. What tasks get and return is small: rows are in bucket files in the
store. Dask runs the tasks of a lost worker again on another one. Called by prepare_data's engine if
`data_options.dask` is set.
"""

from __future__ import annotations

import importlib
import pickle
import platform
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError
from functools import cache
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from kfp_tfjob.common.errors import ConfigurationError, Problem, StepError
from kfp_tfjob.common.formatting import counted
from kfp_tfjob.options.container_images import VERSION
from kfp_tfjob.storage.credentials import SecretVolume

from ..bucket_folder import damaged
from .executor import Context, Executor, answered, result_of, run_task

if TYPE_CHECKING:
    from distributed import Client, Future

_CONNECT_SECONDS = 30.0
_ALONE_SECONDS = 600.0  # without any worker; an adaptive cluster starts them for the first tasks
_LOOK_SECONDS = 1.0
# A task of prepare_data runs code of these.
_PACKAGES = ("common", "components", "features", "options", "storage", "user_code")
_LIBRARIES = ("distributed", "numpy", "pyarrow")

_one_at_a_time = threading.Lock()
# Of a worker: its context, and the last value that tasks have in common, by name and SHA-256.
_context: Context | None = None
_common: tuple[tuple[str, str], Any] = ("", ""), None


class Distributed(Executor):
    """Runs tasks on the workers of a Dask cluster, given the address of its scheduler.

    Raises:
        ConfigurationError: The scheduler does not respond, or a worker has other code.
    """

    def __init__(self, context: Context, address: str) -> None:
        super().__init__(context)
        self._address = address
        self._client = _connect(address)

    def map(self, task: str, common: Any, items: Sequence[Any]) -> Iterator[Any]:
        """Run a task for each item, as in `Executor.map`."""
        shared = self._share(common)
        waiting = deque(self._submit(task, shared, item) for item in items)
        try:
            while waiting:
                answer = self._answer(waiting[0], task)
                waiting.popleft()
                if isinstance(answer, MemoryError):
                    raise _short_of_memory(answer) from answer
                yield result_of(answer)
        finally:
            if waiting and self._client.status == "running":  # it may be closed before this
                self._client.cancel(list(waiting), force=True)

    def close(self) -> None:
        """Leave the cluster, and remove the local folder."""
        self._client.close()
        super().close()

    def _share(self, common: Any) -> tuple[str, str]:
        """Write what all tasks have in common; return its name and its SHA-256.

        The scheduler would keep a copy for each task. The digest travels with the task, so write
        access to the store alone does not let anyone replace what a worker unpickles.
        """
        body, name = pickle.dumps(common), f"common-{uuid4().hex}"
        self.context.buckets.write(name, body)
        return name, sha256(body).hexdigest()

    def _submit(self, task: str, common: tuple[str, str], item: Any) -> Future:
        where = (self.context.place, self.context.endpoint, self.context.region)
        arguments = (code_version(), where, task, common, item)
        key = f"{task.rpartition(':')[2]}-{uuid4().hex}"
        return self._client.submit(remote_task, *arguments, key=key, pure=False)

    def _answer(self, future: Future, task: str) -> Any:
        """Wait for a task and return its answer.

        Raises:
            StepError: The task was lost too often, or the cluster is gone, lacks workers, or runs
                other code.
        """
        from distributed import KilledWorker

        is_done = threading.Event()
        # `result(timeout=...)` would be wrong: a call that times out while the answer is on its way
        # cancels that transfer, also for the next call, which has joined it.
        future.add_done_callback(lambda _: is_done.set())
        last_seen = time.monotonic()
        while not is_done.wait(_LOOK_SECONDS):
            if self._threads():
                last_seen = time.monotonic()
            elif time.monotonic() - last_seen > _ALONE_SECONDS:
                raise _problem(
                    "the Dask cluster has no workers",
                    f"none at {self._address} for {_ALONE_SECONDS:g} s",
                    "at least one worker",
                    "start workers, or find out why they are not running",
                )
        try:
            return future.result()
        except KilledWorker as error:
            raise StepError(
                Problem(
                    f"{counted(error.allowed_failures + 1, 'worker')} died in the same task {task}",
                    received=f"task {error.task}",
                    expected=f"at most {counted(error.allowed_failures, 'lost worker')} for a task",
                    fix="read the workers' logs, give each process at least 400 MiB, and retry the"
                    " run",
                )
            ) from error
        except (OSError, CancelledError) as error:
            raise self._lost(error) from error
        except Exception as error:  # a task answers with its own errors: Dask cannot load it
            raise _refused(f"{type(error).__name__}: {error}") from error

    def _threads(self) -> int:
        """Return the number of threads of all workers; 0 if the cluster has lost its workers.

        Raises:
            StepError: The scheduler is gone.
        """
        try:
            workers: Any = self._client.nthreads()
            return sum(workers.values())
        except OSError as error:
            raise self._lost(error) from error

    def _lost(self, error: BaseException) -> StepError:
        return StepError(
            Problem(
                "the connection to the Dask scheduler is lost",
                received=f"{type(error).__name__}: {error}",
                expected=f"a scheduler at {self._address} until the dataset is complete",
                fix="find out why the scheduler ended, then retry the run",
            )
        )


@cache
def code_version() -> str:
    """Return the version of the code that runs here, to the last byte: a tag of an image may move.

    Returns:
        For example, `0.3.0, code 0f3a5b7c9d1e, Python 3.11, numpy 2.4.1`.
    """
    digest = sha256()
    for package in _PACKAGES:
        (folder,) = importlib.import_module(f"kfp_tfjob.{package}").__path__
        for path in sorted(Path(folder).rglob("*.py")):
            name = f"{package}/{path.relative_to(folder).as_posix()}"
            digest.update(f"{name}\0".encode() + sha256(path.read_bytes()).digest())
    python = ".".join(platform.python_version_tuple()[:2])
    libraries = ", ".join(f"{name} {version(name)}" for name in _LIBRARIES)
    return f"{VERSION}, code {digest.hexdigest()[:12]}, Python {python}, {libraries}"


def remote_task(
    version: str, where: tuple[str, str, str], task: str, common: tuple[str, str], item: Any
) -> Any:
    """Run a task on a worker and return its answer; an error if this worker has other code.

    `where` is the place of the bucket files, and the endpoint and the region of the store; `common`
    is what `Distributed._share` returns.
    """
    if version != code_version():
        return _refused(code_version(), version)
    # A worker may have several threads. A context has one folder and one cache, and the code of a
    # reader of the user's own is imported for the whole process.
    with _one_at_a_time:
        return answered(lambda: _run(where, task, common, item))


def _run(where: tuple[str, str, str], task: str, common: tuple[str, str], item: Any) -> Any:
    global _common, _context
    context = Context(*where)
    if _context and _context != context:
        _context.close()  # of another run
        _context = None
    _context = _context or context
    if _common[0] != common:
        name, digest = common
        body = _context.buckets.read(name)
        if sha256(body).hexdigest() != digest:
            raise damaged(name)
        _common = common, pickle.loads(body)
    return run_task(_context, task, _common[1], item)


def _connect(address: str) -> Client:
    """Return a client of a scheduler whose workers have this process's code.

    Raises:
        ConfigurationError: The scheduler does not respond, or a worker has other code.
    """
    from dask import config
    from distributed import Client

    secret = SecretVolume.from_environment().folder.glob("DASK_*")
    variables = {path.name: path.read_text().strip() for path in secret}
    config.update(config.config, config.collect_env(variables))
    try:
        client = Client(
            address, timeout=_CONNECT_SECONDS, set_as_default=False, direct_to_workers=False
        )
    except (OSError, TypeError, ValueError, RuntimeError) as error:  # TLS without a certificate, ..
        raise _problem(
            "the Dask scheduler cannot be reached",
            f"{type(error).__name__}: {error}",
            f"a scheduler at {address} that accepts this client",
            "correct the address, start the scheduler, or set its certificates in"
            " DASK_DISTRIBUTED__COMM__TLS__CA_FILE, ..__CLIENT__CERT and ..__CLIENT__KEY",
        ) from error
    # A worker that cannot import a task would die of it.
    versions: Any = client.run(code_version, on_error="return")
    for worker, code in versions.items():
        # One that was lost meanwhile is no reason.
        if code != code_version() and not isinstance(code, OSError):
            client.close()
            raise _refused(f"{worker}: {code}")
    return client


def _short_of_memory(error: MemoryError) -> StepError:
    return StepError(
        Problem(
            "a Dask worker ran out of memory",
            received=str(error) or "no more memory",
            expected="at least 400 MiB for each process of a worker",
            fix="give the workers more memory, or fewer threads and processes each",
            path="data_options.dask",
        )
    )


def _refused(received: str, expected: str = "") -> ConfigurationError:
    return _problem(
        "the Dask cluster runs different code from the step",
        received,
        expected or code_version(),
        "run the Dask scheduler and workers with this step's image, named by its digest",
    )


def _problem(summary: str, received: str, expected: str, fix: str) -> ConfigurationError:
    return ConfigurationError(Problem(summary, received, expected, fix, path="data_options.dask"))
