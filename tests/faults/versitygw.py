"""A second S3 server: versitygw, built once from its Go module, on a folder."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import subprocess
import time
from pathlib import Path

from tests.cluster import binaries
from tests.ports import free_port

PROGRAM = "versitygw"


def executable() -> Path | None:
    """Return the program, built where it is not in the cache; None where it cannot be built."""
    if PROGRAM in binaries.unbuilt() and not shutil.which("go"):
        return None
    return binaries.executable(PROGRAM)


class Versitygw:
    """A running server."""

    def __init__(self, program: Path, folder: Path) -> None:
        self.folder, self._program = folder, program
        data = folder / "data"
        data.mkdir(parents=True)
        self._users = folder / "users"
        self._users.mkdir()
        self.port = free_port()
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self.secret = folder / "secret"
        self.secret.mkdir()
        for name, value in {
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": secrets.token_urlsafe(24),
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": self.endpoint,
        }.items():
            (self.secret / name).write_text(value)
        self.start()

    def start(self) -> None:
        """Start it, and wait until it answers."""
        keys = {
            "ROOT_ACCESS_KEY": "test",
            "ROOT_SECRET_KEY": (self.secret / "AWS_SECRET_ACCESS_KEY").read_text(),
        }
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen(
                [self._program, "--port", f"127.0.0.1:{self.port}"]
                + ["--iam-dir", self._users, "posix", self.folder / "data"],
                env=os.environ | keys,
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + 120
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                assert self.process.poll() is None, (self.folder / "log").read_text()
                assert time.monotonic() < deadline
                time.sleep(0.05)

    def reader(self, bucket: str) -> Path:
        """Return the Secret of a user who may list and read a bucket, and nothing else."""
        import boto3

        keys = {path.name: path.read_text() for path in self.secret.iterdir()}
        name, word = "reader", secrets.token_urlsafe(24)
        root = ["--access", "test", "--secret", keys["AWS_SECRET_ACCESS_KEY"]]
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
        boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name=keys["AWS_REGION"],
            aws_access_key_id="test",
            aws_secret_access_key=keys["AWS_SECRET_ACCESS_KEY"],
        ).put_bucket_policy(
            Bucket=bucket, Policy=json.dumps({"Version": "2012-10-17", "Statement": [allowed]})
        )
        secret = self.folder / name
        secret.mkdir()
        keys |= {"AWS_ACCESS_KEY_ID": name, "AWS_SECRET_ACCESS_KEY": word}
        for key, value in keys.items():
            (secret / key).write_text(value)
        return secret

    def stop(self) -> None:
        """End it; what it stored stays."""
        self.process.terminate()
        self.process.wait()
