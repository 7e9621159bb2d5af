"""The file of a sample of requests: what a server was asked, and what the model answered.

A file has some rows of one interval, of one server process and of one version of the model, chosen
at random from all of them. Its columns are those of schema.json by their names, without those that
the server leaves out; null is a gap. TIME is when the request came, and PREDICTION the output of
the model for the row.

The name of a file ends with the digest of its bytes: Arrow ends the process at some damaged files,
so a file is compared with its name before it is parsed.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.errors import DataError, Problem
from kfp_tfjob.storage.layout import ModelLayout
from kfp_tfjob.storage.store import Store

FORMAT = "kfp-tfjob/requests/1"
TIME, PREDICTION = "_time", "_prediction"
LARGEST = 256 << 20  # bytes of a file
_KEY = b"kfp-tfjob"
_TIMES, _PREDICTIONS = pa.timestamp("us", "UTC"), pa.list_(pa.float32())
_MOST_UNPACKED = 1 << 30  # bytes of one column


@dataclass(frozen=True)
class About:
    """What a file says about itself.

    Attributes:
        model: The name of the model.
        version: The version that answered.
        champion: The number of the record that made it the champion.
        schema_digest: Of the schema of its training data.
        began: The beginning of the interval, ISO 8601, UTC.
        ended: Its end.
        rows: All rows of the interval; the file may have fewer.
        left_out: Features that the server does not store.
    """

    model: str
    version: int
    champion: int
    schema_digest: str
    began: str
    ended: str
    rows: int
    left_out: tuple[str, ...] = ()

    def to_bytes(self) -> bytes:
        """Return it as JSON."""
        body = asdict(self)
        body["from"], body["to"] = body.pop("began"), body.pop("ended")
        return json.dumps({"format": FORMAT, **body}, ensure_ascii=False).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> About:
        """Return what `to_bytes` returned.

        Raises:
            ValueError, KeyError, TypeError: It is not that.
        """
        body = json.loads(data)
        if body.pop("format") != FORMAT:
            raise ValueError(f"not of the format {FORMAT}")
        body["began"], body["ended"] = body.pop("from"), body.pop("to")
        for key in ("version", "champion", "rows"):
            body[key] = int(body[key])
        body["left_out"] = tuple(map(str, body["left_out"]))
        return cls(**body)


@dataclass(frozen=True)
class RequestsSample:
    """The content of a file.

    Attributes:
        about: What it says about itself.
        columns: The features, each of shape [rows].
        times: timestamp[us, UTC] of shape [rows].
        predictions: list<float> of shape [rows].
    """

    about: About
    columns: Mapping[str, pa.Array]
    times: pa.Array
    predictions: pa.Array

    @property
    def rows(self) -> int:
        """The rows of the file."""
        return len(self.times)


def put(
    store: Store,
    place: ModelLayout,
    columns: Mapping[str, pa.Array],
    times: Sequence[datetime] | pa.Array,
    predictions: Sequence[Sequence[float] | None] | pa.Array,
    about: About,
) -> S3Address:
    """Store a file; return its address.

    Args:
        store: The store.
        place: The folder of the model.
        columns: As of `to_parquet`, like all that follow.
        times: When each request came.
        predictions: The output of the model for each row.
        about: What the file says about itself.

    Raises:
        StepError: The store is unreachable, or refuses it.
    """
    data = to_parquet(columns, times, predictions, about)
    first = _array(times, _TIMES)[0].as_py().astimezone(UTC)
    address = place.request_sample(about.version, first, _digest(data))
    store.create(address, data, "application/vnd.apache.parquet")
    return address


def to_parquet(
    columns: Mapping[str, pa.Array],
    times: Sequence[datetime] | pa.Array,
    predictions: Sequence[Sequence[float] | None] | pa.Array,
    about: About,
) -> bytes:
    """Return the bytes of a file.

    Args:
        columns: The features by name, each of shape [rows > 0]; null is a gap. A feature with the
            name TIME or PREDICTION is not stored.
        times: When each request came, in order, UTC.
        predictions: The output of the model for each row; None if it is not a list of numbers.
        about: What the file says about itself.
    """
    kept = {name: values for name, values in columns.items() if name not in (TIME, PREDICTION)}
    kept[TIME] = _array(times, _TIMES)
    kept[PREDICTION] = _array(predictions, _PREDICTIONS)
    table = pa.table(kept).replace_schema_metadata({_KEY: about.to_bytes()})
    stream = io.BytesIO()
    pq.write_table(table, stream, compression="zstd", write_page_checksum=True)
    return stream.getvalue()


def get(store: Store, address: S3Address) -> RequestsSample:
    """Return the content of a file in the store.

    Raises:
        DataError: It is not such a file, or is damaged.
        StepError: The store is unreachable, or refuses it.
    """
    return read(store.read(address, LARGEST), str(address))


def read(data: bytes, name: str) -> RequestsSample:
    """Return the content of a file.

    Args:
        data: Its bytes.
        name: Its address or name.

    Raises:
        DataError: It is not such a file, or is damaged.
    """
    try:
        if f"-{_digest(data)}." not in name:
            raise ValueError("its bytes do not match the digest in its name")
        file = pq.ParquetFile(io.BytesIO(data), page_checksum_verification=True)
        about = About.from_bytes((file.schema_arrow.metadata or {})[_KEY])
        _refuse_large(file)
        table = file.read(use_threads=False).combine_chunks()
        found = dict(zip(table.column_names, map(_whole, table.columns), strict=True))
        if len(found) < table.num_columns:
            raise ValueError("two columns with the same name")
        times = found.pop(TIME).cast(_TIMES)
        predictions = found.pop(PREDICTION).cast(_PREDICTIONS)
        if not 0 < len(times) <= about.rows:
            raise ValueError(f"{len(times)} of {about.rows} rows")
        return RequestsSample(about, found, times, predictions)
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            Problem(
                f"{name} is not a sample of requests",
                received=f"{type(error).__name__}: {error!s:.300}",
                expected=f"a Parquet file in the format {FORMAT}",
                fix="delete it",
            )
        ) from error


def _digest(data: bytes) -> str:
    return sha256(data).hexdigest()[:32]


def _array(values: Any, kind: pa.DataType) -> pa.Array:
    return values.cast(kind) if isinstance(values, pa.Array) else pa.array(values, kind)


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks else pa.array([], column.type)


def _refuse_large(file: pq.ParquetFile) -> None:
    """Raise for a file that claims to unpack to more than a server writes."""
    metadata = file.metadata
    for group in range(metadata.num_row_groups):
        part = metadata.row_group(group)
        for at in range(part.num_columns):
            if part.column(at).total_uncompressed_size > _MOST_UNPACKED:
                raise ValueError(f"more than {_MOST_UNPACKED >> 20} MiB in a column")
