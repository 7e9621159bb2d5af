"""What an error of own code says; the processes that run such code import little else."""

from __future__ import annotations

import os
import traceback


def said(error: BaseException, folder: str) -> str:
    """Return an error with the last line of the user's code that it passed.

    Args:
        error: What the code raised.
        folder: Where the code is; empty for a module of the image.
    """
    text = f"{type(error).__name__}: {error}"
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if folder and frame.filename.startswith(folder):
            name = os.path.relpath(frame.filename, folder)
            return f"{text}, in {name}, line {frame.lineno}"
    return text
