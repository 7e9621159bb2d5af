"""Text from anywhere, made safe for the place where it is shown.

The names of columns, what a store answers and the lines of a program may hold anything: sequences
that steer a terminal, a newline that begins a log line of its own, Markdown and HTML. Use the
function of the place where text is shown; each bounds the length too.
"""

from __future__ import annotations

import html as _html
import logging
import re
from collections.abc import Iterable, Iterator
from typing import TextIO

MOST = 2000  # characters of one piece of text
MOST_OF_NAME = 500  # of a code span
MOST_LINES = 200
_MOST_OF_LINE = 5 * MOST  # a message has up to four pieces
_WIDTH = 60  # characters that fit the side panel of Kubeflow Pipelines, which wraps no fenced line
_BAR = "\\|"  # in the cell of a table
_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
# Colours and the backspaces of progress bars: of a program's lines they are left out.
_STEERING = re.compile(r"\x1b\[[0-9;]*[mK]|\x08+")
# Words that mean nothing in Markdown, wherever they stand. All others are names, or might be.
_PLAIN = re.compile(
    r"""[("'“]*(?:[^\W_]+(?:['’-][^\W_]+)*(?:\([^\W_]{1,2}\))?|\d+(?:[.,:]\d+)+|\d+%)[.,;:!?)"'”…]*|[–—…%]"""
)
_WORDS = re.compile(r"[^\s`]*`[^`]+`[^\s`]*|\S+")  # what stands between backticks is one word
_PARTS = re.compile(r"""([("'“]*)(.*?)([.,;:!?)"'”…]*)""")
_ORDINAL = re.compile(r"\d+[.)]")  # begins a list


def short(text: str, most: int) -> str:
    """Return text of at most `most` characters."""
    return text if len(text) <= most else text[: most - 1] + "…"


def line(text: object, most: int = MOST) -> str:
    r"""Return text for one line of a terminal or a log.

    What is not printable is shown as Python would write it, for instance `\x1b` or `\n`; that
    includes what turns the direction of writing, and what no file can hold.

    Args:
        text: Anything.
        most: Characters to keep.
    """
    said = short(str(text), most)
    if said.isprintable():
        return said
    return short("".join(c if c.isprintable() else _escaped(c) for c in said), most)


def lines(text: object, indent: str = "") -> str:
    """Return text of several lines for a terminal or a log.

    Args:
        text: Anything; its lines are made safe one by one, and its colours are left out.
        indent: Put before each line but the first, so that none looks like a line of the log.
    """
    found = _STEERING.sub("", str(text)).expandtabs().split("\n")
    kept = found if len(found) <= MOST_LINES else [*found[: MOST_LINES - 1], "…"]
    return f"\n{indent}".join(line(part, _MOST_OF_LINE) for part in kept)


def code(text: object, most: int = MOST_OF_NAME) -> str:
    """Return text as one code span of Markdown; without any text, a word that says so."""
    said = line(text, most).replace("`", "'")
    if shown := said.strip():
        # To the renderer of Kubeflow Pipelines a backslash hides the backtick that ends the span.
        return f"`{shown} `" if shown.endswith("\\") else f"`{shown}`"
    return f'`"{said}"`' if said else "(empty)"


def prose(text: object, most: int = MOST) -> str:
    """Return a sentence as Markdown within a paragraph or a cell: names become code spans.

    A name is every word with a character that Markdown might take for its own, and what stands
    between backticks already.
    """
    words = _WORDS.findall(line(text, most))
    return " ".join(_word(word, first=index == 0) for index, word in enumerate(words))


def row(*cells: str) -> str:
    """Return a row of a Markdown table; the cells are Markdown."""
    return f"| {' | '.join(cell.replace('|', _BAR) for cell in cells)} |"


def fence(text: Iterable[object]) -> list[str]:
    """Return lines as a fenced block of Markdown, long ones wrapped."""
    found = (line(_STEERING.sub("", str(item)).expandtabs()).replace("```", "'''") for item in text)
    return ["```", *(part for item in found for part in _wrapped(item)), "```"]


def html(text: object, most: int = MOST) -> str:
    """Return text for HTML, between tags or as the value of an attribute."""
    return _html.escape(line(text, most))


def log_to(stream: TextIO, style: str = "%(asctime)s %(message)s") -> logging.Handler:
    """Return the handler that writes the lines of a log to a stream."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(LogFormatter(style, "%H:%M:%S"))
    return handler


class LogFormatter(logging.Formatter):
    """Lines of a log that nothing in them can break up or colour."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record; the lines after its first are indented."""
        return lines(super().format(record), indent="  ")


def _escaped(char: str) -> str:
    if char in _ESCAPES:
        return _ESCAPES[char]
    number = ord(char)
    if number < 0x100:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def _word(word: str, first: bool) -> str:
    if first and _ORDINAL.fullmatch(word):
        return code(word)
    if _PLAIN.fullmatch(word):
        return word
    before, name, after = _PARTS.fullmatch(word).groups()
    if not name:
        return word  # punctuation
    if "(" in name and after.startswith(")"):
        name, after = f"{name})", after[1:]
    if len(name) > 2 and name[0] == name[-1] == "`":
        name = name[1:-1]
    return f"{before}{code(name, MOST)}{after}"


def _wrapped(text: str) -> Iterator[str]:
    yield text[:_WIDTH]
    for start in range(_WIDTH, len(text), _WIDTH - 2):
        yield f"  {text[start : start + _WIDTH - 2]}"
