"""Sending, fetching and proving folders, and the chief's sidecar (`python -m uploader watch`)."""

from uploader.folder import pull, push, verify

__all__ = ["pull", "push", "verify"]
