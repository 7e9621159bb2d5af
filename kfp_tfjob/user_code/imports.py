"""Finds imports that the user's code cannot make where it runs.

A step or a replica gets the file, folder or zip that an option names, and nothing beside it. So a
module beside it would be missing there, and a change of it would change no digest.
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.errors import Problem, StepError
from kfp_tfjob.storage.store import Store
from kfp_tfjob.user_code.syntax import OfImage, Reached

# Those that the trainer or a step has loaded before the user's code.
LIBRARIES = {"boto3", "google", "keras", "kfp", "kfp_tfjob", "kubernetes", "numpy", "pyarrow"}
LIBRARIES |= {"pydantic", "tensorflow", "tf_keras", "urllib3", "yaml"}
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_NAMED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_CALLBACKS = "callbacks"  # a function that the trainer calls, besides the one that is named


class NotIncluded(OfImage):
    """Code imports a module that lies beside it; another image may contain the module, too."""


@dataclass(frozen=True)
class Place:
    """Where code was read from.

    Attributes:
        source: A path or an s3:// address, of a file, a folder or a zip.
        function: The function in it.
        store: The store, for an address.
    """

    source: str
    function: str
    store: Store | None = None

    @property
    def folder(self) -> str:
        """The folder that contains the code, as `model_code` names one."""
        if "://" in self.source:
            return self.source.rpartition("/")[0]
        folder = os.path.dirname(os.path.abspath(self.source))
        if os.path.isabs(self.source):
            return folder
        folder = os.path.relpath(folder)
        return folder if folder.startswith(".") else f"./{folder}"

    def has_module(self, name: str) -> bool:
        """Return whether a module lies beside the code, as far as that is known."""
        if "://" not in self.source:
            path = Path(self.folder, name)
            return path.with_suffix(".py").is_file() or any(path.glob("*.py"))
        try:
            folder = S3Address.parse(self.folder)
            files = (folder / f"{name}.py", folder / name / "__init__.py")
            return any(self.store.has(it) for it in files) if self.store else False
        except StepError:  # keys for the code alone may not allow to ask
            return False


@dataclass(frozen=True)
class Import:
    """An import of a top-level module.

    Attributes:
        path: The file that imports it.
        line: The line there.
        name: The module.
    """

    path: str
    line: int
    name: str

    def __str__(self) -> str:
        """Return where it is, for a message."""
        return f"{self.path}, line {self.line}: {self.name}"


def of_others(
    reached: Iterable[Reached],
    files: Mapping[str, bytes],
    entries: Collection[str],
    function: str = "",
) -> Iterator[Import]:
    """Yield the first import of each module that `files`, Python and the libraries do not have.

    Args:
        reached: The code, as `reachable` yields it.
        files: Content by relative path.
        entries: The files with which the code begins.
        function: The function that is called; empty for a program. Imports in other functions
            count only if they may run.
    """
    names: set[str] = set()
    for path, start, tree in reached:
        if not isinstance(tree, ast.Module):
            continue
        included = {*_modules_in(files, start), *_modules_in(files, PurePosixPath()), *LIBRARIES}
        for node in _executed(tree, function if path in entries else None):
            for name in _top_modules(node):
                if name not in names | included and name not in sys.stdlib_module_names:
                    names.add(name)
                    yield Import(path, node.lineno, name)


def without_package(reached: Iterable[Reached]) -> Iterator[Problem]:
    """Yield a problem for each relative import that leaves the top-level package.

    Args:
        reached: The code, as `reachable` yields it.
    """
    for path, start, tree in reached:
        if not isinstance(tree, ast.Module):
            continue
        depth = len(PurePosixPath(path).relative_to(start).parts) - 1
        for node in tree.body:
            if isinstance(node, ast.ImportFrom) and node.level > depth:
                yield Problem(
                    f"{path} is not in a package that its relative import could mean",
                    received=f"line {node.lineno}: {ast.unparse(node)}"[:200],
                    expected="a relative import only inside a folder with __init__.py",
                    fix=f"write it without the {'dots' if node.level > 1 else 'dot'}, and name the"
                    " folder of the code; or name a folder whose __init__.py imports the function",
                )


def _executed(tree: ast.Module, function: str | None) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yield the imports that run when a module is imported and its function is called.

    Args:
        tree: The module.
        function: Its function; empty for a program, None for a module that others import.
    """
    called = _called(tree, function)
    for node in _nodes(tree.body, function, called):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node


def _called(tree: ast.Module, function: str | None) -> set[ast.AST]:
    """Return the functions that may run: those that are named in code that runs.

    The arguments are those of `_executed`. Methods and inner functions run with their outer ones.
    """
    if function is None:
        return set()
    definitions = {it.name: it for it in tree.body if isinstance(it, _NAMED)}
    names, called = [function, _CALLBACKS], set[ast.AST]()
    names += (it.id for it in _nodes(tree.body, function) if isinstance(it, ast.Name))
    while names:
        for node in ast.walk(definitions.pop(names.pop(), ast.Pass())):
            if isinstance(node, _FUNCTIONS):
                called.add(node)
            elif isinstance(node, ast.Name):
                names.append(node.id)
    return called


def _nodes(
    body: Iterable[ast.stmt], function: str | None, called: Container[ast.AST] = ()
) -> Iterator[ast.AST]:
    """Yield what runs when a module is imported, and what is in functions that are called."""
    waiting: list[ast.AST] = list(reversed([*body]))
    while waiting:
        yield (node := waiting.pop())
        if isinstance(node, ast.If) and _is_skipped(node, as_program=function == ""):
            waiting += reversed(node.orelse)
        elif isinstance(node, _FUNCTIONS) and node not in called:
            waiting += getattr(node, "decorator_list", ())
        else:
            waiting += reversed(list(ast.iter_child_nodes(node)))


def _is_skipped(node: ast.If, as_program: bool) -> bool:
    """Return whether a condition is for type checkers, or for a program."""
    names = {getattr(it, "id", getattr(it, "attr", "")) for it in ast.walk(node.test)}
    return "TYPE_CHECKING" in names or ("__name__" in names and not as_program)


def _top_modules(node: ast.Import | ast.ImportFrom) -> list[str]:
    """Return the top-level modules that an absolute import names."""
    if isinstance(node, ast.Import):
        return [it.name.partition(".")[0] for it in node.names]
    return [(node.module or "").partition(".")[0]] if not node.level else []


def _modules_in(files: Mapping[str, bytes], folder: PurePosixPath) -> Iterator[str]:
    """Yield the names of the modules and packages of a folder."""
    for path in map(PurePosixPath, files):
        if path.is_relative_to(folder):
            name, *below = path.relative_to(folder).parts
            yield name if below else name.removesuffix(".py")
