"""Sending, fetching and proving folders, and the chief's sidecar."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kfp_tfjob.uploader.folder import pull, push, verify

__all__ = ["pull", "push", "verify"]


def __getattr__(name: str) -> Any:
    """Load what is asked for: the sidecar catches signals before the second that boto3 takes."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from kfp_tfjob.uploader import folder

    return getattr(folder, name)
