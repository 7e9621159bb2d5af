"""In a local run, builds the model in a process with TensorFlow before any row is read.

On a cluster, the image of this step has no TensorFlow, and the code may need packages of
train_image. There, the model is built for the first time when training starts.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from kfp_tfjob.cluster.local.backend import SECRETS
from kfp_tfjob.cluster.local.container import PodInfo, environment
from kfp_tfjob.components.launch_tfjob.manifest import Identity, build_job
from kfp_tfjob.components.launch_tfjob.spec import JobSpec
from kfp_tfjob.jobs.kind import CHIEF
from kfp_tfjob.jobs.kinds import kind_of
from kfp_tfjob.jobs.status import replicas
from kfp_tfjob.storage.errors import Problem
from kfp_tfjob.storage.layout import CODE

_SECONDS = 90.0  # for importing TensorFlow and building a model on a busy machine

log = logging.getLogger(__name__)


class Rehearsal:
    """A process that loads TensorFlow at once and builds the model on request.

    Args:
        spec: The job.
        run_id: The run.
        folder: An empty folder, for the files that a replica has in its volumes.
    """

    def __init__(self, spec: JobSpec, run_id: str, folder: Path) -> None:
        self._spec, self._folder = spec, folder
        self._answer, self._log = folder / "answer.json", folder / "log"
        self._deadline = time.monotonic() + _SECONDS
        with open(self._log, "wb") as log_file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "kfp_tfjob.trainer.rehearsal"],
                cwd=folder,
                env=self._environment(run_id),
                stdin=subprocess.PIPE,
                stdout=log_file,
                stderr=subprocess.STDOUT,
                process_group=0,
            )

    def ask(
        self,
        files: Mapping[str, bytes],
        entry: str,
        features: Mapping[str, str],
        label: str,
        task: str,
    ) -> None:
        """Ask the process to build the model, and return at once.

        Args:
            files: The code, by relative path; empty if the image has it.
            entry: `module:function`.
            features: The kinds of the feature columns, by name.
            label: The label column.
            task: As in data_options.
        """
        for path, data in files.items():
            file = self._folder / "job" / CODE / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
        header = {
            "model_entry": entry,
            "features": dict(features),
            "label": label,
            "task": task,
            "replicas": self._spec.replicas * max(self._spec.gpus, 1),
            "answer": str(self._answer),
        }
        try:
            self._process.stdin.write(json.dumps(header).encode() + b"\n")
            self._process.stdin.close()
        except OSError:
            return  # the process is gone; there will be no answer

    def problems(self) -> list[Problem]:
        """Wait a limited time for the answer, and return what training would refuse."""
        try:
            self._process.wait(max(self._deadline - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            log.info("building the model takes too long; training will report any problem")
            return []
        if not self._answer.exists():
            lines = self._log.read_text(errors="replace").strip().splitlines()
            last = lines[-1][:300] if lines else f"exit code {self._process.returncode}"
            log.info("the model could not be built before training: %s", last)
            return []
        return [Problem(**item) for item in json.loads(self._answer.read_bytes())]

    def end(self) -> None:
        """End the process and its children."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()

    def _environment(self, run_id: str) -> dict[str, str]:
        """Return the environment the chief of the job will have."""
        job = build_job(self._spec, Identity(run_id, 1))
        template = next(item.template for item in replicas(job) if item.role == CHIEF)
        container = template["spec"]["containers"][0]
        mounts = {
            item["mountPath"]: self._folder / item["name"] for item in container["volumeMounts"]
        }
        for path in mounts.values():
            path.mkdir(exist_ok=True)
        pod = PodInfo(template["metadata"], Path(os.environ.get(SECRETS) or self._folder))
        hosts = {item.role: ["127.0.0.1:1"] * item.count for item in replicas(job)}
        return environment(container, pod, mounts, kind_of(job).environment(hosts, CHIEF, 0))


@contextmanager
def beside(spec: JobSpec, run_id: str) -> Iterator[Rehearsal | None]:
    """Yield a process that runs during the checks, and end it; None if it cannot start.

    Args:
        spec: The job; its model_entry may be a placeholder.
        run_id: The run.
    """
    with TemporaryDirectory(prefix="rehearsal-") as folder:
        try:
            rehearsal = Rehearsal(spec, run_id, Path(folder))
        except (LookupError, OSError) as error:  # for instance a missing Secret of pod.env
            log.info("the model is not built before training: %s", error)
            yield None
            return
        try:
            yield rehearsal
        finally:
            rehearsal.end()
