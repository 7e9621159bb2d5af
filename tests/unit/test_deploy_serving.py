"""The manifests of the servers, without a cluster."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml


def _nested(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
    for item in value.values() if isinstance(value, dict) else value:
        if isinstance(item, dict | list):
            yield from _nested(item)


def test_a_missing_secret_of_the_store_stops_no_pod(repository: Path) -> None:
    """The rights may be those of the service account; and the program says which key is missing."""
    found = [
        volume["secret"]
        for path in sorted((repository / "deploy" / "serving").rglob("*.yaml"))
        for part in _nested(list(yaml.safe_load_all(path.read_text())))
        for volume in part.get("volumes") or ()
        if "secret" in volume
    ]
    assert len(found) == 4
    assert all(secret["optional"] is True for secret in found)
