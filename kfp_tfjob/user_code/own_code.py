"""Code of the user's own that a step calls, besides the model.

An option names its function, as `model_code` names that of the model.
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

from kfp_tfjob.storage.errors import ConfigurationError, Problem
from kfp_tfjob.storage.escaping import uncolored
from kfp_tfjob.storage.names import below
from kfp_tfjob.storage.store import Store
from kfp_tfjob.user_code.model_code import Code, ModelCode

log = logging.getLogger(__name__)

_OWN = "kfp-tfjob-own-code-"  # in the names of its folders
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

    path: ClassVar[str]  # the option that names it

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
            wanted = ModelCode.parse(text)
            code = wanted.read(store)  # type: ignore[arg-type]
            problems = cls._problems(code, wanted.function)
        except ConfigurationError as error:
            problems = list(error.problems)
        if problems:
            raise ConfigurationError(*(_renamed(it, cls.path) for it in problems))
        return cls(code.module, wanted.function, code.files, code.in_image)

    @classmethod
    def _problems(cls, code: Code, function: str) -> list[Problem | str]:
        if code.in_image and not code.files:
            problem = Problem(
                "model_code names a module that is not in the image",
                received=code.module,
                expected="a module in the steps' image, or PATH.py:FUNCTION",
                fix="correct model_code",
            )
            return [problem]
        path, node, found = code.definition(function)
        if found or not isinstance(node, ast.FunctionDef) or node.decorator_list:
            return list(found)
        return [*cls._wrong_arguments(path, node)]

    @classmethod
    def _wrong_arguments(cls, path: str, node: ast.FunctionDef) -> list[Problem]:
        """Return what is wrong with the arguments of the function."""
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
            self._place(Path(_folder(self.digest)))
        module = importlib.import_module(self.module)
        if not self.in_image and not _is_in(module, _folder(self.digest)):
            raise ImportError(f"{self.module} is also the name of a loaded module; rename the file")
        return getattr(module, self.function)

    def _place(self, folder: Path) -> None:
        """Put the code on the path of imports, instead of other own code."""
        if str(folder) in sys.path:
            return
        sys.path[:] = [str(folder), *(place for place in sys.path if _OWN not in place)]
        for name in [name for name, module in sys.modules.items() if _is_in(module, _OWN)]:
            del sys.modules[name]
        for path, data in self.files.items():
            place = below(folder, path)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)
        importlib.invalidate_caches()

    def said(self, error: BaseException) -> str:
        """Log what the code raised; return it, with the last line of it that the error passed."""
        log.info("%s %s:%s failed", self.path, self.module, self.function, exc_info=error)
        text = f"{type(error).__name__}: {uncolored(str(error))}"
        folder = "" if self.in_image else _folder(self.digest)
        for frame in reversed(traceback.extract_tb(error.__traceback__)):
            if folder and frame.filename.startswith(folder):
                name = os.path.relpath(frame.filename, folder)
                return f"{text}, in {name}, line {frame.lineno}"
        return text


@cache
def _folder(digest: str) -> str:
    """Return a folder for code with this digest, until the process ends."""
    folder = mkdtemp(prefix=_OWN)
    Finalize(None, shutil.rmtree, (folder, True), exitpriority=0)  # also of a pool's process
    return folder


def _is_in(module: ModuleType, place: str) -> bool:
    return place in (getattr(module, "__file__", None) or "")


def place_of(path: str, text: str) -> dict[str, str]:
    """Return the option `path` with the place of its code; nothing if the image has it.

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
    words = {
        name: value.replace("model_code", path)
        for name, value in vars(problem).items()
        if isinstance(value, str)
    }
    return replace(problem, **words | {"path": path})
