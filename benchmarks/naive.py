"""Compares a common upload loop beside a trainer with our sidecar, under the same faults.

    while ! test -e DONE; do sleep; done; aws s3 sync; exit 0

For each fault, it shows the exit code of the uploader, and whether the store has the output of the
trainer. It prints a table and, as the last line, one JSON object.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers import AWS, environment, installed
from kfp_tfjob.common.errors import StepError
from kfp_tfjob.pipelines.local.s3_server import Server
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.store import Store
from kfp_tfjob.uploader.local_files import inventory, scan
from tests.faults import proxy as faults
from tests.faults.proxy import Fault, FaultProxy

EVER = float("inf")
SECONDS = 12  # time limit of a pod here: for the loop, and as our STORE_DEADLINE
LOOP = """
while ! test -e "$FOLDER/DONE"; do sleep 0.1; done
"$AWS" "${AWS%python}aws" s3 sync "$FOLDER" "$TARGET" --endpoint-url "$ENDPOINT"
exit 0
"""


@dataclass(frozen=True)
class Scene:
    """One fault.

    Attributes:
        name: Name in the table.
        faults: Faults of the network and the store.
        stale: Whether the folder has a marker of an earlier run.
        trainer_ends: Whether the trainer finishes.
    """

    name: str
    faults: Callable[[], list[Fault]] = list
    stale: bool = False
    trainer_ends: bool = True


SCENES = [
    Scene("nothing goes wrong"),
    Scene("503 bursts", lambda: [Fault(faults.slow_down, times=8)]),
    Scene("resets after half a body", lambda: [Fault(faults.reset_midway, times=5)]),
    Scene(
        "the store is unreachable until the deadline",
        lambda: [Fault(faults.away(10_000), ".*", times=EVER)],
    ),
    Scene("the store is unreachable for 6 s", lambda: [Fault(faults.away(6), ".*", times=EVER)]),
    Scene("read-only credentials", lambda: [Fault(faults.refuse(403, "AccessDenied"), times=EVER)]),
    Scene(
        "write permission is lost midway",
        lambda: [Fault(faults.refuse(403, "AccessDenied"), times=EVER, after=8)],
    ),
    Scene(
        "bits flip, and the store ignores checksums",
        lambda: [
            Fault(faults.ignore_checksums, times=EVER),
            Fault(faults.damage, target="model", times=2),
        ],
    ),
    Scene("a marker of an earlier run", stale=True),
    Scene("the trainer is killed after checkpoint 2", trainer_ends=False),
]


def train(folder: Path, ends: bool) -> None:
    """Write the output of a trainer, incomplete if it is killed."""
    for step in (1, 2):
        temporary = folder / "checkpoints" / f"{step}.tmp"
        temporary.mkdir(parents=True)
        for name in ("data", "index"):
            (temporary / name).write_bytes(os.urandom(50_000))
        temporary.rename(temporary.with_suffix(""))
        time.sleep(0.5)
    if ends:
        (folder / "model").mkdir()
        for number in range(6):
            (folder / "model" / f"{number}").write_bytes(os.urandom(20_000))


def stored(store: Store, prefix: S3Address, folder: Path) -> tuple[int, int]:
    """Return the number of files with the right bytes in the store, and of all files."""
    right = 0
    files = scan(folder).files
    files = {path: file for path, file in files.items() if path not in ("DONE", "completion.json")}
    for path in files:
        try:
            right += store.read(prefix / path) == (folder / path).read_bytes()
        except StepError:
            continue
    return right, len(files)


def naive(scene: Scene, folder: Path, keys: Mapping[str, str], endpoint: str, uri: str) -> str:
    """Run the common loop; return how it ended."""
    if scene.stale:
        (folder / "DONE").touch()
    aws = installed(AWS) / "python"
    process = subprocess.Popen(
        ["sh", "-c", LOOP],
        env=environment(keys)
        | {"FOLDER": str(folder), "TARGET": uri, "ENDPOINT": endpoint, "AWS": str(aws)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    train(folder, scene.trainer_ends)
    if scene.trainer_ends:
        (folder / "DONE").touch()
    try:
        # A shell as the first process of a container ignores SIGTERM: it gets SIGKILL.
        return f"exit {process.wait(SECONDS)}"
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.wait()
        return "never ends"


def ours(scene: Scene, folder: Path, keys: Mapping[str, str], endpoint: str, uri: str) -> str:
    """Run the sidecar as the supervisor does; return the result for the trainer."""
    keep = folder / ".uploader"
    keep.mkdir()
    if scene.stale:
        (keep / "flush-reply.json").write_text('{"id": "earlier", "state": "stored"}')
    line = [
        sys.executable,
        "-m",
        "kfp_tfjob.uploader",
        "watch",
        str(folder),
        uri,
        "--interval",
        "0.1",
    ]
    line += ["--attempt", "1", "--run-id", "r", "--endpoint", endpoint, "--grace", "8"]
    process = subprocess.Popen(line, env=environment(keys), stdout=subprocess.DEVNULL)
    train(folder, scene.trainer_ends)
    state = ""
    if scene.trainer_ends:
        (folder / "completion.json").write_text('{"run_id": "r", "attempt": 1}')
        files, digest = inventory(scan(folder).files.values())
        request = {"id": "now", "attempt": 1, "files": files, "inventory": digest}
        (keep / "request.part").write_text(json.dumps(request))
        (keep / "request.part").replace(keep / "flush-request.json")
        deadline = time.monotonic() + SECONDS
        while state != "stored" and time.monotonic() < deadline:
            time.sleep(0.05)
            reply = keep / "flush-reply.json"
            body = json.loads(reply.read_text()) if reply.exists() else {}
            state = body.get("state", "") if body.get("id") == "now" else ""
    process.terminate()
    process.wait()
    if not scene.trainer_ends:
        return "killed, saved"
    return "exit 0" if state == "stored" else "exit 145"


def main() -> None:
    rows = []
    with tempfile.TemporaryDirectory() as temporary, Server.start(Path(temporary) / "s3") as server:
        keys = {path.name: path.read_text() for path in server.secret.iterdir()}
        truth = server.store()
        truth.make_bucket("bench")
        for number, scene in enumerate(SCENES):
            row: dict[str, object] = {"fault": scene.name}
            for name, way in (("naive", naive), ("ours", ours)):
                folder = Path(temporary) / f"{number}-{name}"
                folder.mkdir()
                base = S3Address("bench", f"{number}-{name}/runs/r")
                with FaultProxy(server.endpoint, server.secret) as proxy:
                    proxy.faults = scene.faults()
                    given = {k: v for k, v in keys.items() if k != "AWS_ENDPOINT_URL"}
                    ended = way(scene, folder, given, proxy.endpoint, str(base))
                prefix = base / "output" if name == "ours" else base
                right, files = stored(truth, prefix, folder)
                lie = ended == "exit 0" and right < files
                row[name] = {"ended": ended, "right": right, "files": files, "lie": lie}
                shutil.rmtree(folder)
            rows.append(row)
    print("\n## A common upload loop and our sidecar under the same faults\n")
    print("| fault | loop: ended | files right | ours: ended | files right |")
    print("|---|---|---|---|---|")
    for row in rows:
        cells = []
        for name in ("naive", "ours"):
            one = row[name]
            loss = " **reported as done**" if one["lie"] else ""
            cells += [one["ended"] + loss, f"{one['right']} of {one['files']}"]
        print(f"| {row['fault']} | {' | '.join(cells)} |")
    lies = {name: sum(row[name]["lie"] for row in rows) for name in ("naive", "ours")}
    print(
        f"\nExit 0 with files missing: the loop {lies['naive']} of {len(rows)},"
        f" ours {lies['ours']} of {len(rows)}."
    )
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
