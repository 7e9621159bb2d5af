"""Sends, fetches and verifies folders, and mirrors the chief's output while it trains."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .folder import pull, push, verify

__all__ = ["pull", "push", "verify"]


def __getattr__(name: str) -> Any:
    """Import lazily: importing boto3 takes a second, and the sidecar handles signals before it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import folder

    return getattr(folder, name)
