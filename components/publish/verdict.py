"""Reads the verdict that publish acts on."""

from __future__ import annotations

from collections.abc import Callable

from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.errors import DataError, Problem
from kfp_tfjob.storage.verdict_record import ModelVerdict

_NEEDED = ("model_name", "run_id", "model_uri", "model_digest", "dataset_digest", "schema_digest")


def read_verdict(read: Callable[[], ModelVerdict], address: S3Address) -> ModelVerdict:
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
    except ValueError as error:
        raise _damaged(address, str(error)) from error
    if missing := [name for name in _NEEDED if not getattr(found, name)]:
        raise _damaged(address, f"no {', '.join(missing)}")
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
