"""Credentials for the store: from the mounted Secret, or from the standard AWS chain.

The Secret is mounted as a volume because a volume follows a rotation of the Secret. The environment
of a running process never changes.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from botocore.credentials import RefreshableCredentials
from botocore.session import Session

# Where pods mount the Secret that storage_secret names; a local run sets its own folder.
MOUNT = Path("/etc/kfp-tfjob/storage")
MOUNT_VARIABLE = "STORAGE_SECRET_DIR"
# A rotated Secret reaches the volume within about a minute; reading six small files is free.
_REREAD = timedelta(minutes=1)
# The same keys in the Secret that Kubeflow Pipelines ships.
OTHER_NAMES = {"AWS_ACCESS_KEY_ID": "accesskey", "AWS_SECRET_ACCESS_KEY": "secretkey"}


@dataclass(frozen=True)
class SecretVolume:
    """The keys of the mounted Secret, read again on every call."""

    folder: Path

    @classmethod
    def from_environment(cls) -> SecretVolume:
        """Return the volume of this process."""
        return cls(Path(os.environ.get(MOUNT_VARIABLE) or MOUNT))

    def get(self, key: str) -> str:
        """Return the value of `key` without surrounding white space, or an empty string."""
        for name in (key, OTHER_NAMES.get(key)):
            try:
                if name and (value := (self.folder / name).read_text().strip()):
                    return value
            except OSError:
                continue  # the key is optional, and a missing Secret is an empty folder
        return ""

    def has_keys(self) -> bool:
        """Return whether the Secret has any keys; a missing Secret is an empty folder."""
        try:
            return any(not item.name.startswith(".") for item in self.folder.iterdir())
        except OSError:
            return False  # no Secret is mounted, for example outside a pod

    def _metadata(self) -> dict[str, str]:
        return {
            "access_key": self.get("AWS_ACCESS_KEY_ID"),
            "secret_key": self.get("AWS_SECRET_ACCESS_KEY"),
            "token": self.get("AWS_SESSION_TOKEN"),
            "expiry_time": (datetime.now(UTC) + 2 * _REREAD).isoformat(),
        }

    def install(self, session: Session) -> None:
        """Make `session` use the keys of the Secret; without keys it keeps the AWS chain."""
        if self.get("AWS_ACCESS_KEY_ID"):
            session._credentials = RefreshableCredentials.create_from_metadata(
                metadata=self._metadata(),
                refresh_using=self._metadata,
                method="secret-volume",
                advisory_timeout=int(_REREAD.total_seconds()),
                mandatory_timeout=int(_REREAD.total_seconds()) // 2,
            )
