"""Runs jobs as processes on this machine, from the same manifest as on a cluster.

It acts like an operator for a job without restarts. It starts one pod for each replica, with the
variables by which replicas find each other. The job succeeds with the deciding role and fails with
any replica. Then the remaining pods are stopped. Fields that do not apply to processes on one
machine, such as images, resources and node selectors, are ignored; a test lists every field. Called
by the launcher in a local run.
"""

from __future__ import annotations

import logging
import os
import queue
import random
import shutil
import signal
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

from kfp_tfjob.common import progress
from kfp_tfjob.common.errors import Problem
from kfp_tfjob.jobs.kind import CHIEF
from kfp_tfjob.jobs.kinds import kind_of
from kfp_tfjob.jobs.objects import Object

from ..backend import Backend, JobExistsError, JobRefusedError
from ..log_lines import LogLine, stamp_of
from .container import now
from .pod import LocalPod

SECRETS = "KFP_TFJOB_SECRETS"
FOLDER = "KFP_TFJOB_WORK"
# Below the ports for outgoing connections, which could otherwise take a replica's port before it.
_PORTS = range(20000, 32000)
_LINES = 10_000  # kept for a slow reader; then the containers wait
_POLL = 0.3  # seconds between two looks whether the job has ended
_CLOSING_SECONDS = 10.0  # for the sidecars to store files at the program's end

log = logging.getLogger(__name__)


class LocalBackend(Backend):
    """Runs jobs until it is closed; on SIGTERM it ends them and the program."""

    def __init__(self, folder: Path, secrets: Path) -> None:
        self._folder, self._secrets = folder, secrets
        self._jobs: dict[str, _Job] = {}
        self._handler: Any = None

    @classmethod
    def from_environment(cls) -> LocalBackend:
        """Return a back end for the folders in the environment, which the local run sets."""
        return cls(Path(os.environ[FOLDER]), Path(os.environ[SECRETS]))

    def create(self, manifest: Object) -> None:
        """Start a job's pods."""
        name = manifest["metadata"]["name"]
        if name in self._jobs:
            raise JobExistsError(
                Problem(
                    f"a job {name} already exists",
                    expected="a name that no other job of this run has",
                    fix="start a new run",
                )
            )
        JobRefusedError.raise_if(_missing_secrets(manifest, self._secrets))
        self._jobs[name] = _Job(manifest, self._folder, self._secrets)
        self._jobs[name].start()

    def get(self, name: str) -> Object | None:
        """Return the job with its status; None if it does not exist."""
        job = self._jobs.get(name)
        return job.to_dict() if job else None

    def pods(self, name: str) -> list[Object]:
        """Return a job's pods; they stay visible until the job is deleted."""
        job = self._jobs.get(name)
        return [pod.to_dict() for pod in job.pods] if job else []

    def wait_for_change(self, name: str, timeout: float) -> None:
        """Wait for a change since `get`, at most `timeout` seconds."""
        if job := self._jobs.get(name):
            job.wait_for_change(timeout)

    def logs(self, name: str) -> Iterator[LogLine]:
        """Yield a job's lines until it has ended, to one reader only."""
        job = self._jobs.get(name)
        return job.lines() if job else iter(())

    def silence(self, name: str) -> float | None:
        """Return the seconds since the chief's last line; None before the first."""
        job = self._jobs.get(name)
        return time.monotonic() - job.heard if job and job.heard else None

    def annotate_chief(self, name: str, values: Mapping[str, str]) -> None:
        """Set annotations of the chief's pod; its containers read them in PODINFO_DIR."""
        if job := self._jobs.get(name):
            job.chief.annotate(values)

    def delete(self, name: str) -> None:
        """Stop a job, wait for its processes and remove its volumes."""
        if job := self._jobs.pop(name, None):
            job.end()

    def close(self) -> None:
        """End every job and all its processes."""
        for job in self._jobs.values():
            job.stop(_CLOSING_SECONDS)
        for name in list(self._jobs):
            self.delete(name)

    def __enter__(self) -> LocalBackend:
        """Return the back end; from now on, SIGTERM also ends the jobs."""
        if threading.current_thread() is threading.main_thread():
            self._handler = signal.signal(signal.SIGTERM, _terminated)
        return self

    def __exit__(self, *_: object) -> None:
        """End every job."""
        is_main_thread = threading.current_thread() is threading.main_thread()
        if is_main_thread:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the jobs are ending already
        try:
            self.close()
        finally:
            if is_main_thread:
                signal.signal(signal.SIGTERM, self._handler)


class _Job:
    """One job: its pods, its status as the operator writes it, and its lines."""

    def __init__(self, manifest: Object, folder: Path, secrets: Path) -> None:
        self._manifest = dict(manifest)
        self.heard = 0.0  # the time of the chief's last line; 0 before the first
        self._name: str = manifest["metadata"]["name"]
        self._folder = folder / "jobs" / self._name
        self._kind = kind = kind_of(manifest)
        replicas = kind.replicas(manifest)
        self._change = threading.Condition(threading.RLock())
        self._version = self._seen = 0
        self._lines: queue.Queue[LogLine] = queue.Queue(_LINES)
        self._is_deleted = False
        self._conditions: dict[str, dict[str, str]] = {}
        self._condition("created", f"{kind.name} {self._name} is created.")
        count = sum(replica.count for replica in replicas)
        ports = _free_ports(count)
        hosts = {
            replica.role: [f"127.0.0.1:{ports.pop()}" for _ in range(replica.count)]
            for replica in replicas
        }
        self._by_role: dict[str, list[LocalPod]] = {}
        for replica in replicas:
            role = replica.role
            for index in range(replica.count):
                pod = LocalPod(
                    name=kind.pod_name(self._name, role, index),
                    labels=kind.pod_labels(self._name, role, index),
                    template=replica.template,
                    claims=folder / "claims",
                    secrets=secrets,
                    folder=self._folder / f"{role}-{index}",
                    injected=kind.environment(hosts, role, index)
                    | {"REPLICAS_ON_THIS_MACHINE": str(count)},
                    line=self._line_callback(f"{role}-{index}"),
                    changed=self._changed,
                    # The replicas' downloads are alike, so a live line shows the chief's.
                    shared=_progress_file() if (role, index) == (CHIEF, 0) else {},
                )
                self._by_role.setdefault(role, []).append(pod)

    @property
    def pods(self) -> list[LocalPod]:
        return [pod for pods in self._by_role.values() for pod in pods]

    @property
    def chief(self) -> LocalPod:
        return self._by_role[CHIEF][0]

    @property
    def over(self) -> bool:
        """Whether the job has a result and all its pods have ended."""
        return self._decided and all(pod.phase in ("Succeeded", "Failed") for pod in self.pods)

    def start(self) -> None:
        for pod in self.pods:
            pod.start()

    def stop(self, sidecar_seconds: float | None = None) -> None:
        for pod in self.pods:
            pod.stop(sidecar_seconds)

    def end(self) -> None:
        self._is_deleted = True
        self.stop()
        for pod in self.pods:
            pod.join()
        shutil.rmtree(self._folder, ignore_errors=True)

    def to_dict(self) -> Object:
        with self._change:
            self._seen = self._version
            status = {"conditions": [dict(item) for item in self._conditions.values()]}
        return self._manifest | {"status": status}

    def wait_for_change(self, timeout: float) -> None:
        with self._change:
            self._change.wait_for(lambda: self._version != self._seen, timeout)

    def lines(self) -> Iterator[LogLine]:
        while True:
            over = self.over  # read before the queue, so that no line is lost at the end
            try:
                yield self._lines.get(timeout=_POLL)
            except queue.Empty:
                if over:
                    return

    def _line_callback(self, replica: str) -> Any:
        """Return the function that queues a container's line of this replica."""

        def take(container: str, text: str) -> None:
            where = self._kind.log_name(replica, container)
            if where == "chief-0":
                self.heard = time.monotonic()
            line = LogLine(stamp_of(time.time()), where, text)
            # As with a pipe, a program that writes faster than its log is read must wait.
            while True:
                with suppress(queue.Full):
                    return self._lines.put(line, timeout=_POLL)
                if self._is_deleted:  # the reader may have ended
                    return None

        return take

    def _changed(self) -> None:
        with self._change:
            self._decide()
            self._version += 1
            self._change.notify_all()

    @property
    def _decided(self) -> bool:
        return "succeeded" in self._conditions or "failed" in self._conditions

    def _decide(self) -> None:
        """Set the conditions as the operator does, first by the deciding role."""
        if self._decided:
            return
        phases = {role: [pod.phase for pod in pods] for role, pods in self._by_role.items()}
        deciding = phases[CHIEF]
        if "Running" in deciding and "running" not in self._conditions:
            self._condition("running", f"{self._kind.name} {self._name} is running.")
        if all(phase == "Succeeded" for phase in deciding):
            self._finish("succeeded", "successfully completed.")
        for role, role_phases in phases.items():
            if failed := role_phases.count("Failed"):
                name = self._kind.roles[role]
                self._finish("failed", f"has failed because {failed} {name} replica(s) failed.")

    def _finish(self, state: str, sentence_end: str) -> None:
        """Set the final condition and stop the remaining pods."""
        if "running" in self._conditions:
            self._conditions["running"]["status"] = "False"
        self._condition(state, f"{self._kind.name} local/{self._name} {sentence_end}")
        self.stop()  # cleanPodPolicy Running

    def _condition(self, state: str, message: str) -> None:
        kind = self._kind.conditions.get(state, state.capitalize())
        self._conditions[state] = {
            "type": kind,
            "status": "True",
            "reason": f"{self._kind.name}{kind}",
            "message": message,
            "lastUpdateTime": now(),
            "lastTransitionTime": now(),
        }


def _missing_secrets(manifest: Object, secrets: Path) -> Iterator[Problem]:
    """Yield a problem for each missing key of a Secret that a variable needs.

    A cluster would wait for the Secret, but on one machine nobody else creates it.
    """
    variables = {}
    pods = [replica.pod for replica in kind_of(manifest).replicas(manifest)]
    containers = (
        container
        for pod in pods
        for container in (*pod.get("initContainers", []), *pod["containers"])
    )
    for container in containers:
        for variable in container.get("env", []):
            reference = variable.get("valueFrom", {}).get("secretKeyRef", {"optional": True})
            if not reference.get("optional"):
                variables[reference["name"], reference["key"]] = variable["name"]
    for (name, key), variable in variables.items():
        if not (secrets / name / key).is_file():
            yield Problem(
                f"there is no Secret {name} with the key {key}, which {variable} needs",
                received=f"no file {secrets / name / key}",
                expected="the value as the content of that file",
                fix="write the value to that file, readable only by you",
                name="secret-not-found",
            )


def _progress_file() -> dict[str, str]:
    """Return the variable with the file for progress reports; empty if no program shows them."""
    return {progress.FILE: path} if (path := os.environ.get(progress.FILE)) else {}


def _free_ports(count: int) -> list[int]:
    """Return ports that no program listens on.

    Random ports are tried, so that local runs at the same time rarely choose the same ones.

    Raises:
        JobRefusedError: There are too few free ports.
    """
    ports: list[int] = []
    deadline = time.monotonic() + 10
    while len(ports) < count and time.monotonic() < deadline:
        port = random.choice(_PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:  # another program listens there
                continue
        if port not in ports:
            ports.append(port)
    if len(ports) < count:
        raise JobRefusedError(
            Problem(
                f"this machine has no {count} free ports",
                received=f"{len(ports)} free ports from {_PORTS.start} to {_PORTS.stop - 1}",
                expected="a port for each replica",
                fix="end programs that listen on this machine, or lower train_workers",
                path="train_workers",
            )
        )
    return ports


def _terminated(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
