"""Loads a user's own function that a step calls, such as a reader or an evaluator.

An option names the function in the forms in which `model_code` names the model's function. Called
by the own reader of prepare_data and by `evaluator_code.py`; preflight only checks the code.
"""

from __future__ import annotations

import ast
import importlib
import logging
import os
import shutil
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from hashlib import sha256
from multiprocessing.util import Finalize
from pathlib import Path
from tempfile import mkdtemp
from types import ModuleType
from typing import Any, ClassVar, TypeVar

from kfp_tfjob.common.errors import ConfigurationError, Problem
from kfp_tfjob.common.escaping import uncolored
from kfp_tfjob.common.names import below
from kfp_tfjob.storage.store import Store

from .model_code import Code, ModelCode

log = logging.getLogger(__name__)

_FOLDER_PREFIX = "kfp-tfjob-own-code-"  # of the folders with imported own code
_Kind = TypeVar("_Kind", bound="OwnCode")


@dataclass(frozen=True)
class OwnCode:
    """A function and its code.

    Attributes:
        module: The module.
        function: The function in it.
        files: The code by relative path; of a module of the image, its top-level package.
        in_image: Whether the module is in the image.
    """

    path: ClassVar[str]  # the option that names the function

    module: str
    function: str
    files: Mapping[str, bytes]
    in_image: bool = False

    @classmethod
    def read(cls: type[_Kind], text: str, store: Store | None) -> _Kind:
        """Read the code that the option names.

        Args:
            text: `source:function`, in the forms of `model_code`.
            store: For code in the store.

        Raises:
            ConfigurationError: There is no such code, or its function does not fit.
        """
        try:
            model_code = ModelCode.parse(text)
            code = model_code.read(store)  # type: ignore[arg-type]
            problems = cls._problems(code, model_code.function)
        except ConfigurationError as error:
            problems = list(error.problems)
        if problems:
            raise ConfigurationError(*(_renamed(problem, cls.path) for problem in problems))
        return cls(code.module, model_code.function, code.files, code.in_image)

    @classmethod
    def _problems(cls, code: Code, function: str) -> list[Problem | str]:
        if code.in_image and not code.files:
            problem = Problem(
                "model_code names a module that is not in the image",
                received=code.module,
                expected="a module in the steps' image, or PATH.py:FUNCTION",
                fix="correct model_code",
                name="module-not-in-image",
            )
            return [problem]
        path, node, problems = code.definition(function)
        if problems or not isinstance(node, ast.FunctionDef) or node.decorator_list:
            return list(problems)
        return [*cls._wrong_arguments(path, node)]

    @classmethod
    def _wrong_arguments(cls, path: str, node: ast.FunctionDef) -> list[Problem]:
        """Return the problems of the function's arguments; a subclass overrides this."""
        return []

    @property
    def digest(self) -> str:
        """SHA-256 of the function and its code, wherever the code is."""
        digest = sha256(f"{self.module}:{self.function}\n".encode())
        for name in sorted(self.files):
            digest.update(f"{name}\0{sha256(self.files[name]).hexdigest()}\n".encode())
        return digest.hexdigest()

    def load(self) -> Callable[..., Any]:
        """Import the function in this process; the code may raise anything."""
        if not self.in_image:
            self._install(Path(_code_folder(self.digest)))
        module = importlib.import_module(self.module)
        if not self.in_image and not _is_in(module, _code_folder(self.digest)):
            raise ImportError(f"{self.module} is also the name of a loaded module; rename the file")
        return getattr(module, self.function)

    def _install(self, folder: Path) -> None:
        """Write the code into a folder and import from there, instead of from earlier code."""
        if str(folder) in sys.path:
            return
        sys.path[:] = [str(folder), *(entry for entry in sys.path if _FOLDER_PREFIX not in entry)]
        for name in [
            name for name, module in sys.modules.items() if _is_in(module, _FOLDER_PREFIX)
        ]:
            del sys.modules[name]
        for path, content in self.files.items():
            file = below(folder, path)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        importlib.invalidate_caches()

    def said(self, error: BaseException) -> str:
        """Log an error of the code; return its type, its message and its last line in the code."""
        log.info("%s %s:%s failed", self.path, self.module, self.function, exc_info=error)
        description = f"{type(error).__name__}: {uncolored(str(error))}"
        folder = "" if self.in_image else _code_folder(self.digest)
        for frame in reversed(traceback.extract_tb(error.__traceback__)):
            if folder and frame.filename.startswith(folder):
                name = os.path.relpath(frame.filename, folder)
                return f"{description}, in {name}, line {frame.lineno}"
        return description


@cache
def _code_folder(digest: str) -> str:
    """Return a folder for code with this digest, which is removed when the process ends."""
    folder = mkdtemp(prefix=_FOLDER_PREFIX)
    Finalize(None, shutil.rmtree, (folder, True), exitpriority=0)  # also of a pool's process
    return folder


def _is_in(module: ModuleType, place: str) -> bool:
    return place in (getattr(module, "__file__", None) or "")


def code_address_of(path: str, text: str) -> dict[str, str]:
    """Return the option `path` with its code's source; empty if the image contains the code.

    Raises:
        ConfigurationError: It does not name a function.
    """
    if not text:
        return {}
    code = ModelCode.parse(text)
    return {} if code.in_image else {path: code.source}


def _renamed(problem: Problem | str, path: str) -> Problem | str:
    """Return a problem of model_code, whose rules are the same, with the name of this option."""
    if isinstance(problem, str):
        return problem.replace("model_code", path)
    renamed = {
        name: value.replace("model_code", path)
        for name, value in vars(problem).items()
        if isinstance(value, str)
    }
    return replace(problem, **renamed | {"path": path})
