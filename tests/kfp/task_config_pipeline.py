"""A pipeline of an author's own: prepare_data, then launch_tfjob with settings on its task.

    KFP_TFJOB_TOOLS_IMAGE=... KFP_TFJOB_TRAINER_IMAGE=... \
        python -m tests.kfp.task_config_pipeline task_config.yaml

The replicas run a program that writes down what reached them, because a node of a test has no GPU
for the project's trainer. Their accelerator may be any resource that is patched onto a node.
"""

import os
import subprocess
import sys
from pathlib import Path

from kfp import compiler, dsl, kubernetes

from kfp_tfjob.components.launch_tfjob.component import launch_tfjob
from kfp_tfjob.components.prepare_data.component import prepare_data
from kfp_tfjob.options.container_images import (
    TOOLS_VARIABLE,
    TRAINER_VARIABLE,
    tools_in,
    trainer_in,
)
from kfp_tfjob.pipelines.compilation import pinned
from kfp_tfjob.pipelines.step_pod import with_store

# The chief leaves this file in output/.
SEEN = "seen.json"
PROGRAM = f"""
import json, os, pathlib
seen = {{name: os.environ.get(name) for name in ("EXPECTED_GPUS", "BATCH_SIZE", "DATASET_URI")}}
seen["level"] = os.environ.get("LEVEL")
seen["token"] = bool(os.environ.get("TOKEN"))
seen["secrets"] = sorted(it for it in os.listdir("/etc/secrets") if not it.startswith("."))
pathlib.Path(os.environ["OUTPUT_DIR"], "{SEEN}").write_text(json.dumps(seen))
"""
OPTIONS = {"command": ["python3", "-c", PROGRAM], "stage_data": False}
TOLERATION = {"key": "test-kfp", "operator": "Exists", "effect": "NoSchedule"}
NODE_SELECTOR = {"kubernetes.io/os": "linux"}
# The task sets cpu and memory; pod wins for LEVEL.
LIMITS = {"cpu": "300m", "memory": "512Mi"}
POD = {"all": {"ephemeral_storage": "1Gi", "env": {"LEVEL": "pod"}}}


@dsl.pipeline(name="task-config")
def task_config_pipeline(
    data_uri: str,
    data_label: str,
    output_uri: str,
    token_secret: str,
    storage_secret: str = "objstore-cred",
    accelerator: str = "nvidia.com/gpu",
) -> None:
    """Prepare data, and train on two replicas with one accelerator each.

    Args:
        data_uri: A CSV file.
        data_label: Its label.
        output_uri: Where all runs are stored.
        token_secret: A Secret other than storage_secret, with the key AWS_ACCESS_KEY_ID.
        storage_secret: The Secret with the store's keys.
        accelerator: The resource of which each replica gets one.
    """
    run_id = dsl.PIPELINE_JOB_ID_PLACEHOLDER
    data = prepare_data(
        run_id=run_id, data_uri=data_uri, data_label=data_label, output_uri=output_uri
    )
    with_store(data, storage_secret)
    task = launch_tfjob(
        run_id=run_id,
        output_uri=output_uri,
        storage_secret=storage_secret,
        dataset_uri=data.outputs["dataset_uri"],
        train_workers=1,
        train_options=OPTIONS,
        pod=POD,
    )
    with_store(task, storage_secret)
    task.set_cpu_limit(LIMITS["cpu"]).set_memory_limit(LIMITS["memory"])
    task.set_accelerator_type(accelerator).set_accelerator_limit(1)
    task.set_env_variable("LEVEL", "task")
    kubernetes.add_toleration(task, **TOLERATION)
    kubernetes.add_node_selector(task, *next(iter(NODE_SELECTOR.items())))
    kubernetes.use_secret_as_env(task, token_secret, {"AWS_ACCESS_KEY_ID": "TOKEN"})
    kubernetes.use_secret_as_volume(task, token_secret, mount_path="/etc/secrets")


def compile_for(registry: str, file: Path) -> None:
    """Compile the pipeline with the images in a registry; KFP reads them at the import."""
    images = {TOOLS_VARIABLE: tools_in(registry), TRAINER_VARIABLE: trainer_in(registry)}
    environment = os.environ | {name: pinned(image) for name, image in images.items()}
    command = [sys.executable, "-m", "tests.kfp.task_config_pipeline", str(file)]
    subprocess.run(command, check=True, env=environment, cwd=Path(__file__).parents[2])


if __name__ == "__main__":
    compiler.Compiler().compile(task_config_pipeline, sys.argv[1])
