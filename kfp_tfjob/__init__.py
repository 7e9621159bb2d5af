"""Provides the import path of the project.

In a checkout the rooms are folders beside this one; in the wheel they are inside this package. Both
are imported as `kfp_tfjob.storage` and so on, so they do not conflict with a user's own package
called `trainer` or `components`.
"""

from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
if not (Path(__file__).parent / "storage").is_dir():
    __path__.append(str(_ROOT))
