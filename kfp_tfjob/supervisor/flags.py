"""Turns hyperparameters into the flags of a command line.

Called by `tf_config.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

REFERENCE = "$(HYPERPARAMETER_FLAGS)"


def flags(hyperparameters: Mapping[str, Any]) -> list[str]:
    """Return the hyperparameters as command-line flags, in order.

    True is the flag alone, false is `--no-key`, null is omitted, and a list repeats the flag.
    Nested values are JSON.
    """
    return [word for key, value in hyperparameters.items() for word in _flag(key, value)]


def _flag(key: str, value: Any) -> Iterator[str]:
    if value is None:
        return
    if isinstance(value, bool):
        yield f"--{key}" if value else f"--no-{key}"
        return
    for element in value if isinstance(value, list) else [value]:
        argument = element if isinstance(element, str) else json.dumps(element, ensure_ascii=False)
        # A program takes `-1e-05` after a flag for another flag.
        yield from [f"--{key}={argument}"] if argument.startswith("-") else [f"--{key}", argument]
