"""Chooses Keras 2 for a user's own program whose strategy `model.fit` of Keras 3 does not support.

Keras 3 fails with MultiWorkerMirroredStrategy (keras#20585) and ParameterServerStrategy, and
computes wrong metrics with CentralStorageStrategy. It supports MirroredStrategy.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Iterator, Mapping, Sequence

from kfp_tfjob.supervisor.log import log

VARIABLE = "TF_USE_LEGACY_KERAS"  # TensorFlow reads it when a program uses tf.keras
_TRAINER = "kfp_tfjob.trainer"  # it has its own loop
_LONGEST = 1 << 20  # bytes of a file
# TF_USE_LEGACY_KERAS does not change what such a line imports.
_IMPORTS_KERAS = re.compile(
    rb"^[ \t]*(from|import)\s+([\w.]+(\s+as\s+\w+)?\s*,\s*)*keras\b", re.MULTILINE
)
# Also under their experimental names, and as V1 and V2. Alone, one replica can use the first two.
_OF_SEVERAL = re.compile(rb"(MultiWorkerMirrored|CollectiveAllReduce|ParameterServer)Strategy")
_OF_ONE = re.compile(rb"CentralStorageStrategy")
_FIND = "import importlib.util as i, sys; sys.exit(not i.find_spec('tf_keras'))"
_FIND_SECONDS = 60


def choose(command: Sequence[str], variables: Mapping[str, str], replicas: int) -> dict[str, str]:
    """Return the variable that gives the program Keras 2; nothing if it does not need that.

    Args:
        command: The program and its arguments.
        variables: Its environment.
        replicas: The number of chief and workers.
    """
    if VARIABLE in variables or _TRAINER in command:
        return {}
    code = b"\n".join(_code(command, variables.get("JOB_DIR", "")))
    strategy = (replicas > 1 and _OF_SEVERAL.search(code)) or _OF_ONE.search(code)
    if not strategy or b".fit(" not in code or _IMPORTS_KERAS.search(code):
        return {}
    why = f"model.fit of Keras 3 does not work with {strategy[0].decode()}"
    if not _has_keras_2(command[0], variables):
        log(f"{why}; if this image has Keras 3, add tf-keras to it")
        return {}
    log(f"{why}, so the program gets Keras 2 (to prevent this, set train_options.keras to 3)")
    return {VARIABLE: "1"}


def _code(command: Sequence[str], job_dir: str) -> Iterator[bytes]:
    """Yield the files of the program: the run's copy, and those beside a program of the image."""
    places = [(Path(job_dir, "code"), "**/*.py")] if job_dir else []
    words = " ".join(command).split()
    places += [(Path(word).parent, "*.py") for word in words if word.endswith(".py")]
    # Python looks for a module in the working folder first.
    for at, word in enumerate(words[:-1]):
        if word == "-m":
            places += [(Path(), "*.py"), (Path(words[at + 1].partition(".")[0]), "**/*.py")]
    for folder, pattern in places:
        try:
            for path in folder.glob(pattern):
                if path.is_file() and path.stat().st_size <= _LONGEST:
                    yield path.read_bytes()
        except OSError:
            continue  # the command itself will say what it cannot read


def _has_keras_2(program: str, variables: Mapping[str, str]) -> bool:
    """Ask the interpreter of the program: the supervisor's own may be another one."""
    python = program if Path(program).name.startswith("python") else "python3"
    try:
        done = subprocess.run([python, "-c", _FIND], env=dict(variables), timeout=_FIND_SECONDS)
    except (OSError, subprocess.SubprocessError):
        return False
    return done.returncode == 0
