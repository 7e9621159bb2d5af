"""Runs tasks on workers elsewhere, by Dask's futures; the scheduler runs in this process.

Nothing else of Dask is used. Tasks are names and plain values, and their results are small: data
goes through the exchange. A lost worker costs the task that it was doing, which runs again on
another one.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import threading
from collections import deque
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, Protocol

from kfp_tfjob.components.prepare_data.executors import dask_settings
from kfp_tfjob.components.prepare_data.executors.certificate import Certificate
from kfp_tfjob.components.prepare_data.executors.executor import Context, Executor, Recipe, opened
from kfp_tfjob.storage.errors import Problem, StepError
from kfp_tfjob.storage.store import Store
from kfp_tfjob.storage.words import counted

if TYPE_CHECKING:
    from distributed import Client, Future, Scheduler, Security
    from distributed.diagnostics.plugin import SchedulerPlugin

log = logging.getLogger(__name__)

PORT = 8786  # of the scheduler in a pod, for network policies; Dask's own
_TASK_SECONDS = 3600.0  # a file that cannot be divided may be large
_LOOK_SECONDS = 1.0
_CLOSING_SECONDS = 10.0
# Tasks that are handed over at a time, so that slow ones do not hold up the rest, and a scheduler
# does not hold a million of them.
_AHEAD, _AT_LEAST = 8, 64


class Workers(Protocol):
    """The workers of one executor, wherever they run.

    Attributes:
        count: The number of processes that do tasks.
        host: The address of this machine or pod that they can reach.
        port: Of the scheduler; 0 for any.
    """

    count: int
    host: str
    port: int

    def start(self, scheduler: str, certificate: Certificate) -> None:
        """Start them.

        Args:
            scheduler: Its address.
            certificate: The one that the scheduler accepts.

        Raises:
            StepError: They cannot be started.
        """

    def check(self, connected: int) -> None:
        """Look after them, about once a second.

        Args:
            connected: How many processes are connected to the scheduler.

        Raises:
            StepError: No worker will come.
        """

    def stop(self) -> None:
        """End them; called once, also after `start` has failed."""


class Distributed(Executor):
    """Runs tasks on workers, which it starts with the first task.

    Args:
        recipe: Where everything is, as the workers see it.
        workers: The workers.
        store: The store, if it is open already.
        task_seconds: The deadline of one task.
    """

    def __init__(
        self,
        recipe: Recipe,
        workers: Workers,
        store: Store | None = None,
        task_seconds: float = _TASK_SECONDS,
    ) -> None:
        self.context = Context(recipe, store)
        self._recipe = json.dumps(recipe.to_plain())
        self._workers, self._task_seconds = workers, task_seconds
        self._maps = 0
        self._opened = ExitStack()
        self._client: Client | None = None
        self._connected = _Connected()

    def map(self, task: str, items: Sequence[Any]) -> Iterator[Any]:
        """Run a task for each item."""
        if not items:
            return
        client = self._client or self._open()
        self._maps += 1
        most = max(_AT_LEAST, _AHEAD * self._workers.count)
        waiting: deque[Future] = deque()
        following = iter(enumerate(items))
        try:
            while True:
                while len(waiting) < most and (one := next(following, None)):
                    waiting.append(self._submit(client, task, *one))
                if not waiting:
                    return
                answer = self._answer(waiting[0], task)
                waiting.popleft()
                yield opened(answer)
        finally:
            if waiting and self._client is client:  # it may be closed before this generator
                client.cancel(list(waiting), force=True)

    def close(self) -> None:
        """End the workers and the scheduler, and remove the local folder."""
        self._client = None
        self._opened.close()
        self.context.close()

    def _open(self) -> Client:
        """Start scheduler and workers; return the client of the scheduler.

        Raises:
            StepError: The workers cannot be started.
        """
        dask_settings.use()
        from distributed import Client

        certificate = Certificate.new()
        security = certificate.security()
        with ExitStack() as stack:
            host, port = self._workers.host, self._workers.port
            scheduler = stack.enter_context(_Scheduler(host, port, security, self._connected))
            client = stack.enter_context(
                Client(
                    scheduler.address,
                    security=security,
                    set_as_default=False,
                    direct_to_workers=False,
                )
            )
            stack.callback(self._workers.stop)
            self._workers.start(scheduler.address, certificate)
            self._opened = stack.pop_all()
        self._client = client
        return client

    def _submit(self, client: Client, task: str, number: int, item: Any) -> Future:
        from kfp_tfjob.components.prepare_data.executors.remote_task import remote_task

        arguments = (self._recipe, task, json.dumps(item), self._task_seconds)
        key = f"{task.rpartition(':')[2]}-{self._maps}-{number}"
        return client.submit(remote_task, *arguments, key=key, pure=False)

    def _answer(self, future: Future, task: str) -> dict[str, Any]:
        """Wait for a task and return its answer.

        Raises:
            StepError: It was lost too often, or there are no workers.
        """
        from distributed import KilledWorker

        try:
            while True:
                with suppress(TimeoutError):  # of this call: a task answers in any case
                    return json.loads(future.result(timeout=_LOOK_SECONDS))
                self._workers.check(len(self._connected.names))
        except KilledWorker as error:
            raise StepError(
                Problem(
                    f"{counted(error.allowed_failures + 1, 'worker')} died or hung while they did"
                    f" the same task {task}",
                    received=f"task {error.task}",
                    expected=f"at most {counted(error.allowed_failures, 'lost worker')} for a task,"
                    f" and {self._task_seconds:g} s at most",
                    fix="read the lines of the workers above; raise pod.prepare.memory, or lower"
                    " pod.prepare.cpu, which is the number of processes of a worker",
                )
            ) from error


class _Scheduler:
    """Dask's scheduler in a thread of this process.

    Args:
        host: Where it listens.
        port: Its port, if it is free; 0 for any.
        security: What it accepts.
        connected: Hears of its workers.
    """

    def __init__(self, host: str, port: int, security: Security, connected: _Connected) -> None:
        self._arguments = {
            "host": host,
            "protocol": "tls",
            "security": security,
            "dashboard_address": dask_settings.NOWHERE,
            "dashboard": False,
            "plugins": (connected.plugin(),),
        }
        self._port = port
        self._connected = connected
        self.address = ""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="scheduler")

    def __enter__(self) -> _Scheduler:
        """Start it."""
        self._thread.daemon = True
        self._thread.start()
        self._scheduler = self._wait(self._start())
        self.address = self._scheduler.address
        log.info("the scheduler of the workers listens at %s", self.address)
        return self

    def __exit__(self, *_: object) -> None:
        """Tell the workers to end, and end it."""
        self._connected.closing = True
        try:
            self._wait(self._scheduler.close())
        except (TimeoutError, OSError) as error:
            log.debug("the scheduler did not close: %s", error)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CLOSING_SECONDS)

    async def _start(self) -> Scheduler:
        from distributed import Scheduler

        try:
            return await Scheduler(port=self._port, **self._arguments)
        except RuntimeError as error:
            if not self._port or not isinstance(error.__cause__, OSError):
                raise
            log.info("port %d is taken: %s", self._port, error.__cause__)
            return await Scheduler(port=0, **self._arguments)

    def _wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_CLOSING_SECONDS)


class _Connected:
    """Knows which workers are connected to the scheduler, which is in this process."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {}  # by address
        self.closing = False

    def plugin(self) -> SchedulerPlugin:
        """Return what the scheduler tells about its workers."""
        from distributed.diagnostics.plugin import SchedulerPlugin

        names, connected = self.names, self

        class Workers(SchedulerPlugin):
            def add_worker(self, scheduler: Any, worker: str) -> None:
                names[worker] = scheduler.workers[worker].name
                log.info("worker %s is connected, %d in all", names[worker], len(names))

            def remove_worker(self, scheduler: Any, worker: str, **_: Any) -> None:
                name = names.pop(worker, worker)
                if not connected.closing:
                    log.warning("worker %s is gone, %d are left", name, len(names))

        return Workers()


def own_address() -> str:
    """Return the address of this pod, as its cluster sees it."""
    target = os.environ.get("KUBERNETES_SERVICE_HOST") or "192.0.2.1"
    family, *_, address = socket.getaddrinfo(target, 443, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)  # sends nothing
        return probe.getsockname()[0]
