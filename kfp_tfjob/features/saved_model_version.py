"""Reads which TensorFlow wrote a SavedModel, without TensorFlow.

The launcher's image does not contain TensorFlow, and evaluate's image may contain another version.
The version is near the start of saved_model.pb, which may be as large as the model's constants, so
only its first part is read. Called by launch_tfjob and publish for their artifacts.
"""

from __future__ import annotations

from collections.abc import Iterator

from kfp_tfjob.common.errors import ObjectNotFoundError
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import SAVED_MODEL
from kfp_tfjob.storage.store import Store

_HEAD = 1 << 20  # bytes; the list of operations before the version has some 100 KB at most
# SavedModel.meta_graphs, MetaGraphDef.meta_info_def, MetaInfoDef.tensorflow_version
_PATH = (2, 1, 5)
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types of protobuf
_LONGEST = 100  # characters of a version; anything longer comes from a damaged file


def tensorflow_version(store: Store, model: S3Address) -> str:
    """Return the version of TensorFlow that wrote a SavedModel; empty if it is unknown.

    Args:
        store: The store.
        model: The folder of the SavedModel.
    """
    try:
        return version_in(store.read_range(model / SAVED_MODEL, 0, _HEAD))
    except ObjectNotFoundError:
        return ""


def version_in(head: bytes) -> str:
    """Return the version in the first bytes of a saved_model.pb; empty without a version."""
    message, is_complete = head, True
    for field in _PATH:
        contents = (
            (content, complete) for number, content, complete in _fields(message) if number == field
        )
        message, is_complete = next(contents, (b"", False))
    version = message.decode(errors="replace") if is_complete else ""
    return version if version.isprintable() and len(version) <= _LONGEST else ""


def _fields(data: bytes) -> Iterator[tuple[int, bytes, bool]]:
    """Yield number, content and completeness of the fields with bytes; stop where they end."""
    at = 0
    while tag := _varint(data, at):
        key, at = tag
        if key & 7 == _BYTES:
            if not (length := _varint(data, at)):
                return
            size, at = length
            yield key >> 3, data[at : at + size], at + size <= len(data)
            at += size
        elif key & 7 == _VARINT:
            if not (skipped := _varint(data, at)):
                return
            at = skipped[1]
        elif key & 7 in (_FIXED64, _FIXED32):
            at += 8 if key & 7 == _FIXED64 else 4
        else:
            return


def _varint(data: bytes, at: int) -> tuple[int, int] | None:
    """Return the number at an offset and the offset after it; None if it is truncated."""
    value = 0
    for place, byte in enumerate(data[at : at + 10]):
        value |= (byte & 127) << 7 * place
        if byte < 128:
            return value, at + place + 1
    return None
