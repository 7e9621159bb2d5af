"""Text that came from outside, where it is shown: nothing in it steers the terminal or the page."""

import io
import logging
import re
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from kfp_tfjob.common import escaping
from kfp_tfjob.common.errors import DataError, Problem
from kfp_tfjob.common.escaping import MOST, MOST_OF_NAME
from kfp_tfjob.common.log_format import log_to

MARKDOWN = MarkdownIt("commonmark").enable(["table", "strikethrough"])
# What breaks a page most easily, between arbitrary characters.
NASTY = st.sampled_from(
    [
        "\x1b[2J\x1b]0;title\x07",
        "\n```\n<script>alert(1)</script>\n",
        "`",
        "``` x",
        "\n\n# heading\n",
        "- item",
        "1. item",
        "1) item",
        "| a | b |\n|---|---|\n",
        "<b onmouseover=x>",
        "[link](javascript:x)",
        "![image](http://x/y.png)",
        "class_weight on_bad_row",
        "\u202egnirts",
        "\ud800",
        "&lt;",
        "\\",
        "\\|",
        "x\\",
        "***",
        "===",
        "\r12:00:00 failed",
        "https://host/path?x=1",
    ]
)
TEXT = st.lists(st.one_of(NASTY, st.text(st.characters(), max_size=20)), max_size=8).map(" ".join)
PROPERTY = settings(max_examples=60, deadline=None)


def inline(markdown: str) -> list[Token]:
    """Return what the one paragraph consists of."""
    tokens = MARKDOWN.parse(markdown)
    assert [token.type for token in tokens] == ["paragraph_open", "inline", "paragraph_close"]
    return tokens[1].children


def is_safe(text: str) -> bool:
    return text.isprintable() and text.encode() is not None


@PROPERTY
@given(TEXT)
def test_a_line_is_one_line_without_control_characters(text: str) -> None:
    shown = escaping.line(text)
    assert is_safe(shown) and len(shown) <= MOST
    assert escaping.line(shown) == shown
    if text.isprintable() and len(text) <= MOST:
        assert shown == text


@PROPERTY
@given(TEXT)
def test_no_line_of_a_log_is_made_by_what_it_says(text: str) -> None:
    stream = io.StringIO()
    log_to(stream).handle(logging.LogRecord("x", 20, "", 0, "column %s", (text,), None))
    first, *more = stream.getvalue().removesuffix("\n").split("\n")
    assert re.match(r"\d\d:\d\d:\d\d column ", first)
    assert all(item.startswith("  ") for item in more)
    assert all(is_safe(item) for item in (first, *more))


@PROPERTY
@given(TEXT)
def test_a_name_is_one_code_span(text: str) -> None:
    shown = escaping.code(text)
    assert len(shown) <= MOST_OF_NAME + 4
    (only,) = inline(shown)
    assert only.type == ("code_inline" if text else "text")
    assert is_safe(only.content)


@PROPERTY
@given(TEXT)
def test_a_sentence_is_text_and_code_spans(text: str) -> None:
    shown = escaping.prose(text)
    if not text.strip():
        return
    found = inline(shown)
    assert {token.type for token in found} <= {"text", "code_inline"}
    plain = "".join(token.content for token in found if token.type == "text")
    assert not set(plain) & set("_*<>[]`|~\\&#")
    assert len(shown) <= 3 * MOST


@PROPERTY
@given(TEXT, TEXT)
def test_a_row_has_the_cells_it_was_given(one: str, other: str) -> None:
    cells = escaping.row(escaping.code(one), escaping.prose(other))
    table = "\n".join([escaping.row("a", "b"), "|---|---|", cells, "", "after"])
    tokens = MARKDOWN.parse(table)
    assert [token.type for token in tokens].count("td_open") == 2
    assert tokens[-2].content == "after"
    cell = next(token for token in tokens if token.type == "td_open")
    (shown,) = tokens[tokens.index(cell) + 1].children
    assert shown.content == (escaping.code(one).strip("`") if one else "(empty)")


@PROPERTY
@given(st.lists(TEXT, max_size=4))
def test_a_block_is_one_block_of_short_lines(text: list[str]) -> None:
    shown = escaping.fence(text)
    (only,) = MARKDOWN.parse("\n".join(shown))
    assert only.type == "fence" and not only.info
    assert all(len(part) <= 60 and is_safe(part) for part in shown)


@PROPERTY
@given(TEXT)
def test_html_holds_no_element(text: str) -> None:
    seen = []

    class Page(HTMLParser):
        def handle_starttag(self, tag, attributes):
            seen.append((tag, attributes))

        def handle_data(self, data):
            assert is_safe(data)

    page = Page()
    page.feed(f"<p title='{escaping.html(text)}'>{escaping.html(text)}</p>")
    assert seen == [("p", [("title", escaping.line(text))])]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            "gate.foo is not known. Fix: correct on_bad_row, or class_weight.",
            "`gate.foo` is not known. Fix: correct `on_bad_row`, or `class_weight`.",
        ),
        ("run `kfp-tfjob run`, again", "run `kfp-tfjob run`, again"),
        ("(see s3://b/x_y/failure.md)", "(see `s3://b/x_y/failure.md`)"),
        ("1,797 rows, 99.5 to 3: 12 %", "1,797 rows, 99.5 to 3: 12 %"),
        (
            "1 replica(s) of model.py:build_model(dataset)",
            "1 replica(s) of `model.py:build_model(dataset)`",
        ),
        ("did you mean 'seed'?", "did you mean 'seed'?"),
        ("a\x1b[31mred", "`a\\x1b[31mred`"),
        ("C:\\ on_bad_row", "`C:\\ ` `on_bad_row`"),
    ],
)
def test_names_are_marked_and_words_are_not(text: str, shown: str) -> None:
    assert escaping.prose(text) == shown


def test_colours_of_a_program_are_left_out_of_its_lines() -> None:
    assert escaping.lines("\x1b[31mred\x1b[0m\nplain\x07") == "red\nplain\\x07"


def test_every_message_is_safe_on_a_terminal() -> None:
    """A header with an ESC sequence and a newline, as it comes out of a quoted field of a CSV."""
    name = 'a\x1b[2J"\n12:00:00 publish: done'
    one = str(DataError(Problem(f"column {name} is twice there", name, [name], f"drop {name}")))
    assert is_safe(one) and "\\x1b[2J" in one
    many = str(DataError(Problem("x", "y" * 100_000, fix="drop y"), f"plain {name}"))
    assert all(is_safe(part) for part in many.split("\n")) and len(many) < 3 * MOST
    assert " drop y." in many
