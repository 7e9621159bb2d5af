"""Runs the pipeline with kfp.local, in a process of its own so that it can be ended.

python -m pipelines.local.pipeline_process PARAMETERS.json OUTPUTS
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path


def main() -> None:
    """Run the pipeline; whether it failed is told by what its steps left."""
    values = json.loads(Path(sys.argv[1]).read_text())
    # What kfp.local warns of is known: images and resources mean nothing to a process.
    warnings.filterwarnings("ignore", module=r"kfp\.")
    from kfp import local

    from pipelines.tfjob_training import tfjob_training

    runner = local.SubprocessRunner(use_venv=False)
    local.init(runner, pipeline_root=sys.argv[2], raise_on_error=False)
    tfjob_training(**values)


if __name__ == "__main__":
    main()
