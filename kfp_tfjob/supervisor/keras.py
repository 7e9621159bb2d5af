"""Chooses Keras 2 for a user's own program whose strategy `model.fit` of Keras 3 does not support.

Keras 3 fails with MultiWorkerMirroredStrategy (keras#20585) and ParameterServerStrategy, and
computes wrong metrics with CentralStorageStrategy. It supports MirroredStrategy. Called by
`supervise.py`.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Iterator, Mapping, Sequence

from .log import log

VARIABLE = "TF_USE_LEGACY_KERAS"  # TensorFlow reads it when a program uses tf.keras
_TRAINER = "kfp_tfjob.trainer"  # it has its own loop
_MOST_BYTES = 1 << 20  # of a file; a larger one is not a program that a person wrote
# TF_USE_LEGACY_KERAS does not change what such a line imports.
_IMPORTS_KERAS = re.compile(
    rb"^[ \t]*(from|import)\s+([\w.]+(\s+as\s+\w+)?\s*,\s*)*keras\b", re.MULTILINE
)
# These also match the experimental names, V1 and V2. A single replica can use the first two.
_MULTI_REPLICA_STRATEGY = re.compile(
    rb"(MultiWorkerMirrored|CollectiveAllReduce|ParameterServer)Strategy"
)
_SINGLE_REPLICA_STRATEGY = re.compile(rb"CentralStorageStrategy")
_FIND = "import importlib.util as i, sys; sys.exit(not i.find_spec('tf_keras'))"
_FIND_SECONDS = 60  # an interpreter starts slowly if its image is not in the node's cache yet


def choose(command: Sequence[str], variables: Mapping[str, str], replicas: int) -> dict[str, str]:
    """Return the variable that gives the program Keras 2; empty for a program that works without.

    Args:
        command: The program and its arguments.
        variables: Its environment.
        replicas: The number of chief and workers.
    """
    if VARIABLE in variables or _TRAINER in command:
        return {}
    code = b"\n".join(_code(command, variables.get("JOB_DIR", "")))
    strategy = (
        replicas > 1 and _MULTI_REPLICA_STRATEGY.search(code)
    ) or _SINGLE_REPLICA_STRATEGY.search(code)
    if not strategy or b".fit(" not in code or _IMPORTS_KERAS.search(code):
        return {}
    reason = f"model.fit of Keras 3 does not work with {strategy[0].decode()}"
    if not _has_keras_2(command[0], variables):
        log(f"{reason}; if this image has Keras 3, add tf-keras to it")
        return {}
    log(f"{reason}, so the program gets Keras 2 (to prevent this, set train_options.keras to 3)")
    return {VARIABLE: "1"}


def _code(command: Sequence[str], job_dir: str) -> Iterator[bytes]:
    """Yield the program's files: the run's copy, and the files next to a program of the image."""
    patterns = [(Path(job_dir, "code"), "**/*.py")] if job_dir else []
    words = " ".join(command).split()
    patterns += [(Path(word).parent, "*.py") for word in words if word.endswith(".py")]
    # Python looks for a module in the working folder first.
    for index, word in enumerate(words[:-1]):
        if word == "-m":
            package = words[index + 1].partition(".")[0]
            patterns += [(Path(), "*.py"), (Path(package), "**/*.py")]
    for folder, pattern in patterns:
        try:
            for path in folder.glob(pattern):
                if path.is_file() and path.stat().st_size <= _MOST_BYTES:
                    yield path.read_bytes()
        except OSError:
            continue  # the command itself will report what it cannot read


def _has_keras_2(program: str, variables: Mapping[str, str]) -> bool:
    """Ask the interpreter of the program: the supervisor's own may be another one."""
    python = program if Path(program).name.startswith("python") else "python3"
    try:
        process = subprocess.run([python, "-c", _FIND], env=dict(variables), timeout=_FIND_SECONDS)
    except (OSError, subprocess.SubprocessError):  # the command's start will report it
        return False
    return process.returncode == 0
