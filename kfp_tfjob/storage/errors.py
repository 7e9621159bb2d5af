"""The former name of `kfp_tfjob.common.errors`, which users' programs import."""

from kfp_tfjob.common.errors import (
    ConfigurationError,
    DataError,
    NoRoomError,
    ObjectExistsError,
    ObjectNotFoundError,
    Problem,
    StepError,
    StoreUnavailableError,
    SurpassedError,
)

__all__ = [
    "ConfigurationError",
    "DataError",
    "NoRoomError",
    "ObjectExistsError",
    "ObjectNotFoundError",
    "Problem",
    "StepError",
    "StoreUnavailableError",
    "SurpassedError",
]
