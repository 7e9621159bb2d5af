"""Sends a folder as every step does: `python -m benchmarks.push FOLDER ADDRESS ENDPOINT`."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.store import Store
from kfp_tfjob.uploader import push

if __name__ == "__main__":
    folder, address, endpoint = sys.argv[1:]
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    logging.getLogger("botocore").setLevel(logging.WARNING)
    push(Store(endpoint), Path(folder), S3Address.parse(address), "bench")
