"""Stored JSON documents: typed ones, and the limits for untrusted ones.

A typed document is a frozen dataclass. pydantic checks the types of what is read; it is imported
on first use, because it takes longer than most commands that read nothing. Called wherever a stored
document is read or written.
"""

from __future__ import annotations

import json
import re
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from pydantic import TypeAdapter

T = TypeVar("T")


class InvalidDocumentError(ValueError):
    """A stored document does not have the content that its reader expects.

    Only this error means that the document is at fault. Its reader must not catch other errors
    while it reads, because these are bugs.
    """


LONGEST = 32 << 20  # bytes; enough for the manifest of 200,000 files
# Empty lists take 30 times the memory of their text; a manifest has one object for each file.
_MOST_CONTAINERS = 1_000_000
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def parse(data: bytes, longest: int = LONGEST) -> Any:
    """Return the content of a JSON document.

    Args:
        data: The document.
        longest: The most bytes that it may have.

    Raises:
        InvalidDocumentError: It is not JSON in UTF-8, is too large or nested too deeply, or holds
            text that cannot be encoded as UTF-8.
    """
    _check_size(data, longest)
    try:
        text = data.decode()
        body = json.loads(text)
        if _SURROGATE.search(text):
            json.dumps(body, ensure_ascii=False).encode()
    except RecursionError:
        raise InvalidDocumentError("objects or lists nested too deeply") from None
    except ValueError as error:
        raise InvalidDocumentError(str(error)) from None
    return body


def parse_object(data: bytes) -> dict[str, Any]:
    """Return the content of a JSON document that is an object; raises like `parse`."""
    body = parse(data)
    if not isinstance(body, dict):
        raise InvalidDocumentError(f"a {type(body).__name__} instead of an object")
    return body


def _check_size(data: bytes, longest: int) -> None:
    if len(data) > longest:
        raise InvalidDocumentError(f"more than {longest >> 20} MiB of JSON")
    if data.count(b"{") + data.count(b"[") > _MOST_CONTAINERS:
        raise InvalidDocumentError(f"more than {_MOST_CONTAINERS:,} objects and lists")


def read(kind: type[T], data: bytes, longest: int | None = LONGEST) -> T:
    """Return a stored document as a dataclass; keys of later versions are ignored.

    Args:
        kind: The dataclass.
        data: The document.
        longest: The most bytes that it may have; None for any number of bytes, objects and lists.

    Raises:
        InvalidDocumentError: It is not JSON, is too large, a key is missing, or a value has another
            type.
    """
    if longest is not None:
        _check_size(data, longest)
    import pydantic

    try:
        return adapter(kind).validate_json(data, strict=True)
    except pydantic.ValidationError as error:
        complaints = (
            ": ".join(filter(None, (".".join(map(str, detail["loc"])), detail["msg"])))
            for detail in error.errors()
        )
        raise InvalidDocumentError("; ".join(complaints)) from None


def to_bytes(document: DataclassInstance, sparse: bool = False) -> bytes:
    """Return a typed document as JSON.

    Args:
        document: A dataclass, which may hold others.
        sparse: Whether to omit optional fields that are None.
    """

    def fields(part: object) -> dict[str, object]:
        attributes = vars(part)
        if not sparse:
            return dict(attributes)
        # A field with a plain default is also an attribute of its class.
        return {
            name: content
            for name, content in attributes.items()
            if content is not None or not hasattr(type(part), name)
        }

    text = json.dumps(document, default=fields, indent=1, ensure_ascii=False, allow_nan=False)
    return (text + "\n").encode()


@cache
def adapter(kind: type[T]) -> TypeAdapter[T]:
    """Return pydantic's adapter of a type; cached, because building it takes longer than a read."""
    import pydantic

    return pydantic.TypeAdapter(kind)
