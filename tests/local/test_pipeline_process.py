"""The process that runs the pipeline of a local run: its exit code."""

import json
import os
from pathlib import Path

from kfp_tfjob.components.preflight.parameters import defaults
from tests.environments import run_python


def test_a_step_that_is_killed_without_a_record_fails_the_pipeline(tmp_path: Path) -> None:
    """A continued run has the verdict of its first try: it must not stand for this one."""
    python = tmp_path / "bin" / "python3"  # which all steps run
    python.parent.mkdir()
    python.write_text("#!/bin/sh\nkill -9 $$\n")
    python.chmod(0o755)
    values = defaults() | {"data_uri": "x.csv", "data_label": "y", "model_name": "m"}
    values |= {"output_uri": "s3://kfp-tfjob"}
    module = "kfp_tfjob.pipelines.local.pipeline_process"
    done = run_python(
        *("-m", module, tmp_path / "outputs", "2026-11-26T03:00:00Z"),
        stdin=json.dumps(values),
        PATH=f"{python.parent}:{os.environ['PATH']}",
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stderr and "Traceback" not in done.stderr
