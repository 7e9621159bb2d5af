"""`make test-kfp`: run the scenarios on the back end of KF_PIPELINES_ENDPOINT, and tidy up.

    python -m tests.kfp [arguments of pytest]

docs/operations.md has the variables. Everything that is missing is said first, at once.
"""

import logging
import signal
import sys
import tempfile
from pathlib import Path

from tests.cluster.processes import run_pytest
from tests.kfp import lab, prerequisites
from tests.kfp.settings import Settings

# The scenarios mostly wait for Argo, so there are more of them than cores.
_SIDE_BY_SIDE = ["-n", "5", "--dist", "load", "--maxschedchunk", "1"]
_LIMIT = ["--timeout", "3600"]  # Kubeflow Pipelines starts six pods in a run, on a shared back end


def main(arguments: list[str]) -> int:
    """Run the scenarios; the exit code is pytest's, or 2 with everything that is missing."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    settings, name = Settings.from_environment(), lab.new_name()
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder, "tfjob_training.yaml")
        compiled = prerequisites.compile_pipeline(settings, Path(folder))
        problems = list(prerequisites.missing(settings, package, name))
        if not package.is_file() and settings.registry:
            problems.append(compiled.stderr.strip())
        if problems:
            print(prerequisites.shown(problems), file=sys.stderr)
            return 2
        try:
            with lab.laboratory(name, settings, package) as file:
                here = ["-m", "kfp", str(Path(__file__).parent), *_SIDE_BY_SIDE, *_LIMIT]
                return run_pytest([*here, *arguments], {lab.VARIABLE: str(file)})
        except KeyboardInterrupt:
            return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
