"""Finds the SavedModels among files, because a SavedModel is usable only as a whole.

With the graph of one export and the variables of another, a SavedModel may fail to load, or it may
load and predict wrong values. So the mirror empties saved_model.pb in the store before it replaces
other parts, and sends it last. While a run is unfinished, readers trust a SavedModel only if that
file has content. Called by `mirror.py` and by the restore of a replica's init container.
"""

from __future__ import annotations

from collections.abc import Iterable

from kfp_tfjob.storage.layout import SAVED_MODEL

# The files and folders that TensorFlow writes next to saved_model.pb; programs may add others.
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
