"""`make test-stores`: run the tests of the store on several stores, and compare them.

    python -m tests.stores [arguments of pytest]

STORES names them: any of tests/stores/known.py, and `https://HOST/BUCKET` of a user's own store,
with AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION in the environment. The default is all
that can be started here. The exit code is that of the first session with unexpected results.
"""

import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

from tests.cluster.processes import run_pytest
from tests.stores.known import KNOWN, TESTS, VARIABLE

# Half of a test is waiting for the store.
_OPTIONS = ["-m", "not cluster", "-n", "2", "--timeout", "900", "-o", "log_level=INFO"]


def main(arguments: list[str]) -> int:
    """Run a session for each store; the exit code is the first one that is not 0."""
    names = os.environ.get("STORES", "").split() or list(KNOWN)
    if unknown := [name for name in names if name not in KNOWN and "/" not in name]:
        expected = f"{', '.join(KNOWN)}, or https://HOST/BUCKET"
        print(f"STORES has unknown names: {unknown}. Expected: {expected}", file=sys.stderr)
        return 2
    codes, lines = [], []
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder, "report.xml")
            began = time.monotonic()
            command = [*TESTS, *_OPTIONS, f"--junitxml={report}", *arguments]
            codes.append(run_pytest(command, {VARIABLE: name}))
            lines.append(_line(name, report, time.monotonic() - began))
    print("| store | version | passed | different | failed | skipped | seconds |")
    print("\n".join(["|---|---|---|---|---|---|---|", *lines]))
    return next(filter(None, codes), 0)


def _line(name: str, report: Path, seconds: float) -> str:
    """Return the line of a store in the table."""
    version = KNOWN[name].version if name in KNOWN else ""
    outcomes: Counter[str] = Counter()
    if report.exists():
        for case in ElementTree.parse(report).iter("testcase"):
            outcomes[_outcome(case)] += 1
    numbers = (outcomes[it] for it in ("passed", "different", "failed", "skipped"))
    return f"| {name} | {version} | {' | '.join(map(str, numbers))} | {seconds:.0f} |"


def _outcome(case: ElementTree.Element) -> str:
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    skipped = case.find("skipped")
    if skipped is None:
        return "passed"
    return "different" if skipped.get("type") == "pytest.xfail" else "skipped"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
