"""The settings of a store, from the mounted Secret or the environment.

A store may demand encrypted objects, another form of addresses, or certificates of its own.
VARIABLES lists the settings; the table in docs/operations.md is made from it. Called by
`s3_session.py`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kfp_tfjob.common.errors import ConfigurationError, Problem

if TYPE_CHECKING:  # it imports botocore; the help needs only the names
    from .credentials import SecretVolume

# Names and meanings, as in docs/operations.md.
VARIABLES = {
    "STORAGE_ADDRESSING": "auto, path or virtual; default: path if an endpoint is set",
    "STORAGE_ENCRYPTION": "AES256 for SSE-S3, aws:kms or aws:kms:KEY_ID for SSE-KMS",
    "STORAGE_REQUEST_PAYER": "requester, if data is in a bucket whose requester pays",
    "AWS_CA_BUNDLE": "file with the certificates to trust",
}


@dataclass(frozen=True)
class StoreSettings:
    """The settings of a store.

    Attributes:
        addressing: `auto`, `path`, `virtual`, or empty for the default.
        parameters: Of put_object and create_multipart_upload in boto3, for every object.
        headers: Of every request.
        ca_bundle: File with the certificates to trust; empty for the default ones.
    """

    addressing: str = ""
    parameters: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    ca_bundle: str = ""

    @classmethod
    def read(cls, secret: SecretVolume) -> StoreSettings:
        """Return the settings; the Secret overrides the environment.

        Raises:
            ConfigurationError: A value is not allowed.
        """
        settings = {
            name: setting
            for name in VARIABLES
            if (setting := secret.get(name) or os.environ.get(name, "").strip())
        }
        checks = {
            "STORAGE_ADDRESSING": r"auto|path|virtual",
            "STORAGE_ENCRYPTION": r"AES256|aws:kms(:.+)?",
            "STORAGE_REQUEST_PAYER": r"requester",
        }
        ConfigurationError.raise_if(
            Problem(f"{name} has no effect", fix="delete it, and use the bucket's lifecycle rules")
            for name in ("STORAGE_CLASS", "STORAGE_TAGS")
            if secret.get(name) or os.environ.get(name)
        )
        ConfigurationError.raise_if(
            Problem(
                f"{name} is not valid", repr(settings[name]), VARIABLES[name], f"correct {name}"
            )
            for name, pattern in checks.items()
            if name in settings and not re.fullmatch(pattern, settings[name])
        )
        parameters = {}
        encryption = settings.get("STORAGE_ENCRYPTION", "")
        if encryption == "AES256":
            parameters["ServerSideEncryption"] = encryption
        elif encryption:
            parameters["ServerSideEncryption"] = "aws:kms"
            if key := encryption.removeprefix("aws:kms").removeprefix(":"):
                parameters["SSEKMSKeyId"] = key
        payer = settings.get("STORAGE_REQUEST_PAYER")
        return cls(
            settings.get("STORAGE_ADDRESSING", ""),
            parameters,
            {"x-amz-request-payer": payer} if payer else {},
            settings.get("AWS_CA_BUNDLE", ""),
        )
