"""An address in S3, `s3://bucket/key`, parsed once where it enters the program.

The rest of the code holds `S3Address` objects, so it never joins or splits strings, and an address
that no store can have is reported together with the name of the parameter that holds it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from kfp_tfjob.common.errors import ConfigurationError, Problem

# Masked in messages: other tools accept s3://KEY:SECRET@BUCKET, and users paste such addresses.
_LOGIN = re.compile(r"(?<=://)[^/\s]*@")
# The rules that all S3 stores share; each store has its own for dots and capitals.
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{2,62}")


@dataclass(frozen=True, order=True)
class S3Address:
    """A bucket and a key; an empty key means the bucket itself.

    A key names an object or a prefix of objects; nothing marks the difference.
    """

    bucket: str
    key: str = ""

    @classmethod
    def parse(cls, uri: str, name: str = "address") -> S3Address:
        """Return the address in `s3://bucket/key`; slashes around the key are dropped.

        Args:
            uri: The string to parse.
            name: The parameter that holds it, for error messages, for example `output_uri`.

        Raises:
            ConfigurationError: It is not an s3:// address with a bucket.
        """
        scheme, separator, location = uri.strip().partition("://")
        bucket, _, key = location.partition("/")
        if scheme != "s3" or not separator or not _BUCKET.fullmatch(bucket):
            rule = ", with 3 to 63 letters, digits, '.', '-' or '_' as BUCKET"
            raise ConfigurationError(
                Problem(
                    f"{name} is not an address in S3",
                    received=repr(_LOGIN.sub("******@", uri)),
                    expected="s3://BUCKET or s3://BUCKET/PREFIX"
                    + (rule if scheme == "s3" and bucket else ""),
                    fix=f"set {name} to an address in an existing bucket",
                    path=name,
                    name="not-an-s3-address",
                )
            )
        return cls(bucket, key.strip("/"))

    def __truediv__(self, name: str) -> S3Address:
        """Return the address of `name` below this one."""
        return S3Address(self.bucket, f"{self.key}/{name}" if self.key else name)

    def __str__(self) -> str:
        """Return the address as `s3://bucket/key`."""
        return f"s3://{self.bucket}/{self.key}" if self.key else f"s3://{self.bucket}"

    @property
    def name(self) -> str:
        """The last part of the key."""
        return self.key.rpartition("/")[2]
