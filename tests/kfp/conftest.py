"""The fixtures of the scenarios, the `why` of those that fail, and the table of all of them."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.kfp import cluster
from tests.kfp.browser import Browser
from tests.kfp.lab import Lab
from tests.kfp.prerequisites import command
from tests.kfp.shares import shares

_LAB = pytest.StashKey[Lab]()
_ROW = "run on Kubeflow Pipelines"
_TITLES = ("scenario", "outcome", "run", "verdict", "seconds", "ours", "drivers", "Argo")
_LONGEST = ("schedule", "terminate", "missing_secret", "lost", "form", "publish", "evaluate")


@pytest.fixture
def lab(request: pytest.FixtureRequest) -> Lab:
    """The lab, with the runs of this scenario alone."""
    mine = request.node.stash[_LAB] = Lab.attached()
    return mine


@pytest.fixture
def row(lab: Lab, request: pytest.FixtureRequest) -> Callable[..., None]:
    """Note a run for the table, as it is now; with `since`, only what was after that time."""
    name = request.node.name.removeprefix("test_").replace("_", " ")

    def note(run_id: str, what: str = "", since: float = 0) -> None:
        found = shares(cluster.workflow(run_id), cluster.pods(run_id), since)
        run = lab.client.run(run_id)
        parts = (found.ours, found.drivers, found.argo)
        cells = [f"{name}, {what}" if what else name, run_id[:8], run.verdict or run.state]
        cells += [f"{found.seconds:.0f}", *(f"{part / found.seconds:.0%}" for part in parts)]
        request.node.user_properties.append((_ROW, cells))

    return note


@pytest.fixture
def browser(lab: Lab, tmp_path: Path) -> Iterator[Browser | None]:
    """A browser for the UI; None where there is none."""
    if not lab.settings.chromium:
        yield None
        return
    with Browser(lab.settings, tmp_path) as opened:
        yield opened


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item):
    """Show what `kfp-tfjob why` says about the runs of a scenario that failed."""
    report = yield
    if report.failed and _LAB in item.stash:
        for run_id in item.stash[_LAB].started:
            report.sections.append((f"kfp-tfjob why {run_id}", command("why", run_id).stdout))
    return report


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not any(word in item.name for word in _LONGEST))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print a line for each run, and one for each scenario that noted none."""
    rows = []
    for outcome in ("passed", "skipped", "failed", "error"):
        for report in terminalreporter.stats.get(outcome, []):
            found = [cells for name, cells in report.user_properties if name == _ROW]
            name = report.nodeid.rpartition("::test_")[2].replace("_", " ")
            found = found or [[name, *[""] * (len(_TITLES) - 2)]]
            rows += [(cells[0], outcome, *cells[1:]) for cells in found]
    if not rows:
        return
    terminalreporter.section("where the seconds of each run went")
    widths = [max(map(len, column)) for column in zip(_TITLES, *rows, strict=True)]
    for cells in (_TITLES, *sorted(rows)):
        padded = [f"{cell:{width}}" for cell, width in zip(cells, widths, strict=True)]
        terminalreporter.write_line("  ".join(padded).rstrip())
