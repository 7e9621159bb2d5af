"""Proves what a run left in the store, byte by byte, with boto3 and the documented names alone."""

import base64
import json
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any

import boto3
from awscrt.checksums import crc64nvme


@dataclass(frozen=True)
class Bucket:
    """The objects below one prefix of a bucket."""

    name: str
    prefix: str  # without a slash at its end

    @cached_property
    def _client(self) -> Any:
        return boto3.client("s3")

    def keys(self, folder: str = "") -> list[str]:
        pages = self._client.get_paginator("list_objects_v2").paginate(
            Bucket=self.name, Prefix=f"{self.prefix}/{folder}"
        )
        found = (item["Key"] for page in pages for item in page.get("Contents", []))
        return sorted(key.removeprefix(f"{self.prefix}/") for key in found)

    def key(self, uri: str) -> str:
        """Return the key below the prefix of an address in this bucket."""
        root = f"s3://{self.name}/{self.prefix}/"
        assert uri.startswith(root), uri
        return uri.removeprefix(root)

    def read(self, key: str) -> bytes:
        return self._client.get_object(Bucket=self.name, Key=f"{self.prefix}/{key}")["Body"].read()

    def document(self, key: str) -> dict[str, Any]:
        return json.loads(self.read(key))

    def write(self, key: str, data: bytes) -> None:
        self._client.put_object(Bucket=self.name, Key=f"{self.prefix}/{key}", Body=data)

    def delete_all(self) -> None:
        for key in self.keys():
            self._client.delete_object(Bucket=self.name, Key=f"{self.prefix}/{key}")

    def verified(self, folder: str) -> dict[str, Any]:
        """Return the manifest of a folder, with every object compared by its bytes."""
        manifest = self.document(f"{folder}/manifest.json")
        assert manifest["objects"]
        for item in manifest["objects"]:
            data = self.read(f"{folder}/{item['key']}")
            checksum = base64.b64encode(crc64nvme(data).to_bytes(8, "big")).decode()
            assert (len(data), checksum) == (item["size"], item["crc64nvme"]), item["key"]
            assert item.get("sha256") in (None, sha256(data).hexdigest()), item["key"]
        return manifest

    def checkpoint(self, run_id: str) -> int:
        """Return the step of the newest checkpoint that is complete, verified; 0 for none."""
        folder = f"runs/{run_id}/output/checkpoints"
        complete = [key for key in self.keys(folder) if key.endswith("/manifest.json")]
        steps = [int(key.split("/")[-2]) for key in complete]
        if not steps:
            return 0
        name = next(key for key in complete if int(key.split("/")[-2]) == max(steps))
        assert self.verified(name.removesuffix("/manifest.json"))["kind"] == "checkpoint"
        return max(steps)

    def champions(self, model: str) -> list[str]:
        """Return the runs of a model's champions, each proven up to its servable files."""
        folder = f"models/{model}"
        keys = self.keys(f"{folder}/champions")
        records = [self.document(f"{folder}/champions/{n}.json") for n in range(1, len(keys) + 1)]
        for record in records:
            version = f"{folder}/versions/{record['version']}"
            manifest = self.verified(version)
            assert (manifest["kind"], manifest["run_id"]) == ("model", record["run_id"])
            stored = self.read(f"{version}/manifest.json")
            assert sha256(stored).hexdigest() == record["manifest_sha256"]
            served = f"{folder}/serving/{record.get('serving') or record['version']}"
            for item in manifest["objects"]:
                kind, _, name = item["key"].partition("/")
                if kind == "model":
                    assert self.read(f"{served}/{name}") == self.read(f"{version}/{item['key']}")
        return [record["run_id"] for record in records]
