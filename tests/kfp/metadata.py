"""The artifacts of a run, as ML Metadata lists them for the UI.

The API of Kubeflow Pipelines 2.17 does not return artifacts. Its UI asks ML Metadata through its
own server, with gRPC in the body of a POST request (gRPC-Web), and so does this. It reads the
messages of protobuf by the numbers of their fields, because the package ml-metadata needs an older
protobuf than the SDK.
"""

import struct
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode, urlsplit

from google.protobuf.json_format import MessageToDict
from google.protobuf.struct_pb2 import Struct

_SERVICE = "ml_metadata.MetadataStoreService"
_RUN = "system.PipelineRun"  # the type of the context whose name is the run's id
_STORE = "store_session_info"  # the key of the region and the Secret of Kubeflow's store
_STATUS = 0x80  # the kind of a frame that has the status, not a message
_HEADER = struct.Struct(">BI")  # of a frame: its kind, and the bytes that follow
_SECONDS = 30
# Numbers of fields.
_TYPE_NAME, _CONTEXT_NAME, _CONTEXT, _CONTEXT_ID = 1, 2, 1, 1
_ARTIFACT, _ID, _URI, _METADATA, _TYPE = 1, 1, 3, 5, 8
_KEY, _VALUE = 1, 2
_INT, _DOUBLE, _STRING, _STRUCT = 1, 2, 3, 4
# Types of the encoding.
_VARINT, _EIGHT_BYTES, _BYTES = 0, 1, 2

Fields = Iterator[tuple[int, Any]]


@dataclass(frozen=True)
class Artifact:
    """An output artifact of a step.

    Attributes:
        id: The number of its page in the UI.
        kind: For example `system.Model`.
        uri: The address of its file in Kubeflow's store.
    """

    id: int
    kind: str
    uri: str
    metadata: dict[str, Any]


def artifacts(ui: str, run_id: str) -> dict[str, Artifact]:
    """Return the artifacts of a run by their output's name."""
    request = _text(_TYPE_NAME, _RUN) + _text(_CONTEXT_NAME, run_id)
    answer = dict(_fields(_call(ui, "GetContextByTypeAndName", request)))
    context = dict(_fields(answer[_CONTEXT]))[_CONTEXT_ID]
    request = _varint(_CONTEXT_ID << 3 | _VARINT) + _varint(context)
    listed = _fields(_call(ui, "GetArtifactsByContext", request))
    outputs = [_artifact(message) for number, message in listed if number == _ARTIFACT]
    return {artifact.metadata["display_name"]: artifact for artifact in outputs}


def card(ui: str, artifact: Artifact) -> bytes:
    """Return the file of an artifact, as the UI reads it from Kubeflow's store."""
    uri = urlsplit(artifact.uri)
    place = {"source": uri.scheme, "bucket": uri.netloc, "key": uri.path[1:]}
    if store := artifact.metadata.get(_STORE):
        place["providerInfo"] = store
    query = urlencode(place)
    with urllib.request.urlopen(f"{ui}/artifacts/get?{query}", timeout=_SECONDS) as reply:
        return reply.read()


def _artifact(message: bytes) -> Artifact:
    fields = list(_fields(message))
    single = dict(fields)
    entries = [dict(_fields(value)) for number, value in fields if number == _METADATA]
    metadata = {entry[_KEY].decode(): _value(entry[_VALUE]) for entry in entries}
    return Artifact(single[_ID], single[_TYPE].decode(), single[_URI].decode(), metadata)


def _value(message: bytes) -> Any:
    ((number, value),) = _fields(message)
    if number == _STRUCT:  # of one field, `struct` or `list`
        return next(iter(MessageToDict(Struct.FromString(value)).values()))
    return value.decode() if number == _STRING else value


def _call(ui: str, method: str, message: bytes) -> bytes:
    request = urllib.request.Request(
        f"{ui}/{_SERVICE}/{method}",
        data=_HEADER.pack(0, len(message)) + message,
        headers={"content-type": "application/grpc-web+proto", "x-grpc-web": "1"},
    )
    with urllib.request.urlopen(request, timeout=_SECONDS) as reply:
        body = reply.read()
    frames: dict[int, bytes] = {0: b"", _STATUS: b""}
    while body:
        kind, length = _HEADER.unpack_from(body)
        end = _HEADER.size + length
        frames[kind] += body[_HEADER.size : end]
        body = body[end:]
    assert b"grpc-status:0" in frames[_STATUS].replace(b" ", b""), frames[_STATUS]
    return frames[0]


def _fields(message: bytes) -> Fields:
    """Yield number and value of each field: an integer, a float, or bytes."""
    at = 0
    while at < len(message):
        tag, at = _read_varint(message, at)
        number, kind = tag >> 3, tag & 7
        value, at = _read_varint(message, at) if kind != _EIGHT_BYTES else (0, at)
        if kind == _EIGHT_BYTES:
            (value,), at = struct.unpack_from("<d", message, at), at + 8
        elif kind == _BYTES:
            value, at = message[at : at + value], at + value
        yield number, value


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    """Return the number at an offset, seven bits in each byte, and the offset behind it."""
    value = shift = 0
    while True:
        byte = message[at]
        value, shift, at = value | (byte & 0x7F) << shift, shift + 7, at + 1
        if byte < 0x80:
            return value, at


def _varint(value: int) -> bytes:
    low, high = value & 0x7F, value >> 7
    return bytes([low | 0x80]) + _varint(high) if high else bytes([low])


def _text(number: int, text: str) -> bytes:
    body = text.encode()
    return _varint(number << 3 | _BYTES) + _varint(len(body)) + body
