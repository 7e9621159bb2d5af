"""Measures `kfp-tfjob serve`: requests under load while champions change and servers die.

    python -m benchmarks.serve [--quick] [--seconds N] [--rate N] [--only load|latency|batching]

Two servers, as two replicas of a Deployment, answer a steady rate of requests. A client sends them
to the replicas in turn, and sends a request again to the other one if the connection breaks, as the
proxy of a Service with retries does. Meanwhile, the champion changes 20 times and a server is
killed 5 times with SIGKILL; what keeps replicas alive starts it again. Every answer is compared
with the prediction of the version that it names. A request fails if it gets another status or
another prediction, or no answer from either replica within 20 seconds.

Then one client at a time asks for 1 and 32 rows, beside plain calls of the signature
serving_default in a process without a server. At last, 32 clients ask for one row each, with and
without --batch-milliseconds: a small model, and one whose call takes long because of its size. It
prints tables and, as the last line, one JSON object. The last line of a table says how busy the
machine was: latencies count on a quiet one.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import queue
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from kfp_tfjob.pipelines.local.s3_server import Server
from kfp_tfjob.registry.champion import read_champion
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import SCHEMA
from kfp_tfjob.uploader import pull
from tests.ports import free_port
from tests.serve.process import ServerProcess
from tests.serve.published import COLUMNS, PETS, Publisher

SECONDS, QUICK = 600.0, 60.0
RATE, CLIENTS = 50.0, 16
SWITCHES, KILLS = 20, 5
DEADLINE = 20.0  # seconds for one request with its retries
OUTPUT = S3Address("test", "bench")
BATCHES = (1, 32)
BATCHING_CLIENTS = 32
CALLS, QUICK_CALLS = 2000, 200


@dataclass
class Load:
    """What the clients saw.

    Attributes:
        seconds: The latency of each request, with its retries.
        versions: How many answers each version gave.
        broken: Connections that broke, by what broke them.
        retried: Requests that were sent again.
        failed: Requests without a right answer, and what they got.
    """

    seconds: list[float] = field(default_factory=list)
    versions: Counter[str] = field(default_factory=Counter)
    broken: Counter[str] = field(default_factory=Counter)
    retried: int = 0
    failed: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


class Replica:
    """One server that is started again when it dies."""

    def __init__(self, start: Callable[[int], ServerProcess]) -> None:
        self.port = free_port()
        self._start = start
        self.server = start(self.port)
        self.up = False
        self.peak = 0

    def look(self) -> None:
        """Start the server again if it died, and note whether it answers, as a probe does."""
        if self.server.process.poll() is not None:
            self.up = False
            self.server = self._start(self.port)
        self.up = self.server.is_ready()
        if self.up:
            self.peak = max(self.peak, _memory(self.server.process.pid))


class Client(threading.Thread):
    """Sends requests with connections of its own, one after the other.

    Args:
        replicas: Asked in turn.
        work: The times at which requests are due; None ends the client.
        expected: The probabilities of each row by version.
        load: What it saw.
        seed: Of the choice of rows and of the first replica.
    """

    def __init__(
        self,
        replicas: list[Replica],
        work: queue.Queue[float | None],
        rows: np.ndarray,
        expected: dict[str, np.ndarray],
        load: Load,
        seed: int,
    ) -> None:
        super().__init__(name=f"client-{seed}")
        self._replicas, self._work, self._load = replicas, work, load
        self._rows, self._expected = rows, expected
        self._random = random.Random(seed)
        self._connections: dict[int, http.client.HTTPConnection] = {}

    def run(self) -> None:
        """Send requests until there are no more."""
        while (due := self._work.get()) is not None:
            time.sleep(max(0.0, due - time.monotonic()))
            self._one()

    def _one(self) -> None:
        at = self._random.randrange(len(self._rows) - 4)
        chosen = self._rows[at : at + self._random.randint(1, 4)]
        body = json.dumps({"instances": [_row(row) for row in chosen]})
        began = time.monotonic()
        turn, tries, sent = self._random.randrange(len(self._replicas)), 0, 0
        said = "no replica answered"
        while time.monotonic() - began < DEADLINE:
            replica = self._replicas[(turn + tries) % len(self._replicas)]
            tries += 1
            if not replica.up:
                time.sleep(0.01)
                continue
            sent += 1
            try:
                status, version, answer = self._send(replica.port, body)
            except (OSError, http.client.HTTPException) as error:
                with self._load.lock:
                    self._load.broken[type(error).__name__] += 1
                self._drop(replica.port)
                continue
            said = f"{status}: {answer[:200]!r}"
            if status == 200 and self._right(version, at, answer):
                with self._load.lock:
                    self._load.seconds.append(time.monotonic() - began)
                    self._load.versions[version] += 1
                    self._load.retried += sent > 1
                return
            break
        with self._load.lock:
            self._load.failed.append(said)

    def _right(self, version: str, at: int, answer: bytes) -> bool:
        found = [row["probabilities"] for row in json.loads(answer)["predictions"]]
        wanted = self._expected[version][at : at + len(found)]
        return bool(np.allclose(np.array(found, np.float32), wanted, atol=1e-6))

    def _send(self, port: int, body: str) -> tuple[int, str, bytes]:
        connection = self._connections.get(port)
        if connection is None:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE)
            self._connections[port] = connection
        headers = {"Content-Type": "application/json"}
        connection.request("POST", f"/v1/models/{PETS}:predict", body, headers)
        reply = connection.getresponse()
        return reply.status, reply.headers.get("x-model-version", ""), reply.read()

    def _drop(self, port: int) -> None:
        if connection := self._connections.pop(port, None):
            connection.close()


def load(publisher: Publisher, secret: Path, folder: Path, seconds: float, rate: float) -> Any:
    """Ask two replicas at a steady rate while champions change and servers die."""
    rows = np.random.default_rng(3).normal(size=(512, len(COLUMNS))).astype(np.float32)
    expected = _expected(publisher, folder, rows)

    def start(port: int) -> ServerProcess:
        return ServerProcess(PETS, str(OUTPUT), secret, folder, port=port)

    replicas = [Replica(start), Replica(start)]
    end = threading.Event()

    def watch() -> None:
        while not end.wait(0.05):
            for replica in replicas:
                replica.look()

    watcher = threading.Thread(target=watch, name="probes")
    watcher.start()
    seen, work = Load(), queue.Queue[float | None](maxsize=CLIENTS)
    clients = [Client(replicas, work, rows, expected, seen, seed) for seed in range(CLIENTS)]
    try:
        _until(lambda: all(replica.up for replica in replicas))
        memory = [replica.peak for replica in replicas]
        for client in clients:
            client.start()
        began = time.monotonic()
        disturber = _Disturber(publisher, replicas, began, seconds)
        disturber.start()
        number = 0
        # On a busy machine, servers start slowly, and the plan takes longer.
        while number < seconds * rate or disturber.is_alive():
            work.put(began + number / rate)
            number += 1
        lasted = time.monotonic() - began
        disturber.join()
        for _ in clients:
            work.put(None)
        for client in clients:
            client.join()
        _until(lambda: all(replica.up for replica in replicas))
        return _told(seen, disturber, lasted, memory, [replica.peak for replica in replicas])
    finally:
        end.set()
        watcher.join()
        for replica in replicas:
            replica.server.kill()


class _Disturber(threading.Thread):
    """Changes the champion and kills servers, evenly over the time."""

    def __init__(
        self, publisher: Publisher, replicas: list[Replica], began: float, seconds: float
    ) -> None:
        super().__init__(name="disturb")
        self._publisher, self._replicas = publisher, replicas
        switches = [(began + seconds * (at + 0.5) / SWITCHES, 0) for at in range(SWITCHES)]
        kills = [(began + seconds * (at + 0.75) / (KILLS + 1), 1) for at in range(KILLS)]
        self._plan = sorted(switches + kills)
        self.switches = self.kills = 0

    def run(self) -> None:
        """Follow the plan."""
        for due, is_kill in self._plan:
            time.sleep(max(0.0, due - time.monotonic()))
            if is_kill:
                # The other one must answer, or there is no replica to send a request to.
                _until(lambda: all(replica.up for replica in self._replicas))
                victim = self._replicas[self.kills % len(self._replicas)].server.process
                victim.kill()
                self.kills += 1
            else:
                self._publisher.roll_back(PETS, 1 + self.switches % 2)
                self.switches += 1


def latency(publisher: Publisher, secret: Path, folder: Path, calls: int) -> Any:
    """Ask one replica one request at a time, and call the model without a server."""
    server = ServerProcess(PETS, str(OUTPUT), secret, folder).ready()
    found: dict[str, Any] = {}
    rows = np.random.default_rng(3).normal(size=(64, len(COLUMNS))).astype(np.float32)
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    headers = {"Content-Type": "application/json"}
    try:
        for batch in BATCHES:
            v1 = json.dumps({"instances": [_row(row) for row in rows[:batch]]})
            shaped = [
                {"name": name, "shape": [batch], "datatype": "FP32", "data": values}
                for name, values in zip(COLUMNS, rows[:batch].T.tolist(), strict=True)
            ]
            v2 = json.dumps({"inputs": shaped})
            for name, path, body in (("V1", f"/v1/models/{PETS}:predict", v1),
                                     ("V2", f"/v2/models/{PETS}/infer", v2)):  # fmt: skip

                def ask(path: str = path, body: str = body) -> None:
                    connection.request("POST", path, body, headers)
                    reply = connection.getresponse()
                    assert reply.status == 200, reply.read()
                    reply.read()

                found[f"{name}, {batch} rows"] = _times(ask, calls)
    finally:
        server.kill()
    script = [sys.executable, "-m", "benchmarks.serve", "--plain", str(_model(publisher, folder))]
    plain = subprocess.run(
        [*script, "--calls", str(calls)], check=True, stdout=subprocess.PIPE, text=True
    )
    return found | json.loads(plain.stdout.splitlines()[-1])


def batching(publisher: Publisher, secret: Path, folder: Path, seconds: float) -> Any:
    """Ask for one row at a time with many connections, alone and in batches."""
    found: dict[str, Any] = {}
    row = np.random.default_rng(3).normal(size=len(COLUMNS)).astype(np.float32)
    body = json.dumps({"instances": [_row(row)]})
    headers = {"Content-Type": "application/json"}
    for name, model in {"small": PETS, "large": _large(publisher)}.items():
        for how, more in {"alone": (), "in batches": ("--batch-milliseconds", "20")}.items():
            server = ServerProcess(model, str(OUTPUT), secret, folder, *more).ready()
            times: list[float] = []
            end = time.monotonic() + seconds

            def ask(port: int, model: str, end: float, times: list[float]) -> None:
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
                while (began := time.monotonic()) < end:
                    connection.request("POST", f"/v1/models/{model}:predict", body, headers)
                    reply = connection.getresponse()
                    reply.read()
                    assert reply.status == 200
                    times.append(time.monotonic() - began)

            given = (server.port, model, end, times)
            clients = [threading.Thread(target=ask, args=given) for _ in range(BATCHING_CLIENTS)]
            for client in clients:
                client.start()
            for client in clients:
                client.join()
            server.kill()
            rate = round(len(times) / seconds, 1)
            found[f"{name} model, {how}"] = {"requests/s": rate} | _percentiles(times)
    return found


def _large(publisher: Publisher) -> str:
    """Publish a model that reads 400 MB of weights in each call; return its name."""
    import tensorflow as tf

    from kfp_tfjob.features.signature_columns import COLUMNS as MAPPING
    from kfp_tfjob.features.signature_columns import argument_names, to_json

    module = tf.Module()
    rng = np.random.default_rng(11)
    module.weights = tf.Variable(rng.normal(size=(len(COLUMNS), 3)).astype(np.float32))
    module.wide = tf.Variable(rng.normal(size=(len(COLUMNS), 10_000)).astype(np.float32) / 100)
    module.square = tf.Variable(np.full((10_000, 10_000), 1e-9, np.float32))

    @tf.function
    def serve(**columns: tf.Tensor) -> dict[str, tf.Tensor]:
        features = tf.stack([columns[name] for name in argument_names(COLUMNS)], axis=1)
        large = tf.nn.relu(features @ module.wide) @ module.square
        scores = features @ module.weights + tf.reduce_mean(large, axis=1, keepdims=True)
        return {"probabilities": tf.nn.softmax(scores)}

    def export(folder: Path) -> None:
        specs = {name: tf.TensorSpec([None], tf.float32, name) for name in argument_names(COLUMNS)}
        served = serve.get_concrete_function(**specs)
        signatures = {"serve": served, "serving_default": served}
        tf.saved_model.save(module, str(folder), signatures=signatures)
        (folder / MAPPING).parent.mkdir(exist_ok=True)
        (folder / MAPPING).write_text(to_json(COLUMNS))

    name = "large"
    publisher._datasets[name] = publisher._datasets[PETS]
    publisher._publish(name, export)
    return name


def plain(folder: Path, calls: int) -> dict[str, Any]:
    """Call serving_default of a SavedModel in this process."""
    import tensorflow as tf

    from kfp_tfjob.features.signature_columns import argument_names

    loaded = tf.saved_model.load(str(folder))
    call = loaded.signatures["serving_default"]
    rows = np.random.default_rng(3).normal(size=(64, len(COLUMNS))).astype(np.float32)
    found = {}
    for batch in BATCHES:
        columns = rows[:batch].T
        given = dict(zip(argument_names(COLUMNS), map(tf.constant, columns), strict=True))
        found[f"serving_default, {batch} rows"] = _times(
            lambda given=given: call(**given)["probabilities"].numpy(), calls
        )
    return found


def _times(call: Callable[[], Any], calls: int) -> dict[str, float]:
    """Return percentiles of the seconds of a call, in milliseconds."""
    for _ in range(calls // 10):
        call()
    seconds = []
    for _ in range(calls):
        began = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - began)
    return _percentiles(seconds)


def _percentiles(seconds: list[float]) -> dict[str, float]:
    found = np.percentile(np.array(seconds) * 1000, [50, 95, 99, 100]).round(3).tolist()
    return dict(zip(("p50", "p95", "p99", "max"), found, strict=True))


def _told(
    seen: Load, disturber: _Disturber, seconds: float, before: list[int], after: list[int]
) -> dict[str, Any]:
    return {
        "seconds": round(seconds, 1),
        "requests": len(seen.seconds) + len(seen.failed),
        "failed": len(seen.failed),
        "first_failures": seen.failed[:5],
        "broken_connections": dict(seen.broken),
        "retried": seen.retried,
        "switches": disturber.switches,
        "kills": disturber.kills,
        "answers_by_version": dict(seen.versions),
        "latency_ms": _percentiles(seen.seconds),
        "memory_mb_before": [round(it / 1e6) for it in before],
        "memory_mb_most": [round(it / 1e6) for it in after],
        "load_average": round(os.getloadavg()[0], 1),
    }


def _row(row: np.ndarray) -> dict[str, float]:
    return dict(zip(COLUMNS, row.tolist(), strict=True))


def _expected(publisher: Publisher, folder: Path, rows: np.ndarray) -> dict[str, np.ndarray]:
    """Return the predictions of version 1 and 2, by TensorFlow without the server."""
    from kfp_tfjob.features.schema import Schema
    from kfp_tfjob.features.served_model import ServedModel

    found = {}
    for number in (1, 2):
        version = publisher.layout.model(PETS).version(number)
        pull(publisher.store, version, folder / str(number))
        schema = Schema.from_bytes((folder / str(number) / SCHEMA).read_bytes())
        model = ServedModel(folder / str(number) / "model", schema, "the model")
        found[str(number)] = model.predict(dict(zip(COLUMNS, rows.T, strict=True)))
    return found


def _model(publisher: Publisher, folder: Path) -> Path:
    champion = read_champion(publisher.store, publisher.layout, PETS)
    assert champion
    pull(publisher.store, S3Address.parse(champion.version_uri), folder / "plain")
    return folder / "plain" / "model"


def _memory(pid: int) -> int:
    """Return the bytes of a process in memory."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
    except (OSError, IndexError):
        return 0


def _until(condition: Callable[[], bool], seconds: float = 240) -> None:
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError("the replicas did not come up")
        time.sleep(0.05)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one minute, fewer calls")
    parser.add_argument("--seconds", type=float, default=0)
    parser.add_argument("--rate", type=float, default=RATE, help="requests a second")
    parser.add_argument("--only", choices=["load", "latency", "batching"])
    parser.add_argument("--plain", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--calls", type=int, default=0, help=argparse.SUPPRESS)
    given = parser.parse_args()
    calls = given.calls or (QUICK_CALLS if given.quick else CALLS)
    if given.plain:
        print(json.dumps(plain(given.plain, calls)))
        return
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "work").mkdir()
        with Server.start(folder / "s3") as s3:
            store = s3.store()
            store.make_bucket(OUTPUT.bucket)
            publisher = Publisher(store, OUTPUT, folder / "work")
            publisher.pets()
            publisher.pets()
            if given.only in (None, "load"):
                seconds = given.seconds or (QUICK if given.quick else SECONDS)
                found["load"] = load(publisher, s3.secret, folder, seconds, given.rate)
                for name, value in found["load"].items():
                    print(f"{name:20} {value}")
            if given.only in (None, "latency"):
                found["latency_ms"] = latency(publisher, s3.secret, folder, calls)
                print(f"{'ms':28}{'p50':>9}{'p95':>9}{'p99':>9}")
                for name, it in found["latency_ms"].items():
                    print(f"{name:28}{it['p50']:9.2f}{it['p95']:9.2f}{it['p99']:9.2f}")
                print(f"load average {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores")
            if given.only in (None, "batching"):
                found["batching"] = batching(publisher, s3.secret, folder, given.seconds or 10)
                for name, it in found["batching"].items():
                    print(f"{name:28}{it}")
                print(f"load average {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
