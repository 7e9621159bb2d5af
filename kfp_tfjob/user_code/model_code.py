"""Finds the user's model code, checks its function, and reads its files for the run's own copy.

The code is parsed, never imported: this step's image does not contain TensorFlow, and user code
must not run before the parameters are checked. The model is first built when training starts.
"""

from __future__ import annotations

import ast
import importlib.util
import keyword
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from kfp_tfjob.common.errors import ConfigurationError, Problem, StepError
from kfp_tfjob.common.formatting import choices, did_you_mean, listed, nearest
from kfp_tfjob.options.parse import no_path
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import CODE, MANIFEST
from kfp_tfjob.storage.store import Store

from . import code_files
from .arguments import wrong_arguments
from .imports import (
    LIBRARIES,
    Import,
    MissingModule,
    Place,
    relative_import_problems,
    unavailable_imports,
)
from .program_start import start_problems
from .syntax import missing_paths, named_files, parse, reachable, unparsable

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@dataclass(frozen=True)
class ModelCode:
    """The parameter model_code, `source:function`, or for a user's own program a path alone.

    Attributes:
        source: A module of the image, or the path or s3:// address of a file, folder or zip.
        function: The function that builds the model; empty for a path alone.
    """

    source: str
    function: str

    @classmethod
    def parse(cls, text: str, of_program: bool = False) -> ModelCode:
        """Parse the parameter.

        Args:
            text: The parameter.
            of_program: Whether it is the code of a user's own program, which needs no function.

        Raises:
            ConfigurationError: It does not have the form `source:function`.
        """
        parameter = str(text).strip()
        source, colon, function = parameter.rpartition(":")
        if of_program and (not colon or function.startswith("//")):
            source, function = parameter, ""
        path = source.rstrip("/")
        # `folder/` is not a module, and must not look like one without its slash.
        code = cls(path if path == source or "/" in path else f"./{path}", function)
        is_path_alone = of_program and source == parameter and not code.in_image
        if path and (is_path_alone or function.isidentifier()) and source not in ("s3", "http"):
            return code
        forms = "kfp_tfjob.trainer.models:mlp, or PATH.py:FUNCTION, FOLDER:FUNCTION or ZIP:FUNCTION"
        complaint, fix = (
            ("names neither a path nor a function", "write a path, for example ./FOLDER")
            if of_program
            else (
                "does not name a function",
                "add a colon and the name of the function that builds the model",
            )
        )
        raise ConfigurationError(
            Problem(
                f"model_code {complaint}",
                received=repr(text),
                expected=f"FILE.py, ./FOLDER or FILE.zip; or {forms}" if of_program else forms,
                fix=fix,
                path="model_code",
                name="model-code-without-function",
            )
        )

    @classmethod
    def of_run(cls, values: Mapping[str, Any]) -> ModelCode:
        """Parse the run parameter; its function may be missing if `train_options.command` is set.

        Raises:
            ConfigurationError: It does not have such a form.
        """
        options = values.get("train_options")
        has_program = isinstance(options, Mapping) and bool(options.get("command"))
        return cls.parse(values["model_code"], has_program)

    @property
    def in_image(self) -> bool:
        """Whether the code is a module of the image and needs no copy."""
        parts = self.source.split(".")
        return all(part.isidentifier() for part in parts) and parts[-1] not in ("py", "zip")

    @property
    def module(self) -> str:
        """The module that the trainer imports, as the name suggests; for a path alone, its name."""
        if self.in_image:
            return self.source
        name = _name(self.source)
        return PurePosixPath(name).stem if self.function else name

    def entry(self, module: str = "") -> str:
        """Return `module:function`, or the name of a path alone, for a job.

        Args:
            module: The module as `read` returns it; empty if the code was not read.
        """
        module = module or self.module
        return f"{module}:{self.function}" if self.function else module

    def read(self, store: Store | None = None) -> Code:
        """Return the files of the code: for its checks, for a run's copy, and for an upload.

        Called by components/code_copy.py, own_code.py, and code_upload.py of the command line.

        Args:
            store: The store of code whose source is an address; not used for other code.

        Raises:
            ConfigurationError: There is no code, or it cannot be imported under its name.
        """
        if self.in_image:
            return Code(self.source, _image_files(self.source), in_image=True)
        if store and self.source.startswith("s3://"):
            files = code_files.stored(store, S3Address.parse(self.source, "model_code"))
        else:
            files = code_files.local(Path(self.source))
        name = _name(self.source)
        if name.endswith(".zip") and name in files:
            files, name = code_files.unzip(files[name], self.source), name.removesuffix(".zip")
        if not files:
            expected = code_files.EXPECTED
            if not self.source.startswith("s3://") and not Path(self.source).exists():
                raise ConfigurationError(no_path("model_code", Path(self.source), expected))
            raise ConfigurationError(
                Problem(
                    "model_code does not contain code",
                    received=f"{self.source}: 0 files",
                    expected=expected,
                    fix="correct the path in model_code; on a cluster it must be an s3:// address",
                    path="model_code",
                    name="model-code-not-a-module",
                )
            )
        if not self.function:
            return Code(self.module, files, place=Place(self.source, "", store))
        module, files = _importable(name, files, self.source, self.function)
        return Code(module, files, place=Place(self.source, self.function, store))


def as_path(text: str) -> str:
    """Return model_code as a path if it names a file or folder in the current folder.

    A folder, or a .py file without its suffix, may have the same name as a module. A user who names
    one that exists here means it. The job runs in a different folder.
    """
    source, colon, function = text.strip().partition(":")
    if source.isidentifier() and bool(colon) == bool(function):
        for path in (source, f"{source}.py"):
            if Path(path).exists():
                return f"./{path}{colon}{function}"
    return text


def _name(source: str) -> str:
    """Return the name of a file or folder; `.` has its folder's name."""
    return PurePosixPath(source if "://" in source else os.path.abspath(source)).name


@dataclass(frozen=True)
class Code:
    """The files of a user's code, and the module that the trainer imports from them.

    Attributes:
        module: The module to import, with the folder of the files first on the path; the name of a
            path alone.
        files: Content by relative path; for a module of the image, the top-level package, if here.
        in_image: Whether it is in the image and needs no copy.
        place: The location of the files; None if they are in the image.
    """

    module: str
    files: Mapping[str, bytes]
    in_image: bool = False
    place: Place | None = field(default=None, compare=False, repr=False)

    def problems(self, function: str, hyperparameters: Mapping[str, object]) -> list[Problem | str]:
        """Check that `function` exists and takes the dataset and the hyperparameters."""
        path, node, problems = self.definition(function)
        problems = [*self._manifest_problems(), *problems]
        if isinstance(node, ast.FunctionDef) and not node.decorator_list:
            problems += wrong_arguments(path, node, hyperparameters)
        return problems

    def problems_of_command(self, command: Sequence[str]) -> list[Problem]:
        """Check the files that a command names, and the files of this code that they import."""
        files = {} if self.in_image else self.files  # of the run's copy
        entries = named_files(command, self.files)
        reached = list(reachable(self.files, entries))
        imports = unavailable_imports(reached, self.files, entries)
        missing_modules = self._neighbor_problems(imports, entries)
        missing_files = [_missing(path, files) for path in missing_paths(command, files)]
        return [
            *self._manifest_problems(),
            *missing_files,
            *start_problems(command, files, reached),
            *unparsable(reached),
            *missing_modules,
        ]

    def _manifest_problems(self) -> list[Problem]:
        """Return the problem of a file whose name the manifest of the run's copy has."""
        if self.in_image or MANIFEST not in self.files:
            return []
        return [
            Problem(
                f"model_code has a file {MANIFEST} beside its modules",
                received=f"{self.place.source if self.place else self.module}: {MANIFEST}",
                expected=f"another name, because the run's copy of the code has its own {MANIFEST}"
                " there",
                fix="rename the file, or move it into a subfolder",
                path="model_code",
            )
        ]

    def _import_problems(self, path: str, function: str) -> list[Problem]:
        """Check that a function's file can be imported, with the files that it imports."""
        if self.in_image:  # its own code was tested with it
            return []
        reached = list(reachable(self.files, [path], root=""))
        imports = unavailable_imports(reached, self.files, [path], function)
        return [
            *_name_problems(self.module),
            *unparsable(reached),
            *relative_import_problems(reached),
            *self._neighbor_problems(imports, [path], self.module),
        ]

    def _neighbor_problems(
        self, imports: Iterable[Import], entries: Iterable[str], module: str = ""
    ) -> list[MissingModule]:
        """Return a problem if modules are imported that lie next to this code, outside it.

        Args:
            imports: The imports of modules that the code itself does not contain.
            entries: The files with which the code begins.
            module: Its module; empty for a program, which no other code imports.
        """
        place = self.place
        neighbors = [each for each in imports if place.has_module(each.name)] if place else []
        if not place or not neighbors:
            return []
        folder = ModelCode(place.folder, place.function)
        try:
            folder_code = folder.read(place.store)
            is_same = set(entries) <= folder_code.files.keys() and module in (
                "",
                folder_code.module,
            )
        except StepError:  # it is too large, for example
            is_same = False
        suggestion = ":".join(filter(None, (folder.source, folder.function))) if is_same else ""
        file_hint = f", with {place.function} in model.py," if place.function else ""
        example = f"./FOLDER:{place.function}" if place.function else "./FOLDER"
        names = ", ".join(neighbor.name for neighbor in neighbors)
        return [
            MissingModule(
                f"{place.source} imports {names} from beside it, but"
                " only what model_code names is copied to a run",
                received="; ".join(map(str, neighbors)),
                expected="a folder or a zip with everything that is imported from beside it",
                fix=f"name the folder: {suggestion}"
                if suggestion
                else f"put all of it into a folder of its own{file_hint} and name that: {example}",
                path="model_code",
                suggestion=suggestion,
            )
        ]

    def definition(self, function: str) -> tuple[str, ast.stmt | None, list[Problem | str]]:
        """Return the module's file, the definition of a function in it, and problems.

        It is a problem if the module, or a file of the user's that it imports, cannot be imported.

        Without a problem, the definition is None if it is assigned, imported or conditional, or in
        a module that only another image contains.
        """
        stem = self.module.replace(".", "/")
        candidates = (f"{stem}.py", f"{stem}/__init__.py")
        path = next((candidate for candidate in candidates if candidate in self.files), "")
        if not path:
            return path, None, []  # a module of a different image: only the trainer can check it
        try:
            tree = parse(path, self.files[path])
        except ConfigurationError as error:
            return path, None, list(error.problems)
        defined = {node.name: node for node in tree.body if isinstance(node, _DEFINITIONS)}
        other_names = _other_names(tree)
        imported: list[Problem | str] = [*self._import_problems(path, function)]
        if function in defined and function not in other_names:
            return path, defined[function], imported
        if other_names & {function, "*"}:
            return path, None, imported
        public = sorted(name for name in defined if not name.startswith("_"))
        suggestion = nearest(function, public)
        source = self.place.source if self.place else self.module
        problem = Problem(
            f"{path} has no function {function}",
            received=f"{self.module}:{function}",
            expected=f"one of {choices(public, suggestion)}" if public else "a public function",
            fix=did_you_mean(suggestion, "correct model_code"),
            path="model_code",
            suggestion=f"{source}:{suggestion}" if suggestion else "",
            name="function-not-found",
        )
        return path, None, [*imported, problem]


def _other_names(tree: ast.Module) -> set[str]:
    """Return the names that a module binds by assignment or import, or in its `if` or `try`."""
    inner = _nested(node for node in tree.body if not isinstance(node, _DEFINITIONS))
    names = {node.name for node in inner if isinstance(node, _DEFINITIONS)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
    return names


def _nested(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield nodes and their inner nodes, except inside functions and classes."""
    waiting = list(nodes)
    while waiting:  # a long sum is nested too deeply for recursion
        yield (node := waiting.pop())
        if not isinstance(node, _DEFINITIONS):
            waiting += ast.iter_child_nodes(node)


def _importable(
    name: str, files: Mapping[str, bytes], source: str, function: str
) -> tuple[str, Mapping[str, bytes]]:
    """Return the module that code is imported as, and its files.

    A file is named by its stem, a package by its folder. In any other folder, the module is
    model.py, or the file that defines the function.
    """
    if name.endswith(".py"):
        module = name.removesuffix(".py")
    elif "__init__.py" in files:
        module, files = name, {f"{name}/{path}": data for path, data in files.items()}
    elif f"{name}/__init__.py" in files or f"{name}.py" in files:
        module = name
    elif "model.py" in files:
        module = "model"
    elif len(defining := list(_defining(files, function))) == 1:
        module = defining[0].removesuffix(".py")
    elif inner := _inner_folder(files):  # a zip of a folder instead of its content
        inside = {path.partition("/")[2]: data for path, data in files.items()}
        return _importable(inner, inside, source, function)
    else:
        raise ConfigurationError(
            Problem(
                "model_code is neither a module nor a package",
                received=f"{source} with {', '.join(sorted(files)[:5])}",
                expected="a .py file, or a folder with __init__.py, with model.py, or with one file"
                f" that defines {function}",
                fix="add __init__.py, or name the .py file itself",
                name="model-code-not-a-module",
            )
        )
    if not module.isidentifier() or keyword.iskeyword(module):
        raise ConfigurationError(
            Problem(
                "model_code cannot be imported under its name",
                received=name,
                expected="letters, digits and underscores, beginning with a letter",
                fix="rename it",
                name="model-code-name",
            )
        )
    return module, files


def _defining(files: Mapping[str, bytes], function: str) -> Iterator[str]:
    """Yield the files of a folder that define a function, without the folders below it."""
    for path, data in files.items():
        if path.endswith(".py") and "/" not in path:
            with suppress(ConfigurationError):  # it is not Python
                nodes = parse(path, data).body
                definitions = (node for node in nodes if isinstance(node, _DEFINITIONS))
                if any(definition.name == function for definition in definitions):
                    yield path


def _missing(path: str, files: Iterable[str]) -> Problem:
    """Return the problem of a command's path that is not in the run's copy of the code."""
    name = PurePosixPath(path).name
    paths = sorted(files)
    same_name = (candidate for candidate in paths if PurePosixPath(candidate).name == name)
    suggestion = next(same_name, "") or nearest(path, paths)
    return Problem(
        "train_options.command names a path that the run's copy of the code does not have",
        received=f"$(JOB_DIR)/{CODE}/{path}",
        expected=f"one of {listed(paths, 10)}"
        if paths
        else "no path there, because model_code names no code of your own",
        fix=did_you_mean(
            f"$(JOB_DIR)/{CODE}/{suggestion}" if suggestion else "",
            "correct the path, or name its file or folder in model_code",
        ),
        path="train_options.command",
        name="command-path-not-found",
    )


def _name_problems(module: str) -> list[Problem]:
    """Return a problem if the module would not be imported, because its name is loaded already."""
    if module not in sys.stdlib_module_names - {"test"} | LIBRARIES:
        return []
    return [
        Problem(
            "model_code has the name of a module that is loaded before it",
            received=module,
            expected="a name that neither Python nor a library of the image has",
            fix=f"rename it, for example to my_{module}",
            name="model-code-name",
        )
    ]


def _inner_folder(files: Mapping[str, bytes]) -> str:
    """Return the name of the single folder that contains all files; empty without one."""
    tops = {path.partition("/")[0] for path in files if "/" in path}
    return tops.pop() if len(tops) == 1 and all("/" in path for path in files) else ""


def _image_files(module: str) -> dict[str, bytes]:
    """Return the source files of a module and its top-level package; empty if they are not here.

    A digest of the code must change with the modules that it imports. Only its own package counts,
    because other packages change with the image. A module outside a package may be next to
    thousands of unrelated files, so only its own source is returned.
    """
    name, *parts = module.split(".")
    try:
        top = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return {}
    if not top:
        return {}
    # To find the spec of an inner module, importlib would run the __init__.py files above it.
    stems = [Path(folder, *parts) for folder in top.submodule_search_locations or ()]
    candidates = [path for stem in stems for path in (stem / "__init__.py", Path(f"{stem}.py"))]
    if not parts:
        candidates = [Path(top.origin)] if top.origin and top.origin.endswith(".py") else []
    source = next(filter(Path.is_file, candidates), None)
    if not source:
        return {}
    files = {f"{module.replace('.', '/')}.py": source.read_bytes()}
    for folder in top.submodule_search_locations or ():
        for path in filter(Path.is_file, Path(folder).rglob("*.py")):
            files[f"{top.name}/{path.relative_to(folder).as_posix()}"] = path.read_bytes()
    return files
