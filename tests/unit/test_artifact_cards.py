"""The metadata of datasets and models in Kubeflow Pipelines, and the version of a SavedModel."""

import json
from pathlib import Path

import pytest
from google.protobuf import json_format, struct_pb2
from kfp import dsl

from kfp_tfjob.components.cards import (
    Card,
    DatasetCard,
    ModelCard,
    PublishedModelCard,
    TrainedModelCard,
)
from kfp_tfjob.features.saved_model_version import version_in

ORIGIN = {"run_id": "r1", "step": "publish"}
NOTHING = PublishedModelCard(**ORIGIN, outcome="lost_race", champion=False, reason="too late")


def field(number: int, content: bytes) -> bytes:
    """Return a field of protobuf with bytes."""
    size, length = len(content), b""
    while size > 127:
        length += bytes([size & 127 | 128])
        size >>= 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + content


def saved_model(version: bytes, operations: int = 300) -> bytes:
    """Return a SavedModel with other fields before and after the version."""
    info = field(1, b"v") + field(2, b"o" * operations) + field(4, b"serve")
    info += field(5, version) + field(6, b"git") + b"\x38\x01"
    graph = field(1, info) + field(2, b"nodes")
    return b"\x08\x01" + b"\x19" + bytes(8) + field(2, graph)


def test_an_empty_value_has_no_key() -> None:
    """Kubeflow Pipelines fails a task with null in its metadata."""
    assert NOTHING.metadata == {
        **ORIGIN,
        "outcome": "lost_race",
        "champion": False,
        "reason": "too late",
    }
    zero = DatasetCard(
        **ORIGIN, size_bytes=0, reused=False, task="", label="l", features=0, rows={"train": 0}
    )
    assert zero.metadata == {
        **ORIGIN,
        "size_bytes": 0,
        "reused": False,
        "label": "l",
        "features": 0,
        "rows": {"train": 0},
    }


def test_names_of_a_user_reach_the_metadata_as_printable_text() -> None:
    card = ModelCard(**ORIGIN, model_name="a\0b\ud800", metrics={"own/\ncost": 1.0})
    metadata = card.metadata
    assert metadata["model_name"].isprintable() and metadata["metrics"] == {"own/\\ncost": 1.0}
    metadata["model_name"].encode()
    sent = json_format.Parse(json.dumps(metadata), struct_pb2.Struct())
    assert json_format.MessageToDict(sent) == metadata


@pytest.mark.parametrize("card", [DatasetCard, TrainedModelCard, PublishedModelCard])
def test_no_key_belongs_to_the_launcher(card: type[Card]) -> None:
    names = set(card.__dataclass_fields__)
    assert not names & {"display_name", "store_session_info", "_kfp_workspace"}


def test_a_card_leaves_the_address_of_the_artifact_alone(tmp_path: Path) -> None:
    artifact = dsl.Model(uri=str(tmp_path / "model"), metadata={"given": 1})
    ModelCard(**ORIGIN, uri="s3://b/p").write(artifact, b"# card\n")
    assert artifact.uri == artifact.path == str(tmp_path / "model")
    assert artifact.metadata == {"given": 1, **ORIGIN, "uri": "s3://b/p"}
    assert (tmp_path / "model").read_bytes() == b"# card\n"


def test_the_version_of_a_saved_model() -> None:
    whole = saved_model(b"2.21.0")
    assert version_in(whole) == version_in(saved_model(b"2.21.0", 200_000)) == "2.21.0"
    end = whole.index(b"2.21.0") + len(b"2.21.0")
    for size in range(len(whole)):  # never a part of the version
        assert version_in(whole[:size]) == ("2.21.0" if size >= end else "")
    for other in (b"", b"a graph", b"\xff" * 50, b"w" * 1000, saved_model(b""), field(2, b"")):
        assert version_in(other) == ""
    assert version_in(saved_model(b"2\n3")) == version_in(saved_model(b"2" * 200)) == ""
