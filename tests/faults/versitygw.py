"""A second S3 server: versitygw, built once from its Go module, on a folder."""

import json
import secrets
import shutil
import socket
import subprocess
from pathlib import Path

from kfp_tfjob.storage.credentials import SecretVolume
from kfp_tfjob.storage.retry import Patience
from kfp_tfjob.storage.store import Store
from tests.cluster import binaries
from tests.cluster.processes import Process
from tests.ports import free_port

PROGRAM = "versitygw"


def executable() -> Path | None:
    """Return the program, built where it is not in the cache; None where it cannot be built."""
    if PROGRAM in binaries.unbuilt() and not shutil.which("go"):
        return None
    return binaries.executable(PROGRAM)


class Versitygw:
    """A server, to be started; it can be stopped and started again on the same data.

    Args:
        folder: Everything that it stores; several processes may know the server by it.
        logs: The folder for its log; else that one too.

    Attributes:
        secret: The folder with its address and keys, as a mounted Secret has them.
    """

    def __init__(
        self,
        program: Path,
        folder: Path,
        host: str = "127.0.0.1",
        port: int = 0,
        logs: Path | None = None,
    ) -> None:
        self._program, self._folder = program, folder
        self._address = host, port or free_port(host)
        address = f"{host}:{self._address[1]}"
        self.endpoint = f"http://{address}"
        self.secret = folder / "secret"
        if not self.secret.exists():
            for name in ("data", "users", "secret"):
                (folder / name).mkdir(parents=True)
            for name, value in {
                "AWS_ACCESS_KEY_ID": "test",
                "AWS_SECRET_ACCESS_KEY": secrets.token_urlsafe(24),
                "AWS_REGION": "us-east-1",
                "AWS_ENDPOINT_URL": self.endpoint,
            }.items():
                (self.secret / name).write_text(value)
        self.process = Process(
            f"{PROGRAM}-{self._address[1]}",
            [program, "--port", address, "--iam-dir", folder / "users", "posix", folder / "data"],
            logs or folder,
            folder,
            {"ROOT_ACCESS_KEY": "test", "ROOT_SECRET_KEY": self.keys["AWS_SECRET_ACCESS_KEY"]},
        )

    @property
    def keys(self) -> dict[str, str]:
        """Its address and keys, by the names of the Secret's."""
        return {path.name: path.read_text() for path in self.secret.iterdir()}

    def store(self) -> Store:
        return Store(secret=SecretVolume(self.secret), patience=Patience(30))

    def start(self) -> None:
        self.process.start()
        self.process.wait_until(
            lambda: socket.create_connection(self._address, timeout=2).close() is None
        )

    def stop(self) -> None:
        """End it; what it stored stays."""
        self.process.stop()

    def reader(self, bucket: str) -> Path:
        """Return the Secret of a user who may list and read a bucket, and nothing else."""
        name, word = "reader", secrets.token_urlsafe(24)
        root = ["--access", "test", "--secret", self.keys["AWS_SECRET_ACCESS_KEY"]]
        user = ["--access", name, "--secret", word, "--role", "user"]
        subprocess.run(
            [self._program, "admin", *root, "--endpoint-url", self.endpoint, "create-user", *user],
            check=True,
            capture_output=True,
        )
        allowed = {
            "Effect": "Allow",
            "Principal": {"AWS": [name]},
            "Action": ["s3:ListBucket", "s3:GetObject"],
            "Resource": [f"arn:aws:s3:::{bucket}", f"arn:aws:s3:::{bucket}/*"],
        }
        self.store()._client.put_bucket_policy(
            Bucket=bucket, Policy=json.dumps({"Version": "2012-10-17", "Statement": [allowed]})
        )
        secret = self._folder / name
        shutil.copytree(self.secret, secret)
        (secret / "AWS_ACCESS_KEY_ID").write_text(name)
        (secret / "AWS_SECRET_ACCESS_KEY").write_text(word)
        return secret
