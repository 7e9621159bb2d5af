"""Names are nouns of the field, and docstrings name the thing: two counts that must not rise.

A few of each are right where they stand, such as the field `left` of a documented dataclass, so
the limits are rates of the whole product and not zero.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

# Words that answer "what kind of thing is it?" with "something".
VAGUE = {
    *("asked", "both", "found", "given", "held", "it", "kept", "known", "known_as", "later"),
    *("left", "made", "mine", "more", "one", "other", "others", "ours", "rest", "right_one"),
    *("said", "seen", "shown", "stuff", "taken", "theirs", "there", "these", "thing", "things"),
    *("those", "told", "wanted", "what", "whole"),
}
# Words that are nouns, but say no more.
EMPTY = {"data", "item", "result", "text", "value"}
# Sentences that a reader reads twice.
RIDDLES = [
    re.compile(pattern, re.MULTILINE)
    for pattern in (
        r"\b[Rr]eturns? what\b",
        r"^(What|Who|Whether what)\b",
        r"\b(those|that|the ones?) of\b",
        r"\b(knows|has|have|gives?|makes?|takes?) (no|none|nothing)\b",
        r"\b(beside|shall|whatever|whoever|a try|tries of)\b",
        r"\b(of which|for which|from which|as .{1,20} are not)\b",
        r"\bthe \w+ of (the|a|its) \w+ of\b",
    )
]
ROOTS = ("components", "images", "kfp_tfjob", "pipelines", "trainer", "uploader")


def modules(repository: Path) -> Iterator[tuple[str, ast.Module]]:
    """Yield the source and the tree of each module; a link to a folder is not followed."""
    for root in ROOTS:
        for path in (repository / root).rglob("*.py"):
            name = path.relative_to(repository).as_posix()
            is_link = any((repository / parent).is_symlink() for parent in Path(name).parents)
            if not is_link:
                source = path.read_text()
                yield source, ast.parse(source)


def bound_names(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id.strip("_")
        elif isinstance(node, ast.arg):
            yield node.arg.strip("_")


def sentences(source: str, tree: ast.Module) -> Iterator[str]:
    """Yield the docstrings and the comments of a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string.lstrip("# ")


def test_names_are_nouns_of_the_field(repository: Path) -> None:
    names = [name for _, tree in modules(repository) for name in bound_names(tree)]
    vague, empty = (sum(name in words for name in names) for words in (VAGUE, EMPTY))
    assert vague <= 0.002 * len(names), f"{vague} vague names of {len(names)}"
    assert empty <= 0.04 * len(names), f"{empty} empty words of {len(names)} names"


def test_docstrings_and_comments_are_read_once(repository: Path) -> None:
    texts = [text for source, tree in modules(repository) for text in sentences(source, tree)]
    riddles = [text for text in texts for pattern in RIDDLES if pattern.search(text)]
    assert len(riddles) <= 0.005 * len(texts), "\n".join(riddles)
