"""The texts beside the documents' pictures are what the product prints today."""

from difflib import unified_diff

import pytest

from tests.docs import pictures
from tests.docs.blocks import DOCUMENTS

KILOBYTE = 1000


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, pictures.Page]:
    return pictures.make(tmp_path_factory.mktemp("pictures"), "--workers", "0")


def changes_in(name: str, text: str) -> list[str]:
    """Return the lines that a page no longer has or that are new, each with - or +."""
    stored = pictures.masked((pictures.PICTURES / f"{name}.txt").read_text())
    lines = unified_diff(stored, pictures.masked(text), lineterm="", n=0)
    return [line for line in lines if not line.startswith(("---", "+++", "@@"))]


@pytest.mark.timeout(1800)  # two runs
def test_each_page_reads_as_its_picture(pages: dict[str, pictures.Page]) -> None:
    """If this fails and the change is intended, run `make pictures` and commit docs/pictures."""
    for kind in ("png", "txt"):
        assert {path.stem for path in pictures.PICTURES.glob(f"*.{kind}")} == set(pages)
    changes = {name: changes_in(name, page.text) for name, page in pages.items()}
    assert {name: lines for name, lines in changes.items() if lines} == {}


def test_each_picture_is_small_and_shown_by_a_document() -> None:
    text = "\n".join(path.read_text() for path in DOCUMENTS)
    sizes = []
    for path in pictures.PICTURES.glob("*.png"):
        assert f"pictures/{path.name})" in text, path.name
        content = path.read_bytes()
        assert content.startswith(b"\x89PNG"), path.name
        sizes.append(len(content))
    assert max(sizes) < 400 * KILOBYTE and sum(sizes) < 1000 * KILOBYTE


def test_numbers_are_masked_and_words_are_not() -> None:
    text = "accuracy 0.9604 beats 0.0899  (95% bound +0.834)\n0.25\n1 is 7\n9 is 3\n1,797 rows"
    assert pictures.masked(text) == ["accuracy N beats N (N bound N)", "N is N", "N rows"]


def test_the_text_of_a_page_has_its_blocks_in_order() -> None:
    page = "<!doctype html><html><body><h1>a</h1><p>b <b>c</b> d</p><table><tr><td>e</td>"
    page += "<td><svg><text>f</text></svg></td><td>g</td></tr></table></body></html>"
    assert pictures.text_of(page) == "a\nb c d\ne |  | g\nf\n"
