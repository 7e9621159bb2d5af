"""Finds imports that the user's code cannot make where it runs.

A step or a replica gets only the file, folder or zip that an option names. A module next to it
would be missing there, and a change to that module would not change a digest.
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from kfp_tfjob.common.errors import Problem, StepError
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.store import Store

from .syntax import OfImage, Reached

# Modules that the trainer or a step has loaded before the user's code.
LIBRARIES = {"boto3", "google", "keras", "kfp", "kfp_tfjob", "kubernetes", "numpy", "pyarrow"}
LIBRARIES |= {"pydantic", "tensorflow", "tf_keras", "urllib3", "yaml"}
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_CALLBACKS = "callbacks"  # a function that the trainer calls, besides the one that is named


class MissingModule(OfImage):
    """Code imports a module next to it, which is not copied; another image may contain it."""


@dataclass(frozen=True)
class Place:
    """The location of code that was read.

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
        """Return whether a module lies next to the code; False if the store denies the request."""
        if "://" not in self.source:
            path = Path(self.folder, name)
            return path.with_suffix(".py").is_file() or any(path.glob("*.py"))
        try:
            folder = S3Address.parse(self.folder)
            files = (folder / f"{name}.py", folder / name / "__init__.py")
            return any(self.store.has(file) for file in files) if self.store else False
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
        """Return the file, the line and the module, for a message."""
        return f"{self.path}, line {self.line}: {self.name}"


def unavailable_imports(
    reached: Iterable[Reached],
    files: Mapping[str, bytes],
    entries: Collection[str],
    function: str = "",
) -> Iterator[Import]:
    """Yield the first import of each module that `files`, Python and the libraries do not have.

    Called by `Code` in model_code.py, for the user's function and for a command.

    Args:
        reached: The code, as `reachable` yields it: a file's path, the folder in which its imports
            begin, and its syntax tree, or a problem if it is not Python.
        files: Content by relative path.
        entries: The files with which the code begins.
        function: The function that is called; empty for a program. Imports in other functions
            count only if they may run.
    """
    reported: set[str] = set()
    for path, import_root, tree in reached:
        if not isinstance(tree, ast.Module):
            continue  # `unparsable` reports it
        root = PurePosixPath()
        included = {*modules_in(files, import_root), *modules_in(files, root), *LIBRARIES}
        for node in _executed_imports(tree, function if path in entries else None):
            for name in top_modules(node):
                if name not in reported | included and name not in sys.stdlib_module_names:
                    reported.add(name)
                    yield Import(path, node.lineno, name)


def relative_import_problems(reached: Iterable[Reached]) -> Iterator[Problem]:
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
                    name="model-code-import",
                )


def _executed_imports(
    tree: ast.Module, function: str | None
) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yield the imports that run when a module is imported and its function is called.

    Args:
        tree: The module.
        function: Its function; empty for a program, None for a module that others import.
    """
    called = _called_functions(tree, function)
    for node in _executed_nodes(tree.body, function, called):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node


def _called_functions(tree: ast.Module, function: str | None) -> set[ast.AST]:
    """Return the functions that may run, because code that runs names them.

    Methods and inner functions count together with the class or function that contains them.

    Args:
        tree: The module.
        function: As in `_executed_imports`.
    """
    if function is None:
        return set()
    definitions = {node.name: node for node in tree.body if isinstance(node, _DEFINITIONS)}
    names, called = [function, _CALLBACKS], set[ast.AST]()
    names += (
        node.id for node in _executed_nodes(tree.body, function) if isinstance(node, ast.Name)
    )
    while names:
        for node in ast.walk(definitions.pop(names.pop(), ast.Pass())):
            if isinstance(node, _FUNCTIONS):
                called.add(node)
            elif isinstance(node, ast.Name):
                names.append(node.id)
    return called


def _executed_nodes(
    body: Iterable[ast.stmt], function: str | None, called: Container[ast.AST] = ()
) -> Iterator[ast.AST]:
    """Yield the nodes that run when a module is imported, and the nodes of called functions."""
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
    """Return whether a condition is false here: for type checkers, or only for a program."""
    names = {getattr(part, "id", getattr(part, "attr", "")) for part in ast.walk(node.test)}
    return "TYPE_CHECKING" in names or ("__name__" in names and not as_program)


def top_modules(node: ast.Import | ast.ImportFrom) -> list[str]:
    """Return the top-level modules that an absolute import names."""
    if isinstance(node, ast.Import):
        return [alias.name.partition(".")[0] for alias in node.names]
    return [(node.module or "").partition(".")[0]] if not node.level else []


def modules_in(files: Mapping[str, bytes], folder: PurePosixPath) -> Iterator[str]:
    """Yield the names of the modules and packages of a folder."""
    for path in map(PurePosixPath, files):
        if path.is_relative_to(folder):
            name, *below = path.relative_to(folder).parts
            yield name if below else name.removesuffix(".py")
