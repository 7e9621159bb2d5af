"""Packs this package into the file that a replica runs: `python3 -S supervisor.pyz -- COMMAND...`.

The modules keep their names in that file, so no module is loaded under two names.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

NAME = "supervisor.pyz"
_SOURCES = Path(__file__).parent
_PACKAGE = "kfp_tfjob/"


def pack(target: Path) -> None:
    """Write the file; the same sources give the same bytes.

    Args:
        target: Its path.

    Raises:
        OSError: It cannot be written.
    """
    members = {
        "__main__.py": (_SOURCES / "__main__.py").read_bytes(),
        _PACKAGE + "__init__.py": b"",
    }
    for path in _SOURCES.glob("*.py"):
        if path.name != "__main__.py":
            members[_PACKAGE + "supervisor/" + path.name] = path.read_bytes()
    # Not compressed: the python3 of an image may lack zlib.
    with zipfile.ZipFile(str(target), "w", zipfile.ZIP_STORED) as file:
        for name in sorted(members):
            file.writestr(zipfile.ZipInfo(name), members[name])
