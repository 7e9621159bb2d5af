"""Masks the keys of the store and other secrets in logs and messages.

Called by every program that shows the output of a replica or of another server.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable

from kfp_tfjob.common.escaping import without_secrets
from kfp_tfjob.storage.credentials import SecretVolume
from kfp_tfjob.storage.secret_keys import WEBHOOK_KEY

_NAMES = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", WEBHOOK_KEY)
_REREAD_SECONDS = 60.0  # the kubelet updates a mounted Secret about once a minute
_hidden: set[str] = set()


def hide(secrets: Iterable[str]) -> None:
    """Make every Mask of this process hide more secrets, also as JSON escapes them.

    A log is masked line by line, so each line of a secret with several, such as a key, is one.
    """
    for part in (part for secret in secrets for part in (secret, *secret.splitlines())):
        _hidden.add(part)
        _hidden.update(json.dumps(part, ensure_ascii=ascii)[1:-1] for ascii in (True, False))


class Mask:
    """Hides the keys this process knows, including those from before a rotation."""

    def __init__(self) -> None:
        self._secrets: set[str] = set()
        self._read = -_REREAD_SECONDS

    def __call__(self, text: str) -> str:
        """Return the text without secrets."""
        if time.monotonic() - self._read >= _REREAD_SECONDS:
            self._read = time.monotonic()
            volume = SecretVolume.from_environment()
            for name in _NAMES:
                self._secrets |= {volume.get(name), os.environ.get(name, "")}
        return without_secrets(text, self._secrets | _hidden)
