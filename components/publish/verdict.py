"""Reads the verdict that publish acts on."""

from __future__ import annotations

from collections.abc import Callable

from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.errors import DataError, Problem
from kfp_tfjob.storage.verdict_record import ModelVerdict


def read_verdict(read: Callable[[], ModelVerdict], address: S3Address) -> ModelVerdict:
    """Return a verdict.

    Args:
        read: Reads it.
        address: Where it is, for the message.

    Raises:
        ObjectNotFoundError: There is none.
        DataError: It is not what evaluate writes.
    """
    try:
        return read()
    except ValueError as error:
        raise DataError(
            Problem(
                f"{address} is not a verdict",
                received=str(error),
                expected="the JSON that evaluate writes",
                fix="start the run again",
            )
        ) from error
