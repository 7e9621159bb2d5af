"""Parses durations: `60`, `60s`, `500ms`, `2m`, `1.5h`."""

from __future__ import annotations

import re

GRAMMAR = "a number of seconds, or a number with the unit ms, s, m or h"
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)?")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, None: 1.0}


def parse(text: str) -> float | None:
    """Return the seconds of a duration; None if the text is not a duration."""
    found = _DURATION.fullmatch(text.strip())
    return float(found[1]) * _SECONDS[found[2]] if found else None
