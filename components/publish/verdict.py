"""Reads the verdict that publish acts on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.errors import DataError, Problem

_KINDS: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("model_name", "run_id", "model_uri", "model_digest"), str),
    **dict.fromkeys(("dataset_digest", "schema_digest"), str),
    "blessed": bool,
    "reasons": list,
    "metrics": dict,
    "champion": (dict, type(None)),
}


def read_verdict(read: Callable[[], Any], address: S3Address) -> dict[str, Any]:
    """Return a verdict that has what publish needs.

    Args:
        read: Reads it.
        address: Where it is, for the message.

    Raises:
        ObjectNotFoundError: There is none.
        DataError: It is not what evaluate writes.
    """
    try:
        found = read()
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged(address, f"{type(error).__name__}: {error}") from error
    if not isinstance(found, dict):
        raise _damaged(address, f"{found!r:.80}")
    wrong = [it for it, kind in _KINDS.items() if not isinstance(found.get(it), kind)]
    if not wrong and found["champion"] and not isinstance(found["champion"].get("number"), int):
        wrong = ["champion.number"]
    if wrong:
        raise _damaged(address, f"no {', '.join(wrong)}, or another type")
    return found


def _damaged(address: S3Address, received: str) -> DataError:
    return DataError(
        Problem(
            f"{address} is not a verdict",
            received=received,
            expected="the JSON that evaluate writes",
            fix="start the run again",
        )
    )
