"""The import graph: which package may import which, parsed from the source of every module."""

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from tests.install.test_install import LEAST, reachable

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "kfp_tfjob"
# A module imports from its own package and from those to the right of it.
GRAPH = (
    "pipelines > serving > components > trainer > judging > features > user_code > checks"
    " > cluster > pages > jobs > options > registry > uploader > storage > common > supervisor"
)
PACKAGES = GRAPH.split(" > ")
PACKAGE = "kfp_tfjob"
# What every step may import, besides its own folder and the packages.
SHARED = {"components.step", "components.summary", "components"}
SHARED |= {"components.notify", "components.notify_end", "components.webhook"}
SHARED |= {"components.cards", "components.code_copy", "components.task_claim"}
SHARED |= {"components.parameter_docs"}


def modules() -> dict[str, Path]:
    """Every module of the packages by its name within the package."""
    paths = (path for package in PACKAGES for path in (SOURCES / package).rglob("*.py"))
    names = {path.relative_to(SOURCES).with_suffix("").as_posix(): path for path in paths}
    return {name.replace("/", ".").removesuffix(".__init__"): path for name, path in names.items()}


MODULES = modules()


def imported(name: str, path: Path) -> set[str]:
    """Every absolute name that a module imports anywhere, in functions and TYPE_CHECKING too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = f"{PACKAGE}.{name}".split(".")
            if path.name == "__init__.py":
                above.append("__init__")
            base = ".".join(above[: -node.level]) + "." if node.level else ""
            found |= {f"{base}{node.module or ''}".rstrip(".") + f".{it.name}" for it in node.names}
    return found


def of_the_project(names: set[str]) -> set[str]:
    """The modules of the packages among imported names."""
    found = set()
    for name in names:
        if name.partition(".")[0] == PACKAGE and name != PACKAGE:
            own = name.removeprefix(f"{PACKAGE}.")
            found.add(own if own in MODULES else own.rpartition(".")[0])
    return found


@cache  # and not at the import: every process of the tests imports every file of tests
def imports() -> dict[str, set[str]]:
    """What every module imports."""
    return {name: imported(name, path) for name, path in MODULES.items()}


@cache
def edges() -> dict[str, set[str]]:
    """The modules of the packages that every module imports."""
    return {name: of_the_project(found) for name, found in imports().items()}


def wrongly_imported(package: str, path: Path) -> Iterator[str]:
    """Yield file and line of each absolute import of the own package, or relative one of another.

    Kubeflow Pipelines copies the functions of component.py into a file of their own, and the packed
    supervisor runs `__main__.py` outside its package.
    """
    tree = ast.parse(path.read_text())
    copied = set()
    if path == SOURCES / "supervisor/__main__.py":
        copied = {*ast.walk(tree)}
    elif path.name == "component.py":
        functions = (node for node in tree.body if isinstance(node, ast.FunctionDef))
        copied = {inner for function in functions for inner in ast.walk(function)}
    depth = len(path.relative_to(SOURCES).parent.parts)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom) and node not in copied:
            level = getattr(node, "level", 0)
            is_own = any(f"{it}.".startswith(f"{PACKAGE}.{package}.") for it in modules_of(node))
            if level > depth or (is_own and not level):
                yield f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}"


def modules_of(node: ast.Import | ast.ImportFrom) -> list[str]:
    """The names of the modules that an absolute import may name."""
    names = [alias.name for alias in node.names]
    if isinstance(node, ast.Import):
        return names
    return [] if node.level else [f"{node.module}.{name}" for name in names]


def package(module: str) -> str:
    return module.partition(".")[0]


def step(module: str) -> str | None:
    """The step that a module belongs to, if it is one of a step's folder."""
    parts = module.split(".")
    inside = len(parts) > 2 or (ROOT / "components" / parts[-1]).is_dir()
    return parts[1] if parts[0] == "components" and len(parts) > 1 and inside else None


def test_every_package_is_there_and_every_import_is_a_module():
    assert {package(name) for name in MODULES} >= set(PACKAGES)
    unknown = {(a, b) for a, targets in edges().items() for b in targets if b not in MODULES}
    assert not unknown


def test_imports_are_relative_within_a_package_and_absolute_across_packages():
    wrong = [
        line for name, path in MODULES.items() for line in wrongly_imported(package(name), path)
    ]
    assert not wrong, "\n".join(wrong)


def test_no_folder_of_the_root_is_imported_under_a_second_name():
    """A checkout finds `components/step.py` as kfp_tfjob.components.step and components.step."""
    linked = {path.name for path in SOURCES.iterdir() if path.is_symlink()}
    tests_and_tools = [
        path
        for folder in ("benchmarks", "examples", "images", "tests")
        for path in (ROOT / folder).rglob("*.py")
    ]
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in (*tests_and_tools, *MODULES.values())
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
        and not linked.isdisjoint(name.partition(".")[0] for name in modules_of(node))
    ]
    assert not wrong


def test_every_program_reaches_its_modules():
    """The tests of the wheel import these; what they cannot resolve they would not import."""
    for extra, least in LEAST.items():
        assert len(reachable(extra)) >= least, extra


def test_no_arrow_points_up():
    wrong = [
        f"{module} imports {target}"
        for module, targets in edges().items()
        for target in targets
        if PACKAGES.index(package(target)) < PACKAGES.index(package(module))
    ]
    assert not wrong


def test_no_circle():
    graph = defaultdict(set)
    for module, targets in edges().items():
        graph[module] |= targets - {module}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError(" <- ".join(error.args[1])) from error


def test_the_supervisor_imports_the_standard_library_only():
    for module, names in imports().items():
        if package(module) == "supervisor":
            assert {target.split(".")[0] for target in edges()[module]} <= {"supervisor"}
            others = {name.partition(".")[0] for name in names} - {PACKAGE}
            assert others <= set(sys.stdlib_module_names), module


def test_no_engine_imports_kfp():
    users = {
        module
        for module, names in imports().items()
        if any(name.partition(".")[0] in ("kfp", "kfp_kubernetes") for name in names)
    }
    assert users  # or this test finds nothing any more
    wrong = [it for it in users if package(it) != "pipelines" and not it.endswith(".component")]
    assert not wrong


def test_no_step_imports_another():
    """Preflight may: its work is to ask the checks of the other steps."""
    for module, targets in edges().items():
        mine = step(module)
        if package(module) == "components" and mine != "preflight":
            others = {target for target in targets if step(target) not in (None, mine)}
            assert not others, module
        if mine:
            assert {it for it in targets if package(it) == "components" and not step(it)} <= SHARED


def test_the_page_shows_the_same_graph():
    blocks = re.findall(r"```text\n(.*?)```", (ROOT / "docs/architecture.md").read_text(), re.S)
    assert [block.strip() for block in blocks if block.startswith("pipelines >")] == [GRAPH]
