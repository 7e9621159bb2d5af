"""Keeps names from before the import path `kfp_tfjob` working, for stored schedules and commands.

These are `model_code: trainer.models:mlp`, `python -m trainer` and `python -m uploader`. A user's
own package `trainer` or `uploader` takes precedence.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import NoReturn

# The programs with old names. In an installed wheel, old_names.pth puts this folder at the end of
# the import path, where any regular package with such a name takes precedence.
SHIMS = Path(__file__).with_name("shims")
_MODELS = "trainer.models"


def model_module(name: str) -> str:
    """Return the current name of a module of model_code.

    Args:
        name: As in MODEL_CODE. `trainer.models` means the module of this project, unless the import
            path has a package `trainer` with a module `models` that is not ours.
    """
    if name != _MODELS:
        return name
    found = importlib.util.find_spec("trainer")
    folders = map(Path, (found and found.submodule_search_locations) or ())
    theirs = (folder for folder in folders if not (folder / "user_code.py").exists())
    has_models = any((it / "models.py").exists() or (it / "models").is_dir() for it in theirs)
    return name if has_models else f"kfp_tfjob.{name}"


def warning(old: str) -> str:
    """Return the warning about an old name: a module, or `python -m` and a module."""
    head, _, module = old.rpartition(" ")
    return f"{old} is an old name. Fix: write {f'{head} kfp_tfjob.{module}'.strip()}"


def restart(program: str) -> NoReturn:
    """Replace this process, `python -m PROGRAM`, by `python -m kfp_tfjob.PROGRAM`.

    This way no module is loaded under two names, and the process keeps its id.
    """
    print(f"warning: {warning(f'python -m {program}')}", file=sys.stderr, flush=True)
    start = sys.orig_argv[: len(sys.orig_argv) - len(sys.argv) + 1]  # python, its flags, -m NAME
    name = f"{start[-1].removesuffix(program)}kfp_tfjob.{program}"
    os.execv(sys.executable, [sys.executable, *start[1:-1], name, *sys.argv[1:]])
