"""Provides the import path of the project.

In a checkout the rooms are folders beside this one; in the wheel they are inside this package. Both
are imported as `kfp_tfjob.storage` and so on, so they do not conflict with a user's own package
called `trainer` or `components`.
"""

from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
if not (Path(__file__).parent / "storage").is_dir():
    __path__.append(str(_ROOT))


def __getattr__(name: str) -> object:
    """Return `Client`, which loads only when it is asked for."""
    if name == "Client":
        from kfp_tfjob.pipelines.kubeflow.client import Client

        return Client
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
