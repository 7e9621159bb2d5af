"""Measures data_options.append: a file with a tenth of the rows is added to ten others.

    python -m benchmarks.append [--rows N] [--server swift|versitygw] [numbers|mixed ...]

The files are in the store. `first` prepares ten files, `append` adds the eleventh to that dataset,
`whole` prepares all eleven at once into an empty place. Each is a new process on one core. Bytes
are those of the bodies that the process receives and sends; `copied` are those that the store
copies within itself. The last line is a JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import Any

from benchmarks.prepare_files import LABEL, MIXED, NUMBERS, table
from benchmarks.servers import real

ROWS = 1_100_000
FILES = 11
MOST = 0.15  # of the bytes may be read, and written

# Prepares s3://bench/<arguments: data, output_uri> and says what it took.
_WORK = """
import json, sys, threading, time
from botocore.response import StreamingBody
from kfp_tfjob.components.prepare_data.engine import run
from kfp_tfjob.components.step import Step
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.link import Link
from kfp_tfjob.storage.store import Store

took, lock = {"read": 0, "written": 0, "copied": 0}, threading.Lock()

def add(name, size):
    with lock:
        took[name] += size

read, put, copy = StreamingBody.read, Link.put, Store.copy

def counted_read(self, *given):
    data = read(self, *given)
    add("read", len(data))
    return data

def counted_put(self, what, address, body, parameters):
    add("written", body.size)
    return put(self, what, address, body, parameters)

def counted_copy(self, source, address, expected):
    add("copied", expected.size)
    return copy(self, source, address, expected)

StreamingBody.read, Link.put, Store.copy = counted_read, counted_put, counted_copy
data, out, label = sys.argv[1:]
store = Store()
begin, cpu = time.monotonic(), time.process_time()
step = Step("prepare_data", "r1", Layout(S3Address.parse(out)), store)
done = run(step, data, label, {"append": True}, processes=1)
took |= {"wall": time.monotonic() - begin, "cpu": time.process_time() - cpu}
took |= {"dataset": done.dataset_uri, "said": done.appended}
print(json.dumps(took))
"""


def main() -> int:
    """Run the benchmark; exit code 1 if it misses a limit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=ROWS, help="of all files together")
    parser.add_argument("--server", default="swift", choices=("swift", "versitygw"))
    parser.add_argument("parts", nargs="*", default=[NUMBERS, MIXED])
    given = parser.parse_args()
    results = {}
    for part in given.parts:
        with tempfile.TemporaryDirectory() as folder:
            with real(given.server, Path(folder) / "store", None) as target:
                os.environ.update(target.keys, AWS_ENDPOINT_URL=target.endpoint)
                results[part] = _measured(part, given.rows)
        _show(part, results[part])
    print(json.dumps(results))
    good = all(result["good"] for result in results.values())
    return 0 if good else 1


def _measured(part: str, rows: int) -> dict[str, Any]:
    from kfp_tfjob.storage.address import S3Address
    from kfp_tfjob.storage.store import Store

    store, base = Store(), S3Address("bench")
    header, *lines = table(part, rows).read_text().splitlines(keepends=True)
    each, size = -(-len(lines) // FILES), 0

    def write(number: int) -> int:
        data = "".join([header, *lines[number * each : (number + 1) * each]]).encode()
        store.write(base / "data" / f"part-{number:02d}.csv", data)
        return len(data)

    for number in range(FILES - 1):
        size += write(number)
    found = {"first": _run("data", "appended")}
    size += write(FILES - 1)
    found["append"] = _run("data", "appended")
    found["whole"] = _run("data", "whole")
    digests = [_digests(store, found[way]["dataset"]) for way in ("append", "whole")]
    result = {**found, "source": size, "equal": digests[0] == digests[1]}
    result["objects"] = len(digests[0])
    result["good"] = result["equal"] and all(
        found["append"][what] <= MOST * found["whole"][what] for what in ("read", "written")
    )
    return result


def _run(data: str, out: str) -> dict[str, Any]:
    line = [sys.executable, "-c", _WORK, f"s3://bench/{data}", f"s3://bench/{out}", LABEL]
    done = subprocess.run(line, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def _digests(store: Any, uri: str) -> dict[str, str]:
    """Return the SHA-256 of each object of a dataset, by key."""
    from kfp_tfjob.storage.address import S3Address

    base = S3Address.parse(uri)
    return {
        item.address.key[len(base.key) :]: sha256(store.read(item.address, 1 << 30)).hexdigest()
        for item in store.list(base)
    }


def _show(part: str, result: dict[str, Any]) -> None:
    size, same = result["source"] / 1e6, "equal" if result["equal"] else "DIFFERENT"
    print(f"{part}, {size:,.0f} MB in {FILES} files; {result['objects']} objects, {same}")
    print(f"{'':8}{'read MB':>10}{'written MB':>12}{'copied MB':>11}{'CPU s':>8}{'wall s':>8}")
    for way in ("first", "append", "whole"):
        took = result[way]
        sizes = [took[what] / 1e6 for what in ("read", "written", "copied")]
        print(f"{way:8}{sizes[0]:>10.1f}{sizes[1]:>12.1f}{sizes[2]:>11.1f}", end="")
        print(f"{took['cpu']:>8.1f}{took['wall']:>8.1f}")
    shares = [result["append"][what] / result["whole"][what] for what in ("read", "written", "cpu")]
    words = zip(("read", "written", "CPU"), shares, strict=True)
    print("append / whole: " + ", ".join(f"{word} {share:.1%}" for word, share in words))


if __name__ == "__main__":
    sys.exit(main())
