"""No secret in a log: the keys of the store are blotted out of what replicas say."""

from __future__ import annotations

import os
import time

from storage.credentials import SecretVolume

_NAMES = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
_REREAD_SECONDS = 60.0
_SHORTEST = 6  # what is shorter is no secret, and would blot out words
MASK = "******"


class Mask:
    """Blots out the keys this process knows, also those it was given before a rotation."""

    def __init__(self) -> None:
        self._secrets: set[str] = set()
        self._read = -_REREAD_SECONDS

    def __call__(self, text: str) -> str:
        """Return a text without secrets."""
        if time.monotonic() - self._read >= _REREAD_SECONDS:
            self._read = time.monotonic()
            volume = SecretVolume.from_environment()
            for name in _NAMES:
                self._secrets |= {volume.get(name), os.environ.get(name, "")}
        for secret in self._secrets:
            if len(secret) >= _SHORTEST and secret in text:
                text = text.replace(secret, MASK)
        return text
