"""Code of the user's own that a step runs beside the training, in a process without keys.

An option names its function, as `model_code` names that of the model.
"""

from __future__ import annotations

import ast
import base64
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from kfp_tfjob.storage.errors import ConfigurationError, Problem
from kfp_tfjob.storage.names import below
from kfp_tfjob.storage.store import Store
from kfp_tfjob.trainer.model_code import Code, ModelCode

# All that such a process gets of the environment of its step: no keys, no token, no store.
KEPT_VARIABLES = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "PYTHONPATH", "LD_LIBRARY_PATH")
_Kind = TypeVar("_Kind", bound="OwnCode")


@dataclass(frozen=True)
class OwnCode:
    """A function and its code.

    Attributes:
        module: The module.
        function: The function in it.
        files: The code by relative path; of a module of the image, only its own file.
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
            source = str(text).strip().rpartition(":")[0]
            raise ConfigurationError(*(_renamed(it, cls.path, source) for it in problems))
        return cls(code.module, wanted.function, code.files, code.in_image)

    @classmethod
    def _problems(cls, code: Code, function: str) -> list[Problem | str]:
        if code.in_image and not code.files:
            problem = Problem(
                "model_code names a module that is not in the image",
                received=code.module,
                expected="a module of the image of the steps, or PATH.py:FUNCTION",
                fix="correct model_code",
            )
            return [problem]
        path, node, found = code.definition(function)
        if found or not isinstance(node, ast.FunctionDef):
            return list(found)
        return [*cls._wrong_arguments(path, node)]

    @classmethod
    def _wrong_arguments(cls, path: str, node: ast.FunctionDef) -> list[Problem]:
        """Return what is wrong with the arguments of the function."""
        raise NotImplementedError

    @property
    def digest(self) -> str:
        """SHA-256 of the function and its code, wherever the code is."""
        digest = sha256(f"{self.module}:{self.function}\n".encode())
        for name in sorted(self.files):
            digest.update(f"{name}\0{sha256(self.files[name]).hexdigest()}\n".encode())
        return digest.hexdigest()

    def to_plain(self) -> dict[str, Any]:
        """Return it as JSON values."""
        files = {name: base64.b64encode(data).decode() for name, data in self.files.items()}
        return {
            "module": self.module,
            "function": self.function,
            "files": files,
            "in_image": self.in_image,
        }

    @classmethod
    def from_plain(cls: type[_Kind], plain: Mapping[str, Any]) -> _Kind:
        """Return the code of `to_plain`."""
        files = {name: base64.b64decode(data) for name, data in plain["files"].items()}
        return cls(plain["module"], plain["function"], files, plain["in_image"])

    def unpack(self, folder: Path) -> str:
        """Write the code to a folder; return the folder, or nothing if the image has the code."""
        for path, data in ({} if self.in_image else self.files).items():
            place = below(folder, path)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)
        return "" if self.in_image else str(folder)


def environment(home: Path) -> dict[str, str]:
    """Return the variables of a process that runs such code.

    Args:
        home: Its home, and its folder for temporary files.
    """
    kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
    own = {"HOME": str(home), "TMPDIR": str(home), "TZ": "UTC", "PYTHONHASHSEED": "0"}
    return kept | own


def place_of(path: str, text: str) -> dict[str, str]:
    """Return the option `path` with the place of its code; nothing if the image has it.

    Raises:
        ConfigurationError: It does not name a function.
    """
    if not text:
        return {}
    code = ModelCode.parse(text)
    return {} if code.in_image else {path: code.source}


def _renamed(problem: Problem | str, path: str, source: str) -> Problem | str:
    """Return a problem of model_code, whose rules are the same, with the name of this option.

    Args:
        problem: The problem; it may suggest another function.
        path: The option.
        source: Where the code is.
    """
    if isinstance(problem, str):
        return problem.replace("model_code", path)
    words = {
        name: value.replace("model_code", path)
        for name, value in vars(problem).items()
        if isinstance(value, str)
    }
    if problem.suggestion.isidentifier():
        words["suggestion"] = f"{source}:{problem.suggestion}"
    return replace(problem, **words | {"path": path})
