"""The Parquet file of sampled requests: rows that a server received, and the model's predictions.

A file contains a random subset of the rows of one interval, one server process and one version of
the model. It has schema.json's columns by name, except for columns that the server omits; null is a
missing value. TIME is the request's time, and PREDICTION the model's output for the row.

A file's name ends with the digest of its bytes. Arrow aborts the process at some damaged files, so
a file is compared with its name before it is parsed. Written by sampler.py, read by monitor.py.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from hashlib import sha256

import pyarrow as pa
import pyarrow.parquet as pq

from kfp_tfjob.common.errors import DataError, Problem
from kfp_tfjob.storage import documents
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.documents import InvalidDocumentError
from kfp_tfjob.storage.layout import ModelLayout
from kfp_tfjob.storage.store import Store

FORMAT = "kfp-tfjob/requests/1"
TIME, PREDICTION = "_time", "_prediction"
LARGEST = 256 << 20  # bytes of a file: 8 times the sampler's MOST_BYTES
_KEY = b"kfp-tfjob"
_TIMES = pa.timestamp("us", "UTC")


@dataclass(frozen=True)
class About:
    """The metadata in a file.

    Attributes:
        model: The model's name.
        version: The version that answered.
        champion: The number of the record that made the version the champion.
        schema_digest: The digest of the training data's schema.
        began: The beginning of the interval, ISO 8601, UTC.
        ended: The end of the interval.
        rows: The number of rows in the interval; the file may contain fewer.
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
        """Return the metadata as JSON."""
        body = asdict(self)
        body["from"], body["to"] = body.pop("began"), body.pop("ended")
        return json.dumps({"format": FORMAT, **body}, ensure_ascii=False).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> About:
        """Parse the JSON that `to_bytes` returned.

        Raises:
            InvalidDocumentError: The data is not such JSON.
        """
        body = documents.parse_object(data)
        if body.pop("format", None) != FORMAT:
            raise InvalidDocumentError(f"not in the format {FORMAT}")
        body["began"], body["ended"] = body.pop("from", None), body.pop("to", None)
        return documents.read(cls, json.dumps(body).encode())


@dataclass(frozen=True)
class RequestsSample:
    """A file's content.

    Attributes:
        about: The metadata.
        columns: (rows,) array of each feature.
        times: (rows,) timestamp[us, UTC], when each request arrived.
    """

    about: About
    columns: Mapping[str, pa.Array]
    times: pa.Array

    @property
    def rows(self) -> int:
        """The number of rows in the file."""
        return len(self.times)


def put(
    store: Store,
    place: ModelLayout,
    columns: Mapping[str, pa.Array],
    times: Sequence[datetime],
    predictions: Sequence[Sequence[float] | None],
    about: About,
) -> S3Address:
    """Store a file, and return its address; `to_parquet` describes the other arguments.

    Args:
        store: The store.
        place: The model's addresses.
        columns: The features by name.
        times: The time of each row's request.
        predictions: The model's output for each row.
        about: The metadata.

    Raises:
        StepError: The store is unreachable, or rejects the file.
    """
    data = to_parquet(columns, times, predictions, about)
    address = place.request_sample(about.version, times[0].astimezone(UTC), _digest(data))
    store.create(address, data, "application/vnd.apache.parquet")
    return address


def to_parquet(
    columns: Mapping[str, pa.Array],
    times: Sequence[datetime],
    predictions: Sequence[Sequence[float] | None],
    about: About,
) -> bytes:
    """Return the bytes of a file.

    Args:
        columns: (rows,) array of each feature, with at least one row; null is a missing value. A
            feature called TIME or PREDICTION is not stored.
        times: The time of each row's request, ascending, UTC.
        predictions: The model's output for each row; None if it is not a list of numbers.
        about: The metadata.
    """
    reserved = {
        TIME: pa.array(times, _TIMES),
        PREDICTION: pa.array(predictions, pa.list_(pa.float32())),
    }
    features = {name: values for name, values in columns.items() if name not in reserved}
    table = pa.table(features | reserved).replace_schema_metadata({_KEY: about.to_bytes()})
    stream = io.BytesIO()
    pq.write_table(table, stream, compression="zstd")
    return stream.getvalue()


def get(store: Store, address: S3Address) -> RequestsSample:
    """Return the content of a file in the store.

    Raises:
        DataError: The object is not such a file, or is damaged.
        StepError: The store is unreachable, or rejects the request.
    """
    return read(store.read(address, LARGEST), str(address))


def read(data: bytes, name: str) -> RequestsSample:
    """Return the features and times of a file's rows, without the predictions.

    Args:
        data: The file's bytes.
        name: The file's address or name, which contains the digest.

    Raises:
        DataError: The data is not such a file, or is damaged.
    """
    if f"-{_digest(data)}." not in name:
        raise _invalid_sample(name, "its bytes do not match the digest in its name")
    try:
        table = pq.read_table(io.BytesIO(data), use_threads=False).combine_chunks()
    except (pa.ArrowException, OSError) as error:
        raise _invalid_sample(name, f"{type(error).__name__}: {error!s:.300}") from error
    try:
        about = About.from_bytes((table.schema.metadata or {}).get(_KEY, b""))
    except InvalidDocumentError as error:
        raise _invalid_sample(name, str(error)) from error
    if TIME not in table.column_names or table.schema.field(TIME).type != _TIMES:
        raise _invalid_sample(name, f"no column {TIME} of the type {_TIMES}")
    if not 0 < table.num_rows <= about.rows:
        raise _invalid_sample(name, f"{table.num_rows} of {about.rows} rows")
    names = [name for name in table.column_names if name not in (TIME, PREDICTION)]
    return RequestsSample(
        about, {name: table[name].chunk(0) for name in names}, table[TIME].chunk(0)
    )


def _invalid_sample(name: str, received: str) -> DataError:
    return DataError(
        Problem(
            f"{name} is not a sample of requests",
            received=received,
            expected=f"a Parquet file in the format {FORMAT}",
            fix="delete it",
        )
    )


def _digest(data: bytes) -> str:
    return sha256(data).hexdigest()[:32]
