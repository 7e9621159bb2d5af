"""Who we are for the store: the Secret mounted as a volume, or the standard AWS chain.

The Secret is a volume and not the environment because a volume is renewed when the Secret is
rotated, while a process never sees its environment change.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from botocore.credentials import RefreshableCredentials
from botocore.session import Session

# Where pods have the Secret of parameter storage_secret; a local run names its own folder.
MOUNT = Path("/etc/kfp-tfjob/storage")
MOUNT_VARIABLE = "STORAGE_SECRET_DIR"
# A rotated Secret reaches the volume within about a minute; reading six small files is free.
_REREAD = timedelta(minutes=1)
# What the Secret that Kubeflow Pipelines ships with calls them.
_OTHER_NAMES = {"AWS_ACCESS_KEY_ID": "accesskey", "AWS_SECRET_ACCESS_KEY": "secretkey"}


@dataclass(frozen=True)
class SecretVolume:
    """The keys of the mounted Secret, read again at every call."""

    folder: Path

    @classmethod
    def from_environment(cls) -> SecretVolume:
        """Return the volume this process was given."""
        return cls(Path(os.environ.get(MOUNT_VARIABLE) or MOUNT))

    def get(self, key: str) -> str:
        """Return the value of `key` without surrounding white space, or an empty text."""
        for name in (key, _OTHER_NAMES.get(key)):
            try:
                if name and (value := (self.folder / name).read_text().strip()):
                    return value
            except OSError:
                continue
        return ""

    def has_keys(self) -> bool:
        """Tell whether there is anything in it: a Secret that is missing is an empty folder."""
        try:
            return any(not item.name.startswith(".") for item in self.folder.iterdir())
        except OSError:
            return False

    def _metadata(self) -> dict[str, str]:
        return {
            "access_key": self.get("AWS_ACCESS_KEY_ID"),
            "secret_key": self.get("AWS_SECRET_ACCESS_KEY"),
            "token": self.get("AWS_SESSION_TOKEN"),
            "expiry_time": (datetime.now(UTC) + 2 * _REREAD).isoformat(),
        }

    def install(self, session: Session) -> None:
        """Make `session` use the keys of the Secret; without them it keeps the AWS chain."""
        if self.get("AWS_ACCESS_KEY_ID"):
            session._credentials = RefreshableCredentials.create_from_metadata(
                metadata=self._metadata(),
                refresh_using=self._metadata,
                method="secret-volume",
                advisory_timeout=int(_REREAD.total_seconds()),
                mandatory_timeout=int(_REREAD.total_seconds()) // 2,
            )
