"""Make the pictures of the documentation, and the text of each page beside its picture.

    python -m tests.docs.pictures        (make pictures)

Two runs on the digits give all of them: the first one is published, and the second one, with two
epochs, is rejected. A picture shows what the product printed, apart from what differs from run to
run: ids of runs, times, speeds and folders have fixed values. So on one machine, the same code
gives the same bytes.

`make test` makes the same runs without a browser, and compares the texts. Another processor rounds
differently, so `masked` hides numbers.
"""

from __future__ import annotations

import argparse
import html
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from examples import digits
from kfp_tfjob.components.launch_tfjob.report import curves_html, parse
from tests.docs.blocks import ROOT

PICTURES = ROOT / "docs" / "pictures"
RUN_IDS = ("20261129-045220-8076", "20261129-050107-31c9")
FIRST = ("--label", "digit")
SECOND = ("--label", "digit", "--epochs", "2", "--workers", "0")
_HOME = "/home/me/.kfp-tfjob"  # stands for the folder of the runs
# Of the chief, by activity: the times of a run on two idle cores.
_SECONDS = {
    "start": 9.6,
    "compute": 6.8,
    "export": 1.4,
    "checkpoint": 0.3,
    "callbacks": 0.2,
    "data": 0.6,
}
# Lines of a run's output that depend on time, or on which process is faster.
_UNSTEADY = re.compile(
    r"\.\.\. working for|\[(chief|worker)-\d|\bms\b|[MG]B/s|rows/s|\d of \d running"
)
_TIME = re.compile(r" \d\d:\d\d:\d\d ")
_DIGEST = re.compile(r"\b[0-9a-f]{32,64}\b")
_NUMBER = re.compile(r"[+-]?\d[\d,.]*(?:e[+-]\d+)?%?")
_WIDEST = 118  # characters of a line in the picture of the terminal
_BLOCKS = ("h1", "h2", "h3", "p", "li", "tr", "pre", "figcaption", "text")

_TERMINAL = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"/><title>session</title><style>
body {{ margin: 0; padding: 14px 18px; background: #14181d; color: #e2e6ea; }}
pre {{ margin: 0; font: 12px/1.45 "DejaVu Sans Mono", monospace; white-space: pre; }}
</style></head><body><pre>{text}</pre></body></html>
"""


class Page(NamedTuple):
    """A page of the product as HTML, its text, and the size of its picture in pixels."""

    html: str
    text: str
    size: tuple[int, int]


def make(
    folder: Path, program: Sequence[str] = (sys.executable, "-m", "kfp_tfjob.pipelines")
) -> dict[str, Page]:
    """Run the pipeline twice in an empty folder, and return the pages by the pictures' names.

    Args:
        folder: The folder for the data and the runs.
        program: The command line of kfp-tfjob.
    """
    table, home = folder / "digits.csv", folder / "home"
    digits.write(table)
    outputs = []
    for arguments in (FIRST, SECOND):
        command = [*program, "run", "--data", str(table), "--home", str(home), *arguments]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        outputs.append(done.stdout)
    runs = sorted(path for path in (home / "runs").iterdir() if (path / "report.html").exists())
    first, second = runs
    names = {str(home): _HOME} | dict(zip((run.name for run in runs), RUN_IDS, strict=True))

    def steady(text: str) -> str:
        for name, replacement in names.items():
            text = text.replace(name, replacement)
        return text

    history = parse((first / "output" / "progress.jsonl").read_text())
    seconds = {name: _SECONDS.get(name, 0.1) for name in sorted(history.seconds)}
    training = curves_html(replace(history, seconds=seconds), "Training of digits")
    assert _without_times(training) == _without_times((first / "training.html").read_text())
    pages = {
        "report": (steady((first / "report.html").read_text()), (860, 1120)),
        "rejected-report": (steady((second / "report.html").read_text()), (860, 1120)),
        "data-report": (steady((second / "data.html").read_text()), (1100, 1000)),
        "training": (training, (860, 780)),
    }
    session = _session(steady(outputs[0]).replace(str(folder), "."))
    return {
        **{name: Page(content, text_of(content), size) for name, (content, size) in pages.items()},
        "session": Page(
            _TERMINAL.format(text=html.escape(session)),
            session,
            (900, 28 + round(17.4 * session.count("\n"))),
        ),
    }


def text_of(page: str) -> str:
    """Return the text of a page, one line for each paragraph, row of a table or text of a plot."""
    root = ElementTree.fromstring(page.removeprefix("<!doctype html>"))
    lines = []
    for block in root.iter():
        if block.tag in _BLOCKS:
            cells = list(block) if block.tag == "tr" else [block]
            words = (" ".join(" ".join(_texts(cell)).split()) for cell in cells)
            lines.append(" | ".join(words).strip(" |"))
    return _DIGEST.sub("DIGEST", "\n".join(line for line in lines if line) + "\n")


def masked(text: str) -> str:
    """Return a text without its numbers, which another processor may round differently."""
    return _NUMBER.sub("N", text)


def _texts(element: ElementTree.Element) -> list[str]:
    """Return the texts in an element, apart from drawings, whose texts have their own lines."""
    parts = [element.text or ""]
    for child in element:
        if child.tag not in ("svg", "li"):
            parts += _texts(child)
        parts.append(child.tail or "")
    return parts


def _without_times(page: str) -> list[str]:
    """Return the text of a page of a training without the table of the chief's time."""
    head, _, rest = text_of(page).partition("The chief's time")
    return [head, rest.partition("Final values")[2]]


def _session(output: str) -> str:
    """Return a run's command and the lines of its output that are the same in every run."""
    lines = ["$ kfp-tfjob run --data digits.csv --label digit"]
    for line in output.splitlines():
        if not _UNSTEADY.search(line):
            line = _DIGEST.sub(lambda digest: digest[0][:8] + "…", _TIME.sub(" ", line))
            lines.append(line if len(line) <= _WIDEST else line[: _WIDEST - 1] + "…")
    return "\n".join(lines) + "\n"


def take(page: Page, picture: Path, browser: str, folder: Path) -> None:
    """Take a page's picture with Chromium."""
    source = folder / f"{picture.stem}.html"
    source.write_text(page.html)
    options = (
        *("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
        *("--force-device-scale-factor=1", "--blink-settings=preferredColorScheme=1"),
        f"--window-size={page.size[0]},{page.size[1]}",
        f"--user-data-dir={folder / 'browser'}",
        f"--screenshot={picture}",
    )
    subprocess.run([browser, *options, source.as_uri()], check=True, capture_output=True)


def main() -> None:
    """Write all pictures and texts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--browser", default="chromium", help="Debian's chromium, or another one")
    parser.add_argument("--folder", type=Path, default=ROOT / ".pictures", help="of the runs")
    arguments = parser.parse_args()
    if not shutil.which(arguments.browser):
        sys.exit(f"{arguments.browser} is not installed; on Debian: apt-get install chromium")
    shutil.rmtree(arguments.folder, ignore_errors=True)
    arguments.folder.mkdir(parents=True)
    PICTURES.mkdir(exist_ok=True)
    for name, page in make(arguments.folder).items():
        take(page, PICTURES / f"{name}.png", arguments.browser, arguments.folder)
        (PICTURES / f"{name}.txt").write_text(page.text)
        print(PICTURES / f"{name}.png")
    shutil.rmtree(arguments.folder)


if __name__ == "__main__":
    main()
