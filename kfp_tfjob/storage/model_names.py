"""Checks model names; a name becomes a folder in the store."""

from __future__ import annotations

import re

from kfp_tfjob.storage.errors import Problem

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def check_model_name(name: str) -> list[Problem]:
    """Return the problems of a model name."""
    if _NAME.fullmatch(name):
        return []
    return [
        Problem(
            "model_name is not valid" if name else "model_name is missing",
            received=repr(name),
            expected="1 to 100 letters, digits, '.', '_' or '-', the first a letter or digit",
            fix="set model_name to such a name, for instance churn-eu",
            path="model_name",
        )
    ]
