"""An S3 server that pods reach: versitygw on a folder, at the address of the bridge."""

from __future__ import annotations

import contextlib
import secrets
import socket
from collections.abc import Mapping
from pathlib import Path

import boto3
from botocore.config import Config

from tests.cluster.host import BRIDGE_ADDRESS
from tests.cluster.processes import Process

STORE_PORT = 7070
_REGION = "us-east-1"


class ObjectStore:
    """An S3 server; the cluster has one, and a test whose store goes away has one of its own.

    Args:
        state: Of the cluster; the objects and the secret key are files in it.

    Attributes:
        secret: Its address and keys, under the names of the Secret that pods mount.
    """

    def __init__(
        self, programs: Mapping[str, Path], state: Path, logs: Path, port: int = STORE_PORT
    ) -> None:
        self._port = port
        self.secret = {
            "AWS_ACCESS_KEY_ID": "kfp-tfjob-test",
            "AWS_SECRET_ACCESS_KEY": _key(state / f"objects-{port}.key"),
            "AWS_ENDPOINT_URL": f"http://{BRIDGE_ADDRESS}:{port}",
            "AWS_REGION": _REGION,
        }
        folder = state / f"objects-{port}"
        self._folder = folder
        self._process = Process(
            f"versitygw-{port}",
            [
                programs["versitygw"],
                f"--port={BRIDGE_ADDRESS}:{port}",
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
        self._process.wait_until(self._answers)

    def stop(self) -> None:
        """End it: the store is down; `start` brings it back with everything that was stored."""
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
        client = self.client()
        with contextlib.suppress(
            client.exceptions.BucketAlreadyExists, client.exceptions.BucketAlreadyOwnedByYou
        ):
            client.create_bucket(Bucket=name)

    def _answers(self) -> bool:
        socket.create_connection((BRIDGE_ADDRESS, self._port), timeout=2).close()
        return True


def _key(path: Path) -> str:
    """Return the secret key in a file, which is made at the first use."""
    if not path.exists():
        path.touch(mode=0o600)
        path.write_text(secrets.token_urlsafe(24))
    return path.read_text()
