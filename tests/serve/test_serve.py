"""The server as a process, over HTTP, with a real S3 server behind it."""

import gzip
import http.client
import json
import struct
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kfp_tfjob.features.schema import Schema
from kfp_tfjob.features.served_model import ServedModel
from kfp_tfjob.registry.champion import read_champion
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.uploader import pull
from tests.local import mixed_dataset
from tests.serve.conftest import Start
from tests.serve.process import ServerProcess, get, post
from tests.serve.published import COLUMNS, PEOPLE, PETS, TUTORIAL, Publisher, as_sent

pytestmark = pytest.mark.slow
PET = dict.fromkeys(COLUMNS, 0.5)


def served(publisher: Publisher, name: str, folder: Path) -> ServedModel:
    """The champion as TensorFlow loads it, without the server."""
    champion = read_champion(publisher.store, publisher.layout, name)
    assert champion
    pull(publisher.store, S3Address.parse(champion.version_uri), folder)
    schema = Schema.from_bytes((folder / "schema.json").read_bytes())
    return ServedModel(folder / "model", schema, name)


@pytest.mark.parametrize("write", ["export", "save"])
def test_what_keras_2_leaves_is_judged_published_and_served(
    publisher: Publisher, start: Start, write: str
) -> None:
    """The server has no tf-keras."""
    weights = publisher.tutorial(write)
    server = start(f"{TUTORIAL}-{write}").ready()
    reply = server.predict([PET])
    assert (reply.status, reply.version) == (200, "1"), reply.body
    scores = np.exp(0.5 * weights.sum(axis=0))
    (answer,) = reply.body["predictions"]
    (found,) = (value for value in answer.values() if isinstance(value, list))
    np.testing.assert_allclose(found, scores / scores.sum(), rtol=1e-5)


def test_every_protocol_answers_like_the_model(
    publisher: Publisher, start: Start, tmp_path: Path
) -> None:
    server = start(PEOPLE).ready()
    raw = mixed_dataset.people(np.random.default_rng(5), 200)
    rows = as_sent(raw)
    expected = served(publisher, PEOPLE, tmp_path / "people").predict(raw)

    v1 = server.predict(rows)
    assert (v1.status, v1.version) == (200, "1")
    found = [row["probabilities"] for row in v1.body["predictions"]]
    np.testing.assert_array_equal(np.array(found, np.float32), expected)
    names = [mixed_dataset.CLASSES[at] for at in expected.argmax(1)]
    assert [row["class"] for row in v1.body["predictions"]] == names

    metadata = json.loads(get(f"{server.url}/v2/models/people"))
    assert metadata["versions"] == ["1"] and metadata["platform"] == "tensorflow_savedmodel"
    types = {item["name"]: item["datatype"] for item in metadata["inputs"]}
    inputs = [
        {"name": name, "datatype": kind, "shape": [200], "data": [row[name] for row in rows]}
        for name, kind in types.items()
    ]
    v2 = post(server.v2, {"id": "7", "inputs": inputs})
    assert (v2.status, v2.body["id"], v2.body["model_version"]) == (200, "7", "1")
    outputs = {item["name"]: item for item in v2.body["outputs"]}
    found = np.array(outputs["probabilities"]["data"], np.float32)
    np.testing.assert_array_equal(found.reshape(200, 2), expected)
    assert outputs["class"]["data"] == names
    one = post(server.v2, {"inputs": inputs, "outputs": [{"name": "class"}]})
    assert [item["name"] for item in one.body["outputs"]] == ["class"]

    # The binary extension: the tensors follow the JSON.
    raws = [_bytes(kind, [row[name] for row in rows]) for name, kind in types.items()]
    heads = [
        {k: v for k, v in item.items() if k != "data"}
        | {"parameters": {"binary_data_size": len(data)}}
        for item, data in zip(inputs, raws, strict=True)
    ]
    head = json.dumps({"inputs": heads}).encode()
    named = {"Content_Type": "application/octet-stream"}
    named["Inference_Header_Content_Length"] = str(len(head))
    binary = post(server.v2, head + b"".join(raws), **named)
    assert binary.status == 200, binary.body
    data = binary.body["outputs"][0]["data"]
    # A missing value of a boolean cannot be sent in binary; it is false there.
    told = np.array([row["member"] is not None for row in rows])
    np.testing.assert_array_equal(np.array(data, np.float32).reshape(200, 2)[told], expected[told])

    metrics = server.metrics
    assert 'kfp_tfjob_requests_total{code="200",model_name="people",protocol="v1"} 1.0' in metrics
    assert 'kfp_tfjob_champion_number{model_name="people"} 1.0' in metrics
    assert 'request_predict_seconds_count{model_name="people"}' in metrics
    assert json.loads(get(f"{server.url}/v2/health/live")) == {"live": True}
    assert json.loads(get(f"{server.url}/v1/models/people")) == {"name": "people", "ready": True}


def test_wrong_requests_are_refused_in_words(start: Start) -> None:
    server = start(PETS).ready()
    v1, v2 = server.v1, server.v2
    missing = {name: 1 for name in COLUMNS[1:]}
    half = {"name": "mean radius", "shape": [1], "datatype": "FP16", "data": [0.5]}
    cases: list[tuple[str, Any, int, str]] = [
        (v1, {"instances": [PET, missing]}, 400, "the column 'mean radius' is missing"),
        (v1, {"instances": []}, 400, "no rows"),
        (v1, {"rows": [PET]}, 400, "no rows"),
        (v1, [PET], 400, "no rows"),
        (v1, b"{", 400, "not a JSON object"),
        (v1, b'{"instances": [{"mean radius": NaN}]}', 400, "not a JSON object"),
        (v1.replace("pets", "dogs"), {"instances": [PET]}, 404, "dogs does not exist"),
        (v2, {"inputs": []}, 400, "'mean radius' is missing"),
        (v2, {"inputs": "x"}, 400, "Open Inference Protocol"),
        (v2, b"{", 400, "not a JSON object"),
        (v2, b"[1]", 400, "not a JSON object"),
        (v2, b"\xff\xfe", 400, "not a JSON object"),
        (v2, b"\x80", 400, "not a JSON object"),
        (v2, {"inputs": [half]}, 400, "FP16 as a binary tensor"),
        (v2, {"inputs": [], "id": "\ud800"}, 400, "half of a surrogate pair"),
        (v2, {"inputs": [half | {"name": "\ud800", "datatype": "FP32"}]}, 400, "is missing"),
        (f"{server.url}/v3/models", {}, 404, "cannot be answered"),
        (v1.replace(":predict", ""), {}, 405, "cannot be answered"),
        (f"{server.url}/v2/repository/models/pets/unload", {}, 403, "does not unload"),
        (f"{server.url}/v2/repository/models/pets/load", {}, 403, "does not load"),
    ]  # fmt: skip
    for url, body, status, said in cases:
        reply = post(url, body)
        assert reply.status == status and said in reply.body["error"], (body, reply)
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(v1.replace(":predict", ""), b"{}", timeout=60)
    assert (refused.value.code, refused.value.headers["Allow"]) == (405, "GET")
    # Many rows are predicted in parts.
    many = server.predict([PET] * 10_000)
    assert many.status == 200 and len(many.body["predictions"]) == 10_000
    assert server.predict([PET]).status == 200
    assert "Traceback" not in server.log

    before = server.memory
    small = b'{"instances":[' + b"{}," * 10_000_000 + b"{}]}"  # 45 times as large when parsed
    for body, said in (
        (b" " * 100_000_000, "at most 32.0 MB"),
        ((b" " * 1_000_000 for _ in range(100)), "at most 32.0 MB"),  # without a length
        (small, "at most 1,000,000"),
    ):
        reply = _send(server, "/v1/models/pets:predict", body)
        assert reply[0] == 413 and said in reply[1], reply
    assert server.memory - before < 60e6
    assert server.predict([PET]).status == 200


def test_the_content_type_does_not_decide_how_a_body_is_read(start: Start) -> None:
    """`curl -d` sends that of a form."""
    server = start(PETS).ready()
    heads = [
        {"name": name, "shape": [1], "datatype": "FP64", "parameters": {"binary_data_size": 8}}
        for name in COLUMNS
    ]
    head = json.dumps({"inputs": heads}).encode()
    tensors = b"".join(np.float64(0.5).tobytes() for _ in COLUMNS)
    length = {"Inference-Header-Content-Length": str(len(head))}
    inputs = [
        {"name": name, "shape": [1], "datatype": "FP64", "data": [PET[name]]} for name in COLUMNS
    ]
    v1, v2 = "/v1/models/pets:predict", "/v2/models/pets/infer"
    bodies: list[tuple[str, bytes, dict[str, str]]] = [
        (v1, json.dumps({"instances": [PET]}).encode(), {}),
        (v2, json.dumps({"inputs": inputs}).encode(), {}),
        (v2, head + tensors, length),
    ]
    for kind in ("application/x-www-form-urlencoded", "text/plain", "application/json", None):
        headers = {"Content-Type": kind} if kind else {}
        for path, body, more in bodies:
            assert _status(server, path, body, headers | more) == (200, ""), (kind, path, more)
            empty = _status(server, path, b"", headers)
            assert empty[0] == 400 and empty[1], (kind, path)
    # A wrong length of the JSON is named, and so is a compressed body.
    _, body, _ = bodies[2]
    for wrong in ("abc", "-5", "0", str(len(body) + 1), str(len(head) - 1)):
        status, _ = _status(server, v2, body, {"Inference-Header-Content-Length": wrong})
        assert status == 400, wrong
    for path, body, more in bodies:
        encoded = {"Content-Encoding": "gzip"} | more
        status, received = _status(server, path, gzip.compress(body), encoded)
        assert (status, received) == (415, "Content-Encoding: gzip")
    assert "Traceback" not in server.log


def test_a_body_with_a_million_mistakes_is_refused_at_the_first(start: Start) -> None:
    """pydantic describes each, which takes gigabytes."""
    server = start(PETS).ready()
    wrong = b"[" + b"[]," * 1_000_000 + b"[]]"  # with more, the size is refused first
    named = b'{"x":0' + b"".join(b',"%d":[]' % at for at in range(400_000)) + b"}"
    tensor = b'"name":"mean radius","datatype":"FP64","data":[1]'
    bodies = {
        "inputs": b'{"inputs":' + wrong + b"}",
        "outputs": b'{"inputs":[],"outputs":' + wrong + b"}",
        "shape": b'{"inputs":[{' + tensor + b',"shape":' + wrong + b"}]}",
        "parameters": b'{"inputs":[],"parameters":' + named + b"}",
        "of a tensor": b'{"inputs":[{' + tensor + b',"shape":[1],"parameters":' + named + b"}]}",
        "of an output": b'{"inputs":[],"outputs":[{"name":"class","parameters":' + named + b"}]}",
    }
    post(server.v2, {"inputs": []})
    for name, body in bodies.items():
        before = server.memory
        reply = post(server.v2, body)
        assert reply.status == 400 and len(json.dumps(reply.body)) < 20_000, name
        assert server.memory - before < 400e6, name
    assert server.is_ready()


def test_the_champion_is_followed_and_no_request_is_lost(
    publisher: Publisher, start: Start
) -> None:
    server = start(PETS).ready()
    replies: list[Any] = []
    end = threading.Event()

    def ask() -> None:
        while not end.is_set():
            replies.append(server.predict([PET]))

    def follows(version: str) -> None:
        server.until(lambda: server.predict([PET]).version == version)

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    first = server.predict([PET]).version
    version = str(publisher.pets())
    follows(version)

    # A newer champion that is damaged never answers.
    place = publisher.layout.model(PETS)
    graph = place.version(1) / "model" / "saved_model.pb"
    whole = publisher.store.read(graph)
    publisher.store.write(graph, whole[:-1] + b"x")
    number = publisher.roll_back(PETS, 1).number
    server.until(lambda: f"champion {number} is rejected" in server.log)
    assert f'champion_refused{{model_name="pets"}} {number}.0' in server.metrics
    assert server.predict([PET]).version == version
    # Without its record, the champion in use is the newest.
    record = publisher.store.read(place.champion(number))
    publisher.store.delete(place.champion(number))
    server.until(lambda: 'champion_refused{model_name="pets"} 0.0' in server.metrics)
    publisher.store.write(place.champion(number), record)
    publisher.store.write(graph, whole)
    newest = str(publisher.pets())
    follows(newest)
    # Its record is damaged, and a person removes it; a rollback reuses its number.
    publisher.store.write(place.champion(number + 1), b"{")
    server.until(lambda: "is not a champion record" in server.log)
    publisher.store.delete(place.champion(number + 1))
    assert publisher.roll_back(PETS, int(version)).number == number + 1
    follows(version)
    end.set()
    for thread in threads:
        thread.join()
    assert {reply.status for reply in replies} == {200}
    assert {reply.version for reply in replies} == {first, version, newest}
    assert 'champion_refused{model_name="pets"} 0.0' in server.metrics


def test_open_requests_are_answered_after_sigterm(start: Start) -> None:
    server = start(PETS).ready()
    with ThreadPoolExecutor(4) as pool:
        replies = [pool.submit(server.predict, [PET] * 50_000) for _ in range(4)]
        server.until(lambda: "kfp_tfjob_rows_total" in server.metrics)
        time.sleep(0.3)
        assert server.stop() == 0, server.log
    assert [reply.result().status for reply in replies] == [200] * 4
    assert "Traceback" not in server.log


def test_what_cannot_be_served_is_said(start: Start) -> None:
    busy = start(PETS).ready()
    cases = [
        (start("nobody"), 2, "the model nobody has no champion"),
        (start("no/name"), 2, "model_name is not valid"),
        (start(PETS, port=busy.port), 2, "the server cannot listen"),
        (start(PETS, output="s3://no-such-bucket/x"), 2, "no-such-bucket"),
        (start(PETS, "--sample-without", "mean radus"), 2, "did you mean 'mean radius'?"),
    ]
    for server, code, said in cases:
        assert server.wait() == code, server.log
        assert said in server.log and "Fix: " in server.log, server.log
        assert "Traceback" not in server.log


def test_requests_that_are_predicted_together_are_answered_as_alone(start: Start) -> None:
    rows = as_sent(mixed_dataset.people(np.random.default_rng(5), 96))
    requests = [rows[at : at + 1 + at % 3] for at in range(0, 90)]
    found = []
    for more in ((), ("--batch-milliseconds", "50", "--batch-rows", "16")):
        server = start(PEOPLE, *more).ready()
        with ThreadPoolExecutor(16) as pool:
            bad = [pool.submit(server.predict, [rows[0] | {"age": "old"}]) for _ in range(4)]
            answers = list(pool.map(server.predict, requests))
        assert [it.result().status for it in bad] == [400] * 4
        assert {it.status for it in answers} == {200}
        assert [len(it.body["predictions"]) for it in answers] == [len(it) for it in requests]
        found.append([row for it in answers for row in it.body["predictions"]])
        answered = f'kfp_tfjob_rows_total{{model_name="people"}} {len(found[0])}.0'
        assert answered in server.metrics
        server.stop()
    alone, together = (np.array([it["probabilities"] for it in some]) for some in found)
    np.testing.assert_allclose(together, alone, atol=1e-6)  # TensorFlow rounds by batch size
    assert [it["class"] for it in found[0]] == [it["class"] for it in found[1]]


def _bytes(kind: str, values: list[Any]) -> bytes:
    if kind == "BYTES":
        texts = [(value or "").encode() for value in values]
        return b"".join(struct.pack("<I", len(text)) + text for text in texts)
    if kind == "BOOL":
        return np.array([bool(value) for value in values]).tobytes()
    return np.array([np.nan if value is None else value for value in values]).tobytes()


def _status(
    server: ServerProcess, path: str, body: bytes, headers: dict[str, str]
) -> tuple[int, str]:
    """Send a request with these headers only; return the status and what was wrong, if anything."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("POST", path, body, headers)
    reply = connection.getresponse()
    return reply.status, json.loads(reply.read()).get("problems", [{}])[0].get("received", "")


def _send(server: ServerProcess, path: str, body: Any) -> tuple[int, str]:
    """Send a large body, with its length or in pieces, whatever the server answers meanwhile."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("POST", path, body, {"content-type": "application/json"})
    reply = connection.getresponse()
    return reply.status, reply.read().decode()
