"""Measures the resident sidecar: the upload of a new folder, and passes without changes.

    python -m benchmarks.warm FOLDER ADDRESS ENDPOINT

It prints two JSON objects: seconds to store the folder, then seconds of each pass.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import RunLayout
from kfp_tfjob.storage.store import Store
from kfp_tfjob.uploader.local_files import scan
from kfp_tfjob.uploader.mirror import Mirror
from kfp_tfjob.uploader.ownership import Ownership

PASSES = 21


def main(folder: Path, address: S3Address, endpoint: str) -> None:
    store, run = Store(endpoint), RunLayout(address)
    with tempfile.TemporaryDirectory() as state:
        owner = Ownership(store, run, "bench", 1, Path(state))
        mirror = Mirror(store, folder, run, "bench", 1, check_owner=owner.check)
        store.probe(address)
        owner.claim()
        mirror.store(scan(folder.parent / "nothing"), scan(folder.parent / "nothing"))
        began, cpu = time.perf_counter(), time.process_time()
        found = scan(folder)
        mirror.store(found, found, everything=True)
        stored, cpu = time.perf_counter() - began, time.process_time() - cpu
        missing = mirror.missing(scan(folder))
        print(json.dumps({"stored": stored, "cpu": cpu, "missing": len(missing)}), flush=True)
        sys.stdin.readline()  # the parent counts requests from here on
        passes = []
        for _ in range(PASSES):
            began = time.perf_counter()
            before, found = found, scan(folder)
            mirror.store(found, before)
            mirror.prune(found, before)
            passes.append(time.perf_counter() - began)
    print(json.dumps({"passes": passes}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), S3Address.parse(sys.argv[2]), sys.argv[3])
