"""Whatever comes in, a StepError comes out, within stated time and memory and inside its folder.

`make test` tries the same examples every time; `make fuzz` searches for as long as it is told to.
"""

import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.fuzz.bounds import bounded
from tests.fuzz.targets import TARGETS, enter

EXAMPLES = 25  # of each target in `make test`
_ROUND = 200  # examples between two looks at the clock
_SECONDS = float(os.environ.get("FUZZ_SECONDS", "1200")) / len(TARGETS)
_FREELY = {
    "database": None,
    "deadline": None,
    "suppress_health_check": list(HealthCheck),
}


def _attempt(name: str, count: Counter[str]) -> Callable[[], None]:
    """Return a test that tries one example of a target after the other."""
    target = TARGETS[name]

    @given(target.examples)
    def attempt(example: object) -> None:
        scratch = Path(tempfile.mkdtemp(prefix="fuzz-"))
        try:
            with bounded():
                accepted = enter(target, example, scratch)
            count["accepted" if accepted else "refused"] += 1
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    return attempt


@pytest.mark.parametrize("name", TARGETS)
def test_a_few_examples_do_no_harm(name: str) -> None:
    count: Counter[str] = Counter()
    test = settings(max_examples=EXAMPLES, derandomize=True, **_FREELY)(_attempt(name, count))
    test()
    assert count["refused"], f"nothing was refused: {count}"


@pytest.mark.fuzz
@pytest.mark.parametrize("name", TARGETS)
def test_a_search_finds_nothing(name: str) -> None:
    deadline = time.monotonic() + _SECONDS
    while time.monotonic() < deadline:
        test = settings(max_examples=_ROUND, phases=[Phase.generate, Phase.shrink], **_FREELY)(
            _attempt(name, Counter())
        )
        seed(time.time_ns())(test)()
