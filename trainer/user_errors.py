"""Describes errors of the user's code: the last line of the traceback, and its place.

Called wherever the trainer calls a user's function, model or callback.
"""

from __future__ import annotations

import traceback
from pathlib import Path

from kfp_tfjob.common.escaping import uncolored

# A sys.exit() in the user's code would end this process as if the model were trained.
FAILURES = (Exception, SystemExit)


def where(error: BaseException) -> str:
    """Return the last line of a traceback, with its place in the user's code."""
    if isinstance(error, SyntaxError):
        return f"{last_line(error)} ({Path(error.filename or '?').name}, line {error.lineno})"
    frames = traceback.extract_tb(error.__traceback__)
    user_frames = [
        frame
        for frame in frames
        if "site-packages" not in frame.filename
        and "importlib" not in frame.filename
        and Path(frame.filename).parent != Path(__file__).parent
    ]
    frame = user_frames[-1] if user_frames else None
    return last_line(error) + (f" ({frame.filename}, line {frame.lineno})" if frame else "")


def last_line(error: BaseException) -> str:
    """Return an error's type and the first lines of its message."""
    lines = [line.strip() for line in uncolored(str(error)).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:3])[:400]}"
