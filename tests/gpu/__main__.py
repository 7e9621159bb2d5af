"""`make test-gpu`: train on all GPUs of this machine, and measure them, in at most ten minutes.

Needs neither Kubernetes nor root. Without a GPU it prints what it would do, and ends with 0.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.gpu import cards
from tests.gpu.plan import PLAN, Check, CheckFailed, Session, write_dataset
from tests.stores import known

SECONDS = 600.0


def main() -> int:
    """Run the plan; return an exit code."""
    began = time.monotonic()
    found, reason = cards.here()
    print(*describe(PLAN, len(found)), sep="\n")
    if not found:
        print(f"\nSKIPPED: {reason}, so nothing was run and nothing is claimed about GPUs.")
        return 0
    print(f"\n{len(found)} x {found[0].name}, {found[0].memory} MiB, driver {found[0].driver}\n")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "store").mkdir()
        with known.running(folder / "store") as server:
            dataset = write_dataset(folder / "dataset", server)

            def session(seconds: Callable[[], float]) -> Session:
                return Session(found, folder, dataset, server.secret, seconds)

            return run(PLAN, len(found), session, began + SECONDS)


def describe(plan: Sequence[Check], gpus: int) -> list[str]:
    """Return the plan as lines, for a machine with this number of GPUs."""
    lines = [f"make test-gpu, at most {SECONDS / 60:.0f} minutes:"]
    for number, check in enumerate(plan, 1):
        needs = f" (needs {check.gpus} GPUs)" if check.gpus > max(gpus, 1) else ""
        lines.append(f"{number}. {check.name}, up to {check.seconds} s{needs}: {check.run.__doc__}")
    return lines


def run(
    plan: Sequence[Check],
    gpus: int,
    session: Callable[[Callable[[], float]], Session],
    deadline: float,
) -> int:
    """Run the checks and print the table.

    Args:
        plan: The checks.
        gpus: Number of GPUs of this machine.
        session: Makes the session of a check from a function that returns its remaining seconds.
        deadline: Monotonic time at which all of them must have ended.

    Returns:
        1 if a check failed or had no time left, otherwise 0.
    """
    print("| check | result | figures | seconds |\n|---|---|---|---|")
    failed = False
    for check in plan:
        began = time.monotonic()
        limit = min(began + check.seconds, deadline)

        def remaining(limit: float = limit) -> float:
            return max(limit - time.monotonic(), 0.1)

        if gpus < check.gpus:
            result, text = "skipped", f"needs {check.gpus} GPUs"
        elif deadline - began < 1:
            result, text = "NOT RUN", "no time left"
        else:
            try:
                result, text = "passed", check.run(session(remaining))
            except (CheckFailed, AssertionError) as error:
                result, text = "FAILED", str(error).splitlines()[-1] if str(error) else "no reason"
        failed |= result in ("FAILED", "NOT RUN")
        seconds = time.monotonic() - began
        cell = text.replace("|", "/")
        print(f"| {check.name} | {result} | {cell} | {seconds:.0f} |", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
