"""CONTRIBUTING.md names modules, targets and identifiers; each of them exists."""

import ast
import re
from collections.abc import Iterator

from tests.docs.blocks import ROOT

PAGE = (ROOT / "CONTRIBUTING.md").read_text()
NAMES = re.findall(r"`([^`\n]+)`", PAGE)
IDENTIFIER = re.compile(r"([A-Z][a-z]\w*\.)?_?[A-Za-z]\w*")  # Class.method, but not README.md
PACKAGES = (
    "components",
    "kfp_tfjob",
    "pipelines",
    "trainer",
    "uploader",
    "tests",
    "images",
    "release",
)
# Of Python, of make, of files that are not Python, of options, and the start of names.
OTHERS = {
    *("except", "path"),
    *("KF_PIPELINES_ENDPOINT", "WRITE_GOLDEN"),
    *("lastVerified", "boolean", "train_", "storage_secret", "doctor", "submit"),
}


def bound() -> Iterator[str]:
    """Yield the names of all classes, functions, parameters, variables and fields."""
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                    yield node.name
                elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                    yield node.id
                elif isinstance(node, ast.arg):
                    yield node.arg


def test_every_identifier_exists() -> None:
    known = {*bound()} | OTHERS
    named = {part for name in NAMES if IDENTIFIER.fullmatch(name) for part in name.split(".")}
    assert len(named) > 40
    missing = sorted(named - known)
    assert not missing, "CONTRIBUTING.md names these, but nothing is called so"


def test_every_file_exists() -> None:
    paths = {name.split("#")[0] for name in NAMES if re.fullmatch(r"[\w./-]+/[\w.-]*", name)}
    missing = {path for path in paths if not (ROOT / path).exists()}
    # Some paths are relative to the package in the same recipe.
    missing = {path for path in missing if not list(ROOT.glob(f"*/{path}"))}
    missing = {path for path in missing if not list(ROOT.glob(f"*/*/{path}"))}
    assert not missing - {"site/", "dist/compiled"}


def test_every_target_exists() -> None:
    targets = {*re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)}
    named = {name.split()[1] for name in NAMES if re.match("make [a-z]", name)}
    assert len(named) > 10 and named <= targets


def test_every_proof_outside_ci_has_its_last_run() -> None:
    """CI runs `make test` and `make test-cluster`; other tests are in the table with a date."""
    makefile = (ROOT / "Makefile").read_text()
    targets = {*re.findall(r"^(test-[a-z]+|fuzz|pictures):", makefile, re.MULTILINE)}
    section = PAGE.partition("## What CI does not run")[2].partition("\n## ")[0]
    rows = [row.strip("| ").split(" | ") for row in section.splitlines() if row.startswith("| ")]
    rows = rows[1:]  # without the head
    commands = {command.strip("`").removeprefix("make ") for _, command, _, _ in rows}
    assert targets - {"test-cluster"} <= commands
    for name, *_, last in rows:
        assert re.match(r"2\d{3}-\d\d-\d\d\b|not recorded$", last), name
