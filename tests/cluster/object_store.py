"""An S3 server that pods reach: versitygw on a folder, at the address of the bridge."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Mapping
from pathlib import Path

import boto3
from botocore.config import Config

from tests.cluster.host import BRIDGE_ADDRESS
from tests.cluster.processes import Process

_PORT = 7070
_REGION = "us-east-1"


class ObjectStore:
    """The S3 server of the cluster.

    Args:
        programs: Of `binaries.build`.
        state: Of the cluster; the objects are files in it.
        logs: The folder of the logs.

    Attributes:
        secret: Its address and keys, under the names of the Secret that pods mount.
    """

    def __init__(self, programs: Mapping[str, Path], state: Path, logs: Path) -> None:
        self.secret = {
            "AWS_ACCESS_KEY_ID": "kfp-tfjob-test",
            "AWS_SECRET_ACCESS_KEY": secrets.token_urlsafe(24),
            "AWS_ENDPOINT_URL": f"http://{BRIDGE_ADDRESS}:{_PORT}",
            "AWS_REGION": _REGION,
        }
        folder = state / "objects"
        self._folder = folder
        self._process = Process(
            "versitygw",
            [
                programs["versitygw"],
                f"--port={BRIDGE_ADDRESS}:{_PORT}",
                f"--region={_REGION}",
                "posix",
                folder,
            ],
            logs,
            state,
            {
                "ROOT_ACCESS_KEY": self.secret["AWS_ACCESS_KEY_ID"],
                "ROOT_SECRET_KEY": self.secret["AWS_SECRET_ACCESS_KEY"],
            },
        )

    def start(self) -> None:
        """Start it and wait until it answers."""
        self._folder.mkdir(exist_ok=True)
        self._process.start()
        self._process.wait_until(_answers)

    def stop(self) -> None:
        """End it: the store is away; `start` brings it back with everything that was stored."""
        self._process.stop()

    def client(self):
        """Return a boto3 client for tests on this host."""
        return boto3.client(
            "s3",
            endpoint_url=self.secret["AWS_ENDPOINT_URL"],
            aws_access_key_id=self.secret["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=self.secret["AWS_SECRET_ACCESS_KEY"],
            region_name=_REGION,
            config=Config(s3={"addressing_style": "path"}),
        )

    def make_bucket(self, name: str) -> None:
        """Make a bucket, unless it is there."""
        if name not in [bucket["Name"] for bucket in self.client().list_buckets()["Buckets"]]:
            self.client().create_bucket(Bucket=name)


def _answers() -> bool:
    socket.create_connection((BRIDGE_ADDRESS, _PORT), timeout=2).close()
    return True
