"""Make the pictures of pages and of a terminal for the documents, each with its text beside it.

    python -m tests.docs.pictures        (make pictures)

A picture that somebody took once shows a program that no longer exists. So two new runs on the
digits give all pictures: the first one publishes its model, and the second one, of two epochs, is
rejected. Ids of runs, folders, times and speeds differ from run to run, so they get fixed values.
Then the same code gives the same bytes on one machine.

`make test` makes the runs on one replica without a browser, and compares the texts. Another
processor rounds differently, so `masked` hides numbers.
"""

from __future__ import annotations

import argparse
import html
import re
import shutil
import subprocess
import sys
import textwrap
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from examples import digits
from kfp_tfjob.components.launch_tfjob.report import curves_html, parse
from kfp_tfjob.pipelines.local.home import DEFAULT as HOME
from tests.docs.blocks import ROOT
from tests.local.local_run import end_run
from tests.terminal import environment, run_on_terminal, screen

PICTURES = ROOT / "docs/pictures"
LABEL = ("--label", "digit")
SHORT = ("--workers", "0", "--epochs", "2")  # too short to beat the first run's model
_RUN_IDS = ("20261129-045220-8076", "20261129-050107-31c9")
_WORK_FOLDER = "/home/me/work"  # replaces the folder that the runs were started in
_COLUMNS = 104  # of the terminal in the picture
_RUN_COLUMNS = 240  # of the terminal that runs get: too wide to truncate a line
# The times of a run on two idle cores, in seconds: of each step, and of the chief's activities.
_STEP_SECONDS = {
    "preflight": 3,
    "prepare_data": 5,
    "launch_tfjob": 28,
    "sync_output": 4,
    "evaluate": 9,
    "publish": 4,
    "finish": 3,
}
_CHIEF_SECONDS = {
    "start": 9.6,
    "compute": 6.8,
    "export": 1.4,
    "data": 0.6,
    "checkpoint": 0.3,
    "callbacks": 0.2,
}
_STEP_LINE = re.compile(r"^(✓ (\w+) .*?) +(?:\d+ \w+ ?)+$", re.MULTILINE)
_OUTPUT = re.compile(r"\d+ objects, [\d,]+ bytes")  # checkpoints and records depend on time
_DIGEST = re.compile(r"\b[0-9a-f]{32,64}\b")
_NUMBER = re.compile(r"[+-]?\d[\d,.]*(?:e[+-]\d+)?%?")
_BLOCKS = ("h1", "h2", "h3", "p", "li", "tr", "pre", "figcaption", "text")
_LINE_HEIGHT = 18  # pixels of a line of the terminal

_TERMINAL = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"/><title>session</title><style>
body {{ margin: 0; padding: 14px 18px; background: #14181d; color: #e2e6ea; }}
pre {{ margin: 0; font: 13px/{height}px "DejaVu Sans Mono", monospace; white-space: pre; }}
b {{ color: #5fc27e; font-weight: normal; }}
</style></head><body><pre>{text}</pre></body></html>
"""


class Page(NamedTuple):
    """A page of the product as HTML, its text, and the size of its picture in pixels."""

    html: str
    text: str
    size: tuple[int, int]


def make(folder: Path, *arguments: str) -> dict[str, Page]:
    """Run the pipeline twice in an empty folder, and return the pages by the pictures' names.

    Args:
        folder: The folder.
        arguments: More arguments of the first run, which change numbers and no words.

    Raises:
        AssertionError: A run failed; the error contains its output.
    """
    digits.write(folder / "digits.csv")
    outputs = [_run(folder, *LABEL, *arguments), _run(folder, *LABEL, *SHORT)]
    first, second = sorted(path.parent for path in folder.glob(f"{HOME}/runs/*/report.html"))
    names = {str(folder): _WORK_FOLDER, first.name: _RUN_IDS[0], second.name: _RUN_IDS[1]}

    def fixed(text: str) -> str:
        for name, replacement in names.items():
            text = text.replace(name, replacement)
        return text

    pages = {
        "report": (fixed((first / "report.html").read_text()), (960, 950)),
        "rejected-report": (fixed((second / "report.html").read_text()), (960, 950)),
        "data-report": (fixed((first / "data.html").read_text()), (1000, 1380)),
        "training": (_training(first), (960, 640)),
    }
    return {
        **{name: Page(page, text_of(page), size) for name, (page, size) in pages.items()},
        "session": _session(fixed(outputs[0]), *LABEL),
        "rejected-session": _session(fixed(outputs[1]), *LABEL, *SHORT),
    }


def _run(folder: Path, *arguments: str) -> str:
    """Run the pipeline on a terminal in a folder; return what the terminal shows at the end."""
    command = [sys.executable, "-m", "kfp_tfjob.pipelines", "run", "--data", "digits.csv"]
    variables = environment(PYTHONPATH=str(ROOT))
    try:
        code, output = run_on_terminal(
            [*command, *arguments], variables, _RUN_COLUMNS, folder=folder
        )
    finally:
        end_run(folder / HOME)
    assert code == 0, output
    return "\n".join(screen(output)).strip("\n") + "\n"


def _training(run: Path) -> str:
    """Return the page of a run's training with fixed times; the rest is the run's own page."""
    history = parse((run / "output/progress.jsonl").read_text())
    seconds = {name: _CHIEF_SECONDS[name] for name in history.seconds}
    page = curves_html(replace(history, seconds=seconds), "Training of digits")
    assert _without_times(page) == _without_times((run / "training.html").read_text())
    return page


def _without_times(page: str) -> list[str]:
    """Return the text of a page of a training without the table of the chief's time."""
    head, _, rest = text_of(page).partition("The chief's time")
    return [*head.splitlines()[1:], rest.partition("Final values")[2]]


def _session(output: str, *arguments: str) -> Page:
    """Return a terminal with a command and its output, in which times and speeds are fixed."""

    def step_line(row: re.Match[str]) -> str:
        detail, seconds = row[1], f"{_STEP_SECONDS[row[2]]} s"
        columns = _COLUMNS - len(" 28 s")  # the longest time, after a blank
        if len(detail) > columns:
            detail = f"{detail[: columns - 1]}…"
        return detail.ljust(_COLUMNS - len(seconds)) + seconds

    output = _STEP_LINE.sub(step_line, _OUTPUT.sub("14 objects, 526,097 bytes", output))
    command = " ".join(["$ kfp-tfjob run --data digits.csv", *arguments])
    rows = [
        part
        for row in [command, *output.splitlines()]
        for part in textwrap.wrap(row, _COLUMNS, drop_whitespace=False) or [""]
    ]
    text = "\n".join(rows) + "\n"
    colored = re.sub(r"✓|━+", lambda mark: f"<b>{mark[0]}</b>", html.escape(text))
    page = _TERMINAL.format(text=colored, height=_LINE_HEIGHT)
    return Page(page, text, (860, 28 + _LINE_HEIGHT * len(rows)))


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


def _texts(element: ElementTree.Element) -> list[str]:
    """Return the texts in an element, apart from plots and lists, which have lines of their own."""
    parts = [element.text or ""]
    for child in element:
        if child.tag not in ("svg", "li"):
            parts += _texts(child)
        parts.append(child.tail or "")
    return parts


def masked(text: str) -> list[str]:
    """Return the lines of a text without numbers, which another processor may round differently.

    Then an axis may have another mark, and a table of wrong rows another row. So lines of numbers
    alone are dropped, and equal lines in a row count once.
    """
    lines = [" ".join(_NUMBER.sub("N", line).split()) for line in text.splitlines()]
    return [line for line, _ in groupby(lines) if line != "N"]


def take(page: Page, picture: Path, browser: str, folder: Path) -> None:
    """Write a page's picture as PNG with Chromium.

    Args:
        page: The page.
        picture: The file to write.
        browser: The name of the program.
        folder: For the browser's files.
    """
    source = folder / f"{picture.stem}.html"
    source.write_text(page.html)
    options = (
        *("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
        *("--force-device-scale-factor=1", "--blink-settings=preferredColorScheme=1"),
        # Without them, a picture on a busy machine may lack parts that are not drawn yet.
        *("--run-all-compositor-stages-before-draw", "--virtual-time-budget=10000"),
        f"--window-size={page.size[0]},{page.size[1]}",
        f"--user-data-dir={folder / 'browser'}",
        f"--screenshot={picture}",
    )
    subprocess.run([browser, *options, source.as_uri()], check=True, capture_output=True)


def main() -> None:
    """Write all pictures and texts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--browser", default="chromium", help="a program of Chromium")
    parser.add_argument("--folder", type=Path, default=ROOT / ".pictures", help="for the runs")
    arguments = parser.parse_args()
    if not shutil.which(arguments.browser):
        sys.exit(f"{arguments.browser} is not installed; on Debian: apt-get install chromium")
    folder = arguments.folder.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    PICTURES.mkdir(exist_ok=True)
    for name, page in make(folder).items():
        take(page, PICTURES / f"{name}.png", arguments.browser, folder)
        (PICTURES / f"{name}.txt").write_text(page.text)
        print(PICTURES / f"{name}.png")
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
