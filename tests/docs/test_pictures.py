"""The texts beside the pictures of the documentation are what the product prints today."""

from pathlib import Path

import pytest

from tests.docs import pictures


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, pictures.Page]:
    return pictures.make(tmp_path_factory.mktemp("pictures"))


@pytest.mark.timeout(1800)  # two runs
def test_each_page_reads_as_its_picture(pages: dict[str, pictures.Page]) -> None:
    """If this fails and the change is intended, run `make pictures` and commit docs/pictures."""
    assert {path.stem for path in pictures.PICTURES.glob("*.png")} == set(pages)
    assert {path.stem for path in pictures.PICTURES.glob("*.txt")} == set(pages)
    for name, page in pages.items():
        golden = (pictures.PICTURES / f"{name}.txt").read_text()
        assert pictures.masked(page.text) == pictures.masked(golden), name
        assert "/tmp/" not in page.text and "/work/" not in page.text


def test_each_picture_is_shown_by_a_document() -> None:
    documents = [pictures.ROOT / "README.md", *pictures.ROOT.glob("docs/*.md")]
    documents += pictures.ROOT.glob("components/*/README.md")
    text = "\n".join(document.read_text() for document in documents)
    for path in pictures.PICTURES.glob("*.png"):
        assert f"pictures/{path.name})" in text
        assert path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size < 400_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [("accuracy 0.9604 beats 0.0899 (95% bound +0.834)", "accuracy N beats N (N bound N)")],
)
def test_numbers_are_masked(text: str, expected: str) -> None:
    assert pictures.masked(text) == expected


def test_the_text_of_a_page_has_its_blocks_in_order(tmp_path: Path) -> None:
    page = "<!doctype html><html><body><h1>a</h1><p>b <b>c</b> d</p><table><tr><td>e</td>"
    page += "<td><svg><text>f</text></svg></td><td>g</td></tr></table></body></html>"
    assert pictures.text_of(page) == "a\nb c d\ne |  | g\nf\n"
