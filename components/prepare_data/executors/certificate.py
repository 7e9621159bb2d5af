"""The key pair of the workers of one run: only its holders may talk to the scheduler.

Dask unpickles, and so executes, what a peer sends. The scheduler and the workers of a run share one
self-signed certificate, and accept a peer only with it. It is made in memory when the workers
start, and is gone with them.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from distributed import Security

CERTIFICATE, KEY = "tls.crt", "tls.key"  # as in every Secret of the type kubernetes.io/tls


@dataclass(frozen=True)
class Certificate:
    """A self-signed certificate with its private key, both as PEM.

    Attributes:
        certificate: The certificate; it is its own authority.
        key: The private key.
    """

    certificate: str
    key: str

    @classmethod
    def new(cls) -> Certificate:
        """Return a new one; it is valid for a year, longer than any run."""
        from distributed import Security

        made = Security.temporary()
        return cls(made.tls_ca_file, made.tls_scheduler_key)

    @classmethod
    def read(cls, folder: Path) -> Certificate:
        """Return the one in a folder.

        Raises:
            OSError: It is not there.
        """
        return cls((folder / CERTIFICATE).read_text(), (folder / KEY).read_text())

    def write(self, folder: Path) -> None:
        """Write it into a folder, readable by this user only."""
        for name, text in self.files.items():
            handle = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with open(handle, "w") as file:
                file.write(text)

    @property
    def files(self) -> dict[str, str]:
        """The content of the files, by name."""
        return {CERTIFICATE: self.certificate, KEY: self.key}

    def security(self) -> Security:
        """Return the settings of Dask: TLS 1.3 in both directions, and nothing else."""
        import ssl

        from distributed import Security

        roles = ("client", "scheduler", "worker")
        return Security(
            require_encryption=True,
            tls_ca_file=self.certificate,
            tls_min_version=ssl.TLSVersion.TLSv1_3,
            **{f"tls_{role}_cert": self.certificate for role in roles},
            **{f"tls_{role}_key": self.key for role in roles},
        )

    def __repr__(self) -> str:
        """Return it without the key."""
        return "Certificate(...)"
