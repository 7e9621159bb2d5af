"""Starts and ends the process that copies the chief's epochs to MLflow (`mlflow_run.py`).

Training must neither wait for a server nor share its interpreter with a client. So all of MLflow is
in a process of its own, which reads progress.jsonl. This process only starts it, and at the end
waits for it for a limited time. The supervisor kills it together with this process. Called by
`__main__.py`.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from kfp_tfjob.options.parameter_masking import masked
from kfp_tfjob.registry.tracking import (
    CHAMPION_TAG,
    CLIENT_VARIABLES,
    RUN_TAG,
    TAG_PREFIX,
    TASK_TAG,
)
from kfp_tfjob.storage.layout import PROGRESS

from .config import Config
from .errors import StoppedError

log = logging.getLogger(__name__)
FINISHED, FAILED, KILLED = "FINISHED", "FAILED", "KILLED"  # MLflow's names
_MODULE = "kfp_tfjob.trainer.mlflow_run"
_SECONDS = 20.0  # at the end of a training; as long as publish waits for a mirror
_FAILURE_SECONDS = 3.0  # after a failure; a pod that is stopped has little time
_FILE = "mlflow.json"


class MlflowProcess:
    """The process that copies epochs to MLflow.

    Args:
        config: The chief's configuration.
        dataset_digest: The dataset's digest.
    """

    def __init__(self, config: Config, dataset_digest: str) -> None:
        self._process = None
        path = config.job_dir / _FILE
        try:
            # Not in the arguments, which every user of the node can read.
            path.write_text(json.dumps(description(config, dataset_digest)), encoding="utf-8")
            self._process = subprocess.Popen(
                # -P keeps a user's modules in the working folder out of the client's imports.
                [sys.executable, "-Pm", _MODULE, str(path)],
                stdin=subprocess.PIPE,
                env=_without_keys(os.environ) | CLIENT_VARIABLES,
            )
        except OSError as error:
            log.warning("nothing is logged to MLflow: %s", error)

    def finish(self) -> None:
        """Log the remaining epochs and the successful end of the training."""
        self._end(FINISHED, _SECONDS)

    def fail(self, error: BaseException, is_final: bool) -> None:
        """Log the end of a training that failed or was stopped.

        Args:
            error: Why it ended.
            is_final: Whether a restart would fail again. Otherwise, the run goes on in MLflow.
        """
        if isinstance(error, StoppedError):
            self._end(KILLED, _FAILURE_SECONDS)
        elif is_final:
            self._end(FAILED, _FAILURE_SECONDS)

    def _end(self, status: str, seconds: float) -> None:
        if not self._process:
            return
        # A process that has ended has logged why.
        with suppress(OSError, subprocess.TimeoutExpired):
            self._process.communicate(f"{status} {seconds}\n".encode(), timeout=seconds)
        self._process.kill()


def description(config: Config, dataset_digest: str) -> dict[str, Any]:
    """Return the input of the process: parameters, tags and the path of progress.jsonl."""
    options = config.options.model_dump(mode="json", exclude_none=True)
    groups = {
        "model_hyperparameters": masked(dict(config.hyperparameters)),
        "train_options": masked(options),
    }
    tags = {
        RUN_TAG: config.run_id,
        TASK_TAG: config.task_key,
        f"{TAG_PREFIX}run_uri": config.run_uri,
        f"{TAG_PREFIX}dataset_uri": str(config.dataset_uri),
        f"{TAG_PREFIX}dataset_digest": dataset_digest,
        CHAMPION_TAG: "false",  # until publish
    }
    return {
        "progress": str(config.output_dir / PROGRESS),
        "parameters": {
            # Not the names of the run parameters: the back end's plugin logs these, and MLflow
            # accepts only one value for a name.
            "model": config.model_code,
            "epochs": str(config.epochs),
            "batch_size": str(config.batch_size),
            "replicas": str(config.cluster.size),
            "gpus_per_replica": str(config.expected_gpus or 0),
        }
        | {
            f"{group}.{name}": value if isinstance(value, str) else json.dumps(value)
            for group, values in groups.items()
            for name, value in values.items()
        },
        "tags": {name: value for name, value in tags.items() if value},
    }


def _without_keys(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables without the store's keys, which MLflow's client never needs."""
    return {name: value for name, value in environment.items() if not name.startswith("AWS_")}
