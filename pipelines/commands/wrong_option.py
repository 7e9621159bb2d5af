"""Answers an option that does not exist with the one that sets what was meant."""

from __future__ import annotations

import click

from kfp_tfjob.options.pipeline import PARAMETERS
from kfp_tfjob.storage.words import nearest

_MOST = 3  # suggestions


def advice(error: click.NoSuchOption) -> str:
    """Return what to type instead of an option that does not exist; empty if nothing is near."""
    params = error.ctx.command.params if error.ctx else []
    own = [name for it in params for name in it.opts if name.startswith("--")]
    near = nearest(error.option_name, own, 0.8)
    if not any(it.name == "settings" for it in params):  # it takes no run parameters
        found = [near] if near else []
    else:
        found = _parameters(error.option_name.lstrip("-").replace("-", "_").lower(), near)
    return f"type {' or '.join(found[:_MOST])}" if found else ""


def _parameters(word: str, option: str) -> list[str]:
    """Return what to type for a word that names a parameter, a key, or something like it.

    Args:
        word: For instance `learning_rate`.
        option: The nearest option of the command; empty if none is near.
    """
    from kfp_tfjob.pipelines.explanation import explain

    names = {name.partition("_")[2]: name for name in PARAMETERS if "_" in name}
    names |= {name: name for name in PARAMETERS}
    keys: dict[str, list[str]] = {}
    for name, it in PARAMETERS.items():
        for path in explain(name, it.group) if it.group else ():
            keys.setdefault(path.rpartition(".")[2], []).append(path)
    for known in (word, nearest(word, [*names, *keys], 0.75)):
        if known in names:
            return [_typed(names[known])]
        if known in keys:
            return [_typed(path) for path in keys[known]]
        if option:
            return [option]
    return [f"--set model_hyperparameters.{word}=VALUE if your model function takes {word}"]


def _typed(path: str) -> str:
    it = PARAMETERS.get(path)
    if it and it.option:
        return " ".join(it.option)
    return f"--set {path}{'.KEY' if it and it.type is dict else ''}=VALUE"
