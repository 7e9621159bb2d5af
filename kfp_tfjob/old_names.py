"""Names from before the import path `kfp_tfjob`, which stored schedules and commands still use.

`model_code: trainer.models:mlp`, `python -m trainer` and `python -m uploader` keep working. A
user's own package `trainer` or `uploader` comes first.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import NoReturn

# The programs of old names; old_names.pth puts the folder at the end of the path of imports of an
# installed wheel, where any regular package of such a name wins.
SHIMS = Path(__file__).with_name("shims")
_MODELS = "trainer.models"


def model_module(name: str) -> str:
    """Return the present name of a module of model_code.

    Args:
        name: As in MODEL_CODE. `trainer.models` means the module of this project, unless the path
            of imports has a package `trainer` with a module `models` that is not ours.
    """
    if name != _MODELS:
        return name
    found = importlib.util.find_spec("trainer")
    folders = map(Path, (found and found.submodule_search_locations) or ())
    theirs = (folder for folder in folders if not (folder / "user_code.py").exists())
    has_models = any((it / "models.py").exists() or (it / "models").is_dir() for it in theirs)
    return name if has_models else f"kfp_tfjob.{name}"


def warning(old: str) -> str:
    """Return the sentence for a person who used an old name: a module or `python -m` and one."""
    head, _, module = old.rpartition(" ")
    return f"{old} is an old name. Fix: write {f'{head} kfp_tfjob.{module}'.strip()}"


def restart(program: str) -> NoReturn:
    """Replace this process, `python -m PROGRAM`, by `python -m kfp_tfjob.PROGRAM`.

    No module is loaded under two names this way, and the process keeps its id.
    """
    print(f"warning: {warning(f'python -m {program}')}", file=sys.stderr, flush=True)
    start = sys.orig_argv[: len(sys.orig_argv) - len(sys.argv) + 1]  # python, its flags, -m NAME
    name = f"{start[-1].removesuffix(program)}kfp_tfjob.{program}"
    os.execv(sys.executable, [sys.executable, *start[1:-1], name, *sys.argv[1:]])
