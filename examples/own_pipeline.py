"""Your own pipeline: one training job for all regions, then one for each, side by side.

    kfp-tfjob compile --output compiled --tools-image IMAGE --trainer-image IMAGE
    python -m examples.own_pipeline compiled/launch_tfjob.yaml own_pipeline.yaml

Upload own_pipeline.yaml. It has neither prepare_data nor a gate: any image with Python can run the
program below. What the chief writes to OUTPUT_DIR is in S3 when the step has ended. `task_key`
keeps the launches of one run apart.
"""

import sys
from pathlib import Path
from typing import Any

from kfp import compiler, components, dsl

# The same program starts on every replica. TF_CONFIG tells it which one it is, TASK_KEY for which
# region, and DATASET_URI is what the pipeline passes as dataset_uri.
PROGRAM = """
import json, os, pathlib
task = json.loads(os.environ.get("TF_CONFIG") or "{}").get("task", {"type": "chief", "index": 0})
given = {"region": os.environ.get("TASK_KEY"), "begin": os.environ.get("DATASET_URI")}
weight = 1.0
for step in range(50):
    weight -= 0.02 * weight
print(task["type"], task["index"], "ends with", weight, "for", given, flush=True)
if task["type"] == "chief":
    output = pathlib.Path(os.environ["OUTPUT_DIR"])
    (output / "weight.json").write_text(json.dumps({"weight": weight, **given}))
"""
# Kubernetes expands $(NAME) in a command.
OPTIONS = {"command": ["python3", "-c", PROGRAM.replace("$", "$$")], "stage_data": False}
POD = {"all": {"cpu": "250m", "memory": "512Mi", "ephemeral_storage": "1Gi"}}


def own_pipeline(launch_yaml: Path) -> Any:
    """Return the pipeline.

    Args:
        launch_yaml: The compiled launch_tfjob, which brings its image and its settings.
    """
    launch_tfjob = components.load_component_from_file(str(launch_yaml))

    @dsl.pipeline(name="own-pipeline")
    def pipeline(
        output_uri: str, train_image: str = "python:3.11", storage_secret: str = "objstore-cred"
    ) -> None:
        first = launch_tfjob(
            output_uri=output_uri,
            storage_secret=storage_secret,
            train_image=train_image,
            train_workers=0,
            train_options=OPTIONS,
            pod=POD,
        )
        with dsl.ParallelFor(["eu", "us"]) as region:
            launch_tfjob(
                output_uri=output_uri,
                storage_secret=storage_secret,
                task_key=region,
                dataset_uri=first.outputs["trained_uri"],
                train_image=train_image,
                train_workers=1,
                train_options=OPTIONS,
                pod=POD,
            )

    return pipeline


if __name__ == "__main__":
    source, target = sys.argv[1:]
    compiler.Compiler().compile(own_pipeline(Path(source)), target)
