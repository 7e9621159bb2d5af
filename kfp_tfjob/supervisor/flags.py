"""Turns hyperparameters into the flags of a command line."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

REFERENCE = "$(HYPERPARAMETER_FLAGS)"


def flags(hyperparameters: Mapping[str, Any]) -> list[str]:
    """Return the flags of a program.

    True is the flag alone, false is `--no-key`, null is no flag, and a list repeats the flag.
    Nested values are JSON.
    """
    return [word for key, value in hyperparameters.items() for word in _flag(key, value)]


def _flag(key: str, value: Any) -> Iterator[str]:
    if value is None:
        return
    if isinstance(value, bool):
        yield f"--{key}" if value else f"--no-{key}"
        return
    for item in value if isinstance(value, list) else [value]:
        text = item if isinstance(item, str) else json.dumps(item, ensure_ascii=False)
        # A program takes `-1e-05` after a flag for another flag.
        yield from [f"--{key}={text}"] if text.startswith("-") else [f"--{key}", text]
