"""Replicas that use one GPU tell each other so, and stop, before NCCL would."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.ports import free_ports

PROGRAM = """
import json, os, sys
import tensorflow as tf
from kfp_tfjob.storage.errors import ConfigurationError
from kfp_tfjob.trainer.gpus import refuse_collisions
from kfp_tfjob.trainer.nvidia import Gpu
strategy = tf.distribute.MultiWorkerMirroredStrategy()
index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
try:
    refuse_collisions([Gpu("GPU", "a", (9, 0))], f"worker {index}", index, 2)
except ConfigurationError as error:
    print(error)
sys.stdout.flush()
os._exit(0)
"""


@pytest.mark.slow
def test_a_gpu_that_two_replicas_see_is_refused_on_both() -> None:
    cluster = {"worker": [f"127.0.0.1:{port}" for port in free_ports(2)]}
    replicas = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            env=os.environ
            | {
                "PYTHONPATH": os.pathsep.join(sys.path),
                "TF_CPP_MIN_LOG_LEVEL": "3",
                "TF_CONFIG": json.dumps(
                    {"cluster": cluster, "task": {"type": "worker", "index": index}}
                ),
            },
            stdout=subprocess.PIPE,
            text=True,
        )
        for index in range(2)
    ]
    try:
        said = [replica.communicate(timeout=240)[0] for replica in replicas]
    finally:
        for replica in replicas:
            replica.kill()
    for text in said:
        assert "GPU a: worker 0 and worker 1" in text
