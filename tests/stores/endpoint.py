"""A store that the user has: the URL of a bucket, and keys in the environment."""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from urllib.parse import urlsplit

from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.credentials import SecretVolume
from kfp_tfjob.storage.retry import Patience
from kfp_tfjob.storage.store import Store

# Without a session token: the proxy of the tests, which signs requests again, does not send one.
_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")


_FOLDER = f"kfp-tfjob-test-{uuid.uuid4().hex[:8]}"  # of this process


def place(url: str) -> S3Address:
    """Return the folder of the bucket in which tests write."""
    return S3Address(urlsplit(url).path.strip("/"), _FOLDER)


class Endpoint:
    """A bucket of a running store.

    Args:
        url: `https://HOST/BUCKET`, also of AWS: `https://s3.REGION.amazonaws.com/BUCKET`.
        folder: The folder for its secret.

    Attributes:
        endpoint: The URL without the bucket.
        secret: The folder with its address and keys, as a mounted Secret has them.
    """

    def __init__(self, url: str, folder: Path) -> None:
        parts = urlsplit(url)
        self.endpoint, self._place = f"{parts.scheme}://{parts.netloc}", place(url)
        self.secret = folder / "secret"
        self.secret.mkdir(parents=True)
        region = os.environ.get("AWS_REGION", "us-east-1")
        values = {name: os.environ[name] for name in _KEYS}
        for name, value in (values | {"AWS_REGION": region}).items():
            (self.secret / name).write_text(value)
        (self.secret / "AWS_ENDPOINT_URL").write_text(self.endpoint)

    def store(self) -> Store:
        """Return a store that uses this endpoint, and no other."""
        return Store(secret=SecretVolume(self.secret), patience=Patience(30))

    def empty(self) -> None:
        """Delete what tests have written."""
        store = self.store()
        for item in list(store.list(self._place)):
            store.delete(item.address)
