"""`make test-cluster`: start a control plane, run the tests side by side on it, and stop it.

python -m tests.cluster [arguments of pytest]
"""

import logging
import os
import signal
import sys
from pathlib import Path
from subprocess import SubprocessError

from kfp_tfjob.common.errors import StepError
from tests.cluster.cluster import STATE, Cluster
from tests.cluster.processes import MARK, run_pytest

# Most of a test is waiting for seconds to pass, so there are more of them than cores.
_SIDE_BY_SIDE = ["-n", "6", "--dist", "load", "--maxschedchunk", "1"]
_REPORT = ["--durations", "15", "-o", "log_level=INFO"]
# A launch of three replicas may take 900 s on a busy machine, and a test has several.
_LIMIT = ["--timeout", "3600"]
_QUICK = "cluster and not slow"


def main(arguments: list[str]) -> int:
    """Run the tests; the exit code is pytest's, or 2 where no control plane can be had."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    signal.signal(signal.SIGTERM, _terminate)
    # A shell of root may lack the folders in which Debian keeps iptables and debootstrap.
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    try:
        with Cluster():
            temporary = STATE / "tmp"  # what a killed test leaves goes with the cluster
            temporary.mkdir()
            here = ["-m", _QUICK, str(Path(__file__).parent), *_SIDE_BY_SIDE, *_REPORT, *_LIMIT]
            return run_pytest([*here, *arguments], {"TMPDIR": str(temporary), MARK: str(STATE)})
    except (StepError, OSError, RuntimeError, SubprocessError) as error:
        print(f"NOT RUN: there is no control plane to test on: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _terminate(*_: object) -> None:
    sys.exit(128 + signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
