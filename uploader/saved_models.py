"""Finds the SavedModels among files, because a SavedModel is only of use as a whole.

With the graph of one export and the variables of another, it may not load, or it may load and
predict something else. So the mirror empties saved_model.pb in the store before it replaces other
parts, and sends it last. A reader trusts a SavedModel of an unfinished run only if that file has
content.
"""

from __future__ import annotations

from collections.abc import Iterable

from kfp_tfjob.storage.layout import SAVED_MODEL

# What TensorFlow writes beside saved_model.pb; a program may keep other files there.
_PARTS = ("variables", "assets", "assets.extra", "fingerprint.pb", "keras_metadata.pb")


def saved_models(paths: Iterable[str]) -> dict[str, list[str]]:
    """Return the other parts of each SavedModel, by the path of its saved_model.pb."""
    paths = list(paths)
    models: dict[str, list[str]] = {
        path: [] for path in paths if path.rpartition("/")[2] == SAVED_MODEL
    }
    if not models:
        return models
    for path in paths:
        names = path.split("/")
        for depth, name in enumerate(names):
            graph = "/".join([*names[:depth], SAVED_MODEL])
            if name in _PARTS and graph in models:
                models[graph].append(path)
                break
    return models
