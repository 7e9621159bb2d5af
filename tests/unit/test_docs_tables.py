"""The generated parts of the documents are those of the declarations; WRITE_DOCS=1 writes them."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.docs import generated
from tests.docs.blocks import DOCUMENTS


def held(path: Path, before: str, after: str, text: str) -> None:
    """Compare the part of a document between two marks with what it should be."""
    head, found, rest = path.read_text().partition(before)
    assert found, f"{path.name} has no line {before.strip()}"
    present, found, tail = rest.partition(after)
    assert found, f"{path.name} has no line {after.strip()}"
    if os.environ.get("WRITE_DOCS"):
        path.write_text(head + before + text + after + tail)
    else:
        assert present == text, f"WRITE_DOCS=1 pytest {Path(__file__).name} writes it"


@pytest.mark.parametrize(
    ("document", "name", "text"),
    generated.PARTS,
    ids=[f"{Path(document).stem} {name}" for document, name, _ in generated.PARTS],
)
def test_generated_part(repository: Path, document: str, name: str, text: Callable) -> None:
    before, after = generated.marks(name)
    held(repository / document, before, after, text())


def test_every_mark_has_a_generator(repository: Path) -> None:
    marked = {
        (path.relative_to(repository).as_posix(), name)
        for path in DOCUMENTS
        for name in generated.parts_of(path)
    }
    assert marked == {(document, name) for document, name, _ in generated.PARTS}
