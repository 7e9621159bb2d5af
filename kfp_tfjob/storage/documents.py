"""Parses untrusted JSON, within limits that it checks before it uses memory."""

from __future__ import annotations

import json
import re
from typing import Any

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
        ValueError: It is not JSON in UTF-8, is too large or nested too deeply, or holds text that
            cannot be encoded as UTF-8.
    """
    if len(data) > longest:
        raise ValueError(f"more than {longest >> 20} MiB of JSON")
    if data.count(b"{") + data.count(b"[") > _MOST_CONTAINERS:
        raise ValueError(f"more than {_MOST_CONTAINERS:,} objects and lists")
    text = data.decode()
    try:
        body = json.loads(text)
        if _SURROGATE.search(text):
            json.dumps(body, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("objects or lists nested too deeply") from None
    return body
