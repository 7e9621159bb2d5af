"""Finds commands that cannot start a program from the run's copy of the code.

The copy keeps the content of files but not their modes, and Python runs a file by its path as if it
were in no package. Both fail only when the job starts, after the data was prepared. Called by
`model_code.py`.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath

from kfp_tfjob.common.errors import Problem
from kfp_tfjob.storage.layout import CODE

from .imports import LIBRARIES, modules_in, relative_import_problems, top_modules
from .syntax import OfImage, Reached, path_in_code

_PYTHON = re.compile(r"python[\d.]*|torchrun")
_SHELL = re.compile(r"(ba|da|z|a)?sh")
_COMMAND = "train_options.command"
_MOST_BYTES = 1024  # a zero byte in them shows a binary


def start_problems(
    command: Sequence[str], files: Mapping[str, bytes], reached: Iterable[Reached]
) -> Iterator[Problem]:
    """Yield the reasons why a command cannot start its program.

    Args:
        command: The program and its arguments.
        files: The run's copy: content by relative path.
        reached: The files that the command names or imports, as `reachable` yields them.
    """
    path = path_in_code(command[0])
    if path in files:
        suggestion = json.dumps([*_interpreter(path, files[path]), *command])
        yield Problem(
            f"{path} cannot be started: no file in the run's copy of the code is executable",
            received=command[0],
            expected="the program that runs the file, and then its path",
            fix=f"set train_options.command to {suggestion}",
            path=_COMMAND,
            suggestion=suggestion,
        )
    elif script := _script(command, files):
        yield from _package_problems(command, script, files, reached)


def _interpreter(path: str, data: bytes) -> list[str]:
    """Return the program, and its options, that a file's first line names.

    Without such a line, it is Python or bash; a binary is made executable by a shell.
    """
    if b"\0" in data[:_MOST_BYTES]:
        return ["sh", "-c", 'chmod +x "$0" && exec "$0" "$@"']
    first_line = data.partition(b"\n")[0].decode(errors="replace")
    words = first_line.removeprefix("#!").split() if first_line.startswith("#!") else []
    if words and PurePosixPath(words[0]).name == "env":
        words = [word for word in words[1:] if word != "-S"]
    if not words:
        return ["python3" if path.endswith(".py") else "bash"]
    name = PurePosixPath(words[0]).name
    return ["python3" if _PYTHON.fullmatch(name) else name, *words[1:]]


def _script(command: Sequence[str], files: Mapping[str, bytes]) -> str:
    """Return the first Python file in the copy that a command runs by its path; empty if none."""
    has_python = False
    for word in _words(command):
        path = path_in_code(word) or (word if _is_shell(command) else "")
        if path.endswith(".py") and path in files:
            return path if has_python else ""
        has_python = has_python or bool(_PYTHON.fullmatch(PurePosixPath(word).name))
    return ""


def _is_shell(command: Sequence[str]) -> bool:
    return bool(_SHELL.fullmatch(PurePosixPath(command[0]).name))


def _words(command: Sequence[str]) -> list[str]:
    """Return the words of a command or, for a shell, of its script."""
    if not _is_shell(command):
        return list(command)
    return [word.strip("\"';") for word in " ".join(command).split()]


def _package_problems(
    command: Sequence[str], script: str, files: Mapping[str, bytes], reached: Iterable[Reached]
) -> Iterator[Problem]:
    """Yield the problem of a package's file that is run by its path, if it imports the package.

    Python then searches for modules in the file's folder, and rejects relative imports.
    """
    folder = PurePosixPath(script).parent
    trees = {path: tree for path, start, tree in reached if start == folder}
    tree = trees.get(script)
    if isinstance(tree, ast.Module) and b"__package__" not in files[script]:
        for node in tree.body:
            if isinstance(node, ast.ImportFrom) and node.level > len(folder.parts):
                yield from relative_import_problems([(script, folder, tree)])
                return
            if isinstance(node, ast.ImportFrom) and node.level:
                root = folder.parents[node.level - 1]
                while str(root / "__init__.py") in files:
                    root = root.parent
                yield _not_found(command, script, root, script, node)
                return
    if "PYTHONPATH" in " ".join(command) or b"sys.path" in files[script]:
        return
    for path, tree in trees.items():
        for node in tree.body if isinstance(tree, ast.Module) else ():
            if isinstance(node, ast.Import | ast.ImportFrom):
                for root in _roots_above(top_modules(node), folder, files):
                    problem = _not_found(command, script, root, path, node)
                    parts = (problem.what, problem.received, problem.expected, problem.fix)
                    # Another image may contain the package.
                    yield OfImage(*parts, path=problem.path, suggestion=problem.suggestion)
                    return


def _roots_above(
    names: Iterable[str], folder: PurePosixPath, files: Mapping[str, bytes]
) -> Iterator[PurePosixPath]:
    """Yield the folder above a script's folder that contains a module which the script lacks."""
    beside = {*modules_in(files, folder), *LIBRARIES, *sys.stdlib_module_names}
    for name in names:
        roots = (root for root in folder.parents if name in modules_in(files, root))
        if name not in beside and (root := next(roots, None)) and not _is_installed(name):
            yield root


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _not_found(
    command: Sequence[str], script: str, root: PurePosixPath, path: str, node: ast.stmt
) -> Problem:
    """Return the problem of an import that works only if a script is run as a module.

    Args:
        command: The program and its arguments.
        script: The script's path.
        root: The folder that contains its package.
        path: The file with the import.
        node: The import.
    """
    module = ".".join(PurePosixPath(script).relative_to(root).with_suffix("").parts)
    change = f"cd {PurePosixPath(f'$(JOB_DIR)/{CODE}', root)}"
    suggestion = ""
    if _is_shell(command):
        fix = f"in the command, write `{change}` first, and then `python3 -m {module}`"
    else:
        position = next(i for i, word in enumerate(command) if path_in_code(word) == script)
        arguments = command[position + 1 :]
        program = f"{change} && exec {shlex.join(command[:position])} -m {module}"
        words = [f'{program} "$@"', "sh", *arguments] if arguments else [program]
        suggestion = json.dumps(["sh", "-c", *words])
        fix = f"set train_options.command to {suggestion}"
    return Problem(
        f"{script} is run by its path, so Python does not find the package that it imports",
        received=f"{path}, line {node.lineno}: {ast.unparse(node)}"[:200],
        expected="a command that runs it as a module of its package",
        fix=fix,
        path=_COMMAND,
        suggestion=suggestion,
    )
