"""What an editor sees of a checkout: every module has one path, and imports lead to it."""

import ast
import random
from pathlib import Path

import jedi

from tests.conftest import PACKAGES


def imports(path: Path) -> list[tuple[int, int]]:
    """Return the line and column of each name that a module imports from the project."""
    return [
        (alias.lineno, alias.col_offset)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom)
        if node.level or (node.module or "").startswith("kfp_tfjob.")
        for alias in node.names
    ]


def test_imports_lead_to_their_definitions(repository: Path) -> None:
    chance = random.Random(1)
    for package in PACKAGES:
        modules = sorted((repository / "kfp_tfjob" / package).rglob("*.py"))
        path = chance.choice([path for path in modules if imports(path)] or modules)
        for line, column in imports(path)[:2]:
            # `path.resolve()` is what an editor opens: the real folder and not the link to it.
            script = jedi.Script(path=path.resolve(), project=jedi.Project(repository))
            (found,) = script.goto(line, column, follow_imports=True)
            assert found.module_path.is_relative_to(repository), (path, line)
            # In a real folder, a relative import leads to its other modules.
            tops = ("kfp_tfjob.", f"{package}.")
            assert found.full_name.startswith(tops), (path, line, found.full_name)
