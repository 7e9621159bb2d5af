"""Lists a replica's environment variables, and parses the variables that the supervisor reads.

They are the only interface of the job manifest and the replica, so all are described here.
`tf_config.py` parses TF_CONFIG.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Mapping

# Set by the job manifest, the operator or the supervisor; a user must not set them.
VARIABLES = {
    "RUN_ID": "the run",
    "ATTEMPT": "the attempt, from 1",
    "RUN_URI": "the run's s3:// address",
    "TASK_KEY": "launch_tfjob's task_key, if any",
    "DATASET_URI": "the prepared dataset's s3:// address",
    "CODE_URI": "s3:// address of the run's copy of the model code; unset if the image contains it",
    "MODEL_CODE": "module:function that builds the model; $JOB_DIR/code is searched first; for a"
    " path alone, its name",
    "HYPERPARAMETERS": "JSON object: the keyword arguments of that function",
    "EPOCHS": "passes over the training rows",
    "BATCH_SIZE": "rows per step, over all replicas",
    "TRAIN_OPTIONS": "JSON object: options of the trainer",
    "JOB_DIR": "scratch folder of this replica",
    "DATA_DIR": "the dataset as files, for a user's own program",
    "STAGE_DATA": "npy if DATA_DIR contains a .npy file for each column and split",
    "OUTPUT_DIR": "folder for the model and all other output",
    "EXPECTED_REPLICAS": "chief and workers together; the supervisor rejects any other TF_CONFIG",
    "EXPECTED_GPUS": "this replica's GPUs; the trainer does not train with fewer",
    "START_DEADLINE": "how long a replica waits for the others to appear; at most 300 s for one"
    " that was lost",
    "MAX_RESTARTS": "how often the supervisor may restart the command; unset means never",
    "RESTARTS": "restarts of the command in this pod so far; set by the supervisor",
    "SUPERVISOR_PIPE": "file descriptor on which the command reports its progress; set by the"
    " supervisor",
    "PODINFO_DIR": "annotations of the chief's pod as files: heartbeat, stop-within",
    "ORPHAN_TIMEOUT": "how long the chief trains without a new heartbeat before it saves and exits"
    " with code 5",
    "STORE_DEADLINE": "how long the chief waits for its output to be stored",
    "FLUSH_BARRIER": "1 if a sidecar stores the output",
    "RESTORE": "1 if `setup` restores the newest checkpoint",
    "STORAGE_SECRET_DIR": "the mounted Secret with the store's keys",
    "TF_CONFIG": "the cluster and this replica's role in it; set by the training operator or"
    " the supervisor",
    "CHIEF_IN_TF_CONFIG": "0 if the chief is worker 0 in the TF_CONFIG of a user's own program",
    "TOPOLOGY": "the cluster; read by the supervisor if no operator sets TF_CONFIG",
    "REPLICA_INDEX": "this replica's number within its role; set together with TOPOLOGY",
    "MASTER_ADDR": "the chief's host, for torch.distributed; set by the supervisor",
    "MASTER_PORT": "a free port on the chief's host",
    "RANK": "this replica's number among chief and workers",
    "WORLD_SIZE": "the number of chief and workers",
    "HOME": "the pod user's home folder",
    "TMPDIR": "a folder for temporary files",
}
TERMINATION_LOG = "TERMINATION_LOG"  # in a local run: the file for the termination message
_STORE_SECONDS = 3600.0  # for a large model on a slow link, or a store that is down for a while
DURATION = "a number of seconds, or a number with the unit ms, s, m or h"
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)?")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, None: 1.0}


class Refused(Exception):
    """The environment does not match the job manifest.

    Args:
        variable: The wrong variable.
        what: The problem, as a sentence without a full stop.
        received: The received value; empty to leave it out.
        expected: A correct value.
        fix: How to fix it.
    """

    def __init__(
        self, variable: str, what: str, received: str = "", expected: str = "", fix: str = ""
    ) -> None:
        self.variable, self.what = variable, what
        self.received, self.expected, self.fix = received, expected, fix
        parts = (("", what), ("Received: ", received), ("Expected: ", expected), ("Fix: ", fix))
        super().__init__(" ".join(f"{label}{text}." for label, text in parts if text))


@dataclass(frozen=True)
class Environment:
    """The supervisor's settings.

    Attributes:
        run_id: The run.
        attempt: From 1.
        max_restarts: How often the command may be restarted.
        start_deadline: Seconds to wait for the other replicas; infinite if not set.
        store_deadline: Seconds to wait for the sidecar.
        orphan_timeout: Seconds to live without a heartbeat; infinite if not set.
        output_dir: Where the command writes; None if its output is not kept.
        podinfo_dir: The pod's annotations; None if there is no pod.
        flush_barrier: Whether a sidecar stores the output.
        chief_in_tf_config: Whether the command's TF_CONFIG names a chief.
    """

    run_id: str = ""
    attempt: int = 1
    max_restarts: int = 0
    start_deadline: float = math.inf
    store_deadline: float = _STORE_SECONDS
    orphan_timeout: float = math.inf
    output_dir: Path | None = None
    podinfo_dir: Path | None = None
    flush_barrier: bool = False
    chief_in_tf_config: bool = True

    @classmethod
    def read(cls, variables: Mapping[str, str]) -> Environment:
        """Read the variables.

        Raises:
            Refused: One of them is not a number or a duration.
        """

        def whole_number(name: str) -> int:
            text = variables.get(name) or "0"
            if not text.isdecimal():
                raise Refused(name, f"{name} is not valid", repr(text), "a whole number, 0 or more")
            return int(text)

        def seconds(name: str) -> float:
            text = variables.get(name) or "0"
            duration = seconds_of(text)
            if duration is None:
                raise Refused(name, f"{name} is not valid", repr(text), DURATION)
            return duration

        def folder(name: str) -> Path | None:
            return Path(variables[name]) if variables.get(name) else None

        return cls(
            variables.get("RUN_ID", ""),
            whole_number("ATTEMPT") or 1,
            whole_number("MAX_RESTARTS"),
            seconds("START_DEADLINE") or math.inf,
            seconds("STORE_DEADLINE") or _STORE_SECONDS,
            seconds("ORPHAN_TIMEOUT") or math.inf,
            folder("OUTPUT_DIR"),
            folder("PODINFO_DIR"),
            variables.get("FLUSH_BARRIER") == "1",
            variables.get("CHIEF_IN_TF_CONFIG") != "0",
        )


def seconds_of(text: str) -> float | None:
    """Return the seconds of a duration, such as `60`, `500ms` or `1.5h`; None for other strings."""
    match = _DURATION.fullmatch(text.strip())
    return float(match[1]) * _SECONDS[match[2]] if match else None
