"""Makes untrusted text safe for the place where it is shown.

Column names, replies of a store and the output of a program may hold anything: terminal control
sequences, a newline that begins a false log line, Markdown and HTML. Use the function for the place
where the text is shown; each also limits the length.
"""

from __future__ import annotations

import html as _html
import re
from collections.abc import Iterable, Iterator
from urllib.parse import urlsplit

MASK = "******"  # of one length, so that it does not show the secret's
_SHORTEST_SECRET = 6  # characters; masking a shorter value would hide words and parts of words
# Characters of one piece of text: a quoted reply stays readable and cannot fill a page or a log.
MOST = 2000
MOST_OF_NAME = 500  # characters of a code span, which holds a name and no reply
MOST_LINES = 200  # a stack trace fits; a program's whole output does not
_MOST_OF_LINE = 5 * MOST  # a message has up to four pieces
_WIDTH = 60  # characters; the side panel of Kubeflow Pipelines does not wrap fenced lines
_BAR = "\\|"  # a bar within a table's cell; a plain one would end the cell
_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
# Colors and the backspaces of progress bars; removed from what programs and libraries print.
_STEERING = re.compile(r"\x1b\[[0-9;]*[mK]|\x08+")
# Words that mean nothing in Markdown in any position. All others are names, or may be.
_PLAIN = re.compile(
    r"""[("'“]*(?:[^\W_]+(?:['’-][^\W_]+)*(?:\([^\W_]{1,2}\))?|\d+(?:[.,:]\d+)+|\d+%)[.,;:!?)"'”…]*|[–—…%]"""
)
_WORDS = re.compile(r"[^\s`]*`[^`]+`[^\s`]*|\S+")  # text between backticks is one word
_PARTS = re.compile(r"""([("'“]*)(.*?)([.,;:!?)"'”…]*)""")
_ORDINAL = re.compile(r"\d+[.)]")  # begins a list


def short(text: str, most: int) -> str:
    """Return text, cut to at most `most` characters."""
    return text if len(text) <= most else text[: most - 1] + "…"


def is_utf8(text: str) -> bool:
    """Return whether text can be written in UTF-8: half of a surrogate pair cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def uncolored(text: str) -> str:
    """Return text without colors and backspaces, for example a message of Keras.

    A name keeps them: `line` shows it with escapes. Cut text afterwards, or half a color remains.
    """
    return _STEERING.sub("", text)


def without_secrets(text: str, secrets: Iterable[str]) -> str:
    """Return text with secrets of at least six characters replaced, also those within another."""
    # The longest first, or the rest of one that contains another would stay.
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= _SHORTEST_SECRET:
            text = text.replace(secret, MASK)
    return text


def host_of(server: str) -> str:
    """Return the host of a server's URL, without a login or key that the URL may contain."""
    try:
        return urlsplit(server).hostname or "its server"
    except ValueError:
        return "its server"


def line(text: object, most: int = MOST) -> str:
    r"""Return text for one line of a terminal or a log.

    Unprintable characters become Python escapes, for example `\x1b` or `\n`. They include
    characters that change the writing direction, and characters that no file can hold.

    Args:
        text: Anything.
        most: Characters to keep.
    """
    shortened = short(str(text), most)
    if shortened.isprintable():
        return shortened
    return short("".join(c if c.isprintable() else _escaped(c) for c in shortened), most)


def lines(text: object, indent: str = "") -> str:
    """Return text of several lines for a terminal or a log.

    Args:
        text: Anything; each line is made safe, and colors are removed.
        indent: Put before each line but the first, so that none looks like a new log line.
    """
    split = uncolored(str(text)).expandtabs().split("\n")
    if len(split) > MOST_LINES:
        split = [*split[: MOST_LINES - 1], "…"]
    return f"\n{indent}".join(line(part, _MOST_OF_LINE) for part in split)


def code(text: object, most: int = MOST_OF_NAME) -> str:
    """Return text as one code span of Markdown; `(empty)` if there is no text."""
    span = line(text, most).replace("`", "'")
    if stripped := span.strip():
        # In the renderer of Kubeflow Pipelines, a backslash escapes the closing backtick.
        return f"`{stripped} `" if stripped.endswith("\\") else f"`{stripped}`"
    return f'`"{span}"`' if span else "(empty)"


def prose(text: object, most: int = MOST) -> str:
    """Return a sentence as Markdown within a paragraph or a cell: names become code spans.

    A name is any word with a character that may be Markdown syntax, or any text that is already
    between backticks.
    """
    words = _WORDS.findall(line(text, most))
    return " ".join(_prose_word(word, first=index == 0) for index, word in enumerate(words))


def row(*cells: str) -> str:
    """Return a row of a Markdown table; the cells are Markdown."""
    return f"| {' | '.join(cell.replace('|', _BAR) for cell in cells)} |"


def fence(text: Iterable[object]) -> list[str]:
    """Return the lines of a fenced Markdown block; lines of over 60 characters are wrapped."""
    # Backticks in the content could end the block.
    safe = (line(uncolored(str(content)).expandtabs()).replace("```", "'''") for content in text)
    return ["```", *(part for content in safe for part in _wrapped(content)), "```"]


def html(text: object, most: int = MOST) -> str:
    """Return text for HTML, between tags or as the value of an attribute."""
    return _html.escape(line(text, most))


def _escaped(char: str) -> str:
    if char in _ESCAPES:
        return _ESCAPES[char]
    number = ord(char)
    if number < 0x100:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def _prose_word(word: str, first: bool) -> str:
    """Return a word of `prose` as it is or, if it may be Markdown syntax, as a code span.

    Args:
        word: The word with its punctuation, which stays outside the code span.
        first: Whether it begins the sentence, where "1." would begin a list.
    """
    if first and _ORDINAL.fullmatch(word):
        return code(word)
    if _PLAIN.fullmatch(word):
        return word
    parts = _PARTS.fullmatch(word)  # punctuation, text, punctuation
    if not (parts and parts[2]):
        return word  # only punctuation
    before, text, after = parts.groups()
    if "(" in text and after.startswith(")"):  # a call, such as fit(x)
        text, after = f"{text})", after[1:]
    if len(text) > 2 and text[0] == text[-1] == "`":
        text = text[1:-1]
    return f"{before}{code(text, MOST)}{after}"


def _wrapped(text: str) -> Iterator[str]:
    """Yield a long line's parts, broken between words; a word wider than a line is split."""
    first = True
    while len(text) > (width := _WIDTH if first else _WIDTH - 2):
        space = text.rfind(" ", width // 2, width + 1)
        end = space if space > 0 else width
        yield text[:end] if first else f"  {text[:end]}"
        text, first = text[end:].removeprefix(" "), False
    yield text if first else f"  {text}"
