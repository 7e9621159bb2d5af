"""A module's docstring that names its callers, as in "Called by `engine.py`", names true ones."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOTS = ("components", "images", "kfp_tfjob", "pipelines", "trainer", "uploader")
_SENTENCE = re.compile(r"\b[Cc]alled\s+by\s[^.;]*(?:\.py[^.;]*)+", re.DOTALL)
_FILE = re.compile(r"`([\w/]+\.py)`")


def modules() -> Iterator[Path]:
    """Yield the product's modules; a link to a folder is not followed."""
    repository = Path(__file__).parents[2]
    for root in ROOTS:
        for path in sorted((repository / root).rglob("*.py")):
            if path.resolve() == path:
                yield path.relative_to(repository)


def imports(path: Path) -> set[str]:
    """Return the dotted names of the modules that a module may import, and of their contents."""
    package = ["kfp_tfjob", *path.parts[:-1]] if path.parts[0] != "kfp_tfjob" else path.parts[:-1]
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parents = list(package[: len(package) - node.level + 1]) if node.level else []
            source = ".".join([*parents, *(node.module or "").split(".")]).strip(".")
            names |= {source, *(f"{source}.{alias.name}" for alias in node.names)}
    return names


def stated_callers() -> Iterator[tuple[str, str]]:
    """Yield each module, and a file that its docstring names as a caller."""
    for path in modules():
        docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
        for sentence in _SENTENCE.findall(docstring):
            for caller in _FILE.findall(sentence):
                yield path.as_posix(), caller


@pytest.mark.parametrize(("module", "caller"), stated_callers())
def test_a_stated_caller_imports_the_module(repository: Path, module: str, caller: str) -> None:
    name = module.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    name = name if name.startswith(("kfp_tfjob.", "images.")) else f"kfp_tfjob.{name}"
    candidates = [path for path in modules() if path.as_posix().endswith(f"/{caller}")]
    assert candidates, f"{module} names {caller}, which does not exist"
    assert any(name in imports(path) for path in candidates), f"{caller} does not import {module}"
