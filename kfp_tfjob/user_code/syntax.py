"""Parses the user's code without importing it, and explains why a file is not Python.

Code that was copied from a web page or a word processor often contains no-break spaces, curly
quotes or dashes. They look right in an editor, and Python's own message only gives a number. Called
by preflight and by the upload of a user's code, before anything is imported.
"""

from __future__ import annotations

import ast
import posixpath
import re
import sys
import tokenize
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from io import BytesIO
from pathlib import PurePosixPath

from kfp_tfjob.common.errors import ConfigurationError, Problem
from kfp_tfjob.storage.layout import CODE

_CODE_POINT = re.compile(r"U\+([0-9A-F]{4,6})")  # in a message of Python's parser
_MOST_CHARACTERS = 20  # of one file in a message; each takes one more run of the parser
_MOST_PARSED = 400_000  # characters in all attempts, which limits the time on a large file
_QUOTES = "\u2018\u2019\u201a\u201b\u2032\u201c\u201d\u201e\u201f\u2033\u00ab\u00bb"
# The ASCII replacement of each typographic character that NFKC does not map to ASCII.
_REPLACEMENTS = {
    **dict.fromkeys(_QUOTES[:5], "'"),
    **dict.fromkeys(_QUOTES[5:], '"'),
    **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212", "-"),
    **dict.fromkeys("\u00ad\u200b\u200c\u200d\u200e\u200f\u2060\ufeff", ""),
    "\u00d7": "*",
}
_CODE_FOLDER = f"/{CODE}/"  # of JOB_DIR, as commands name it
_IN_CODE = re.compile(rf"\$(?:\(JOB_DIR\)|\{{JOB_DIR\}}|JOB_DIR){_CODE_FOLDER}(?:\./)*")
_PATH = re.compile(r"[^\s\"'`;:,()<>|&]+")  # up to a character that usually ends it
_PATTERN = re.compile(r"[$*?\[{]|^\.\.(/|$)")  # words that a shell expands, and other folders


class OfImage(Problem):
    """A problem that the user's code may not have in another image."""


class SyntaxProblem(OfImage):
    """A file that this Python cannot parse; another image may contain a newer Python."""


def parse(path: str, data: bytes, is_script: bool = False) -> ast.Module:
    """Return the syntax tree of a file.

    Args:
        path: Its name, for messages.
        data: Its content.
        is_script: Whether Python runs the file, not imports it. Then even its comments must be in
            its encoding.

    Raises:
        ConfigurationError: It is not Python; the error's SyntaxProblem has the line.
    """
    if is_script and (problem := _in_another_encoding(path, data)):
        raise ConfigurationError(problem)
    try:
        return ast.parse(data, filename=path)
    except (RecursionError, MemoryError):
        raise ConfigurationError(_problem(path, "the code is nested too deeply")) from None
    except (SyntaxError, ValueError) as error:
        raise ConfigurationError(_explain_error(path, data, error)) from None


# The path of a file, the folder in which its imports begin, and its syntax tree or its problem.
Reached = tuple[str, PurePosixPath, "ast.Module | SyntaxProblem"]


def unparsable(reached: Iterable[Reached]) -> Iterator[SyntaxProblem]:
    """Return the problems of the files, as `reachable` yields them, that are not Python."""
    return (problem for _, _, problem in reached if isinstance(problem, SyntaxProblem))


def reachable(
    files: Mapping[str, bytes], entries: Iterable[str], root: str | None = None
) -> Iterator[Reached]:
    """Yield the entries, and the files that they import without a condition, directly or not.

    Args:
        files: Content by relative path.
        entries: The files with which a program begins.
        root: The folder in which imports begin; None for each entry's own folder, as for a script.
    """
    parsed: set[str] = set()
    for entry in entries:
        start = PurePosixPath(entry).parent if root is None else PurePosixPath(root)
        waiting = [entry]
        while waiting:
            path = waiting.pop()
            if path in parsed:
                continue
            parsed.add(path)
            try:
                tree = parse(path, files[path], is_script=root is None and path == entry)
            except ConfigurationError as error:
                yield from (
                    (path, start, problem)
                    for problem in error.problems
                    if isinstance(problem, SyntaxProblem)
                )
                continue
            yield path, start, tree
            waiting += reversed(_imported_files(files, path, tree, str(start)))


def _imported_files(
    files: Mapping[str, bytes], path: str, tree: ast.Module, root: str = ""
) -> list[str]:
    """Return the paths in `files` that a module imports without a condition.

    Args:
        files: Content by relative path.
        path: The module's file.
        tree: Its syntax tree.
        root: The folder in which its imports begin.
    """
    start = PurePosixPath(root)
    names = {name for node in tree.body for name in _imported(node, path, start)}
    return sorted(file for name in names for file in _files_of(name) if file in files)


def named_files(command: Sequence[str], files: Mapping[str, bytes]) -> list[str]:
    """Return the Python files in the run's copy of the code that a command names.

    The command may be a shell command. Files that only the image contains are not returned.
    """
    words = [word.strip("\"';()") for word in " ".join(command).split()]
    modules = {next_word for word, next_word in zip(words, words[1:], strict=False) if word == "-m"}
    paths = {word.rpartition(_CODE_FOLDER)[2].removeprefix("./") for word in words}
    paths |= set(_paths_in_code(command, files))
    paths |= {path for name in modules for path in _files_of(name.replace(".", "/"))}
    paths |= {f"{name.replace('.', '/')}/__main__.py" for name in modules}
    return sorted(path for path in paths if path.endswith(".py") and path in files)


def missing_paths(command: Sequence[str], files: Iterable[str]) -> list[str]:
    """Return the paths below $(JOB_DIR)/code that a command names, but that do not exist there."""
    existing = {"."}
    for path in map(PurePosixPath, files):
        existing |= {str(path), *map(str, path.parents)}
    paths = set(_paths_in_code(command, existing))
    return sorted(path for path in paths - existing if not _PATTERN.search(path))


def path_in_code(word: str) -> str:
    """Return the path below $(JOB_DIR)/code that a word of a command consists of; else empty."""
    match = _IN_CODE.match(word)
    return posixpath.normpath(word[match.end() :]) if match else ""


def _paths_in_code(command: Sequence[str], existing: Collection[str]) -> Iterator[str]:
    """Yield the paths below $(JOB_DIR)/code that the words of a command name.

    A space or a comma usually ends a path, but the name of an existing file may contain it.
    """
    for word in command:
        for match in _IN_CODE.finditer(word):
            remainder = word[match.end() :]
            if shortest := _PATH.match(remainder):
                matches = (path for path in existing if _begins_with(remainder, path))
                yield max(matches, key=len, default=posixpath.normpath(shortest[0]))


def _begins_with(text: str, path: str) -> bool:
    """Return whether a string begins with a path, and not with a longer name."""
    return text.startswith(path) and not _PATH.match(text[len(path) :])


def _imported(node: ast.stmt, path: str, root: PurePosixPath) -> Iterator[str]:
    """Yield the paths, without suffix, of the modules that a statement may import."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            parts = alias.name.split(".")
            yield from (str(root.joinpath(*parts[:end])) for end in range(1, len(parts) + 1))
    elif isinstance(node, ast.ImportFrom):
        above = PurePosixPath(path).parents
        if node.level > len(above):
            return
        start = above[node.level - 1] if node.level else root
        parts = (node.module or "").split(".") if node.module else []
        yield from (str(start.joinpath(*parts[:end])) for end in range(1, len(parts) + 1))
        yield from (str(start.joinpath(*parts, alias.name)) for alias in node.names)


def _files_of(module: str) -> tuple[str, str]:
    return f"{module}.py", f"{module}/__init__.py"


def _explain_error(path: str, data: bytes, error: SyntaxError | ValueError) -> SyntaxProblem:
    """Return the problem of a file that cannot be parsed."""
    if problem := _in_another_encoding(path, data):
        return problem
    try:
        source = data.decode(_encoding(data))
    except (LookupError, UnicodeError):  # such as rot13, which is no encoding of text
        source = ""
    lines = _invalid_characters(source)
    if not lines:
        line = getattr(error, "lineno", None) or "?"
        return _problem(path, f"line {line}: {getattr(error, 'msg', error)}")
    received = [
        f"line {line}: {_code_point(character)} ({unicodedata.name(character, 'unnamed').lower()})"
        for character, line in lines.items()
    ]
    fixes = "; ".join(map(_fix, lines))
    return _problem(path, "; ".join(received), fix=f"in {path}, {fixes}")


def _in_another_encoding(path: str, data: bytes) -> SyntaxProblem | None:
    """Return the problem of a file that is not in its declared encoding, by default UTF-8."""
    encoding = _encoding(data)
    try:
        data.decode(encoding)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        reason = f"line {line}: byte 0x{data[error.start]:02x} is not {encoding.upper()}"
        return _problem(path, reason, "a file in UTF-8", f"save {path} as UTF-8")
    except (LookupError, UnicodeError):
        return None  # the parser explains it
    return None


def _encoding(data: bytes) -> str:
    try:
        return tokenize.detect_encoding(BytesIO(data).readline)[0]
    except SyntaxError:  # its first lines are in another encoding, or name one that does not exist
        return "utf-8"


def _problem(path: str, received: str, expected: str = "", fix: str = "") -> SyntaxProblem:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    expected = expected or f"code that Python {version} can parse"
    return SyntaxProblem(f"{path} is not Python", received, expected, fix or f"correct {path}")


def _invalid_characters(source: str) -> dict[str, int]:
    """Return the characters that Python does not accept in code, each with its first line.

    The parser reports one at a time, so each is replaced before the next attempt.
    """
    lines: dict[str, int] = {}
    for _ in range(max(1, min(_MOST_CHARACTERS, _MOST_PARSED // (len(source) + 1)))):
        try:
            ast.parse(source)
        except SyntaxError as error:
            match = _CODE_POINT.search(error.msg or "")
            character = chr(int(match[1], 16)) if match else ""
            if not character or character not in source:
                break
            lines[character] = error.lineno or 0  # an earlier one may be in a comment
            # Quotes are replaced in pairs, or the string would not end.
            for similar in _QUOTES if character in _QUOTES else character:
                if similar in source:
                    lines.setdefault(similar, source.count("\n", 0, source.index(similar)) + 1)
                    source = source.replace(similar, _ascii_replacement(similar) or " ")
        except (ValueError, RecursionError, MemoryError):  # not because of a character
            break
        else:
            break
    return dict(sorted(lines.items(), key=lambda entry: entry[1]))


def _ascii_replacement(character: str) -> str | None:
    """Return the ASCII replacement of a typographic character; None for any other character."""
    replacement = _REPLACEMENTS.get(character, unicodedata.normalize("NFKC", character))
    return replacement if replacement.isascii() else None


def _fix(character: str) -> str:
    replacement = _ascii_replacement(character)
    if replacement is None:
        return f"remove every {_code_point(character)}, or put it in quotes"
    replacement_words = {"": "nothing", " ": "a space"}.get(replacement, replacement)
    return f"replace every {_code_point(character)} with {replacement_words}"


def _code_point(character: str) -> str:
    return f"U+{ord(character):04X}"
