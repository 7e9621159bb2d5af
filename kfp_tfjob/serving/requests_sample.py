"""The file of a sample of requests: what a server was asked, and what the model answered.

A file has some rows of one interval, of one server process and of one version of the model, chosen
at random from all of them. Its columns are those of schema.json by their names, without those that
the server omits; null is a missing value. TIME is when the request came, and PREDICTION the
model's output for the row.

A file's name ends with the digest of its bytes: Arrow ends the process at some damaged files,
so a file is compared with its name before it is parsed.
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

from kfp_tfjob.storage import documents
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.documents import InvalidDocumentError
from kfp_tfjob.storage.errors import DataError, Problem
from kfp_tfjob.storage.layout import ModelLayout
from kfp_tfjob.storage.store import Store

FORMAT = "kfp-tfjob/requests/1"
TIME, PREDICTION = "_time", "_prediction"
LARGEST = 256 << 20  # bytes of a file
_KEY = b"kfp-tfjob"
_TIMES = pa.timestamp("us", "UTC")


@dataclass(frozen=True)
class About:
    """What a file says about itself.

    Attributes:
        model: The model's name.
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
            InvalidDocumentError: It is not that.
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
        about: What it says about itself.
        columns: The features, each of shape [rows].
        times: timestamp[us, UTC] of shape [rows].
    """

    about: About
    columns: Mapping[str, pa.Array]
    times: pa.Array

    @property
    def rows(self) -> int:
        """The file's rows."""
        return len(self.times)


def put(
    store: Store,
    place: ModelLayout,
    columns: Mapping[str, pa.Array],
    times: Sequence[datetime],
    predictions: Sequence[Sequence[float] | None],
    about: About,
) -> S3Address:
    """Store a file; return its address.

    Args:
        store: The store.
        place: The model's folder.
        columns: As of `to_parquet`, like all that follow.
        times: When each request came.
        predictions: The output of the model for each row.
        about: What the file says about itself.

    Raises:
        StepError: The store is unreachable, or rejects it.
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
        columns: The features by name, each of shape [rows > 0]; null is a missing value. A feature
            called TIME or PREDICTION is not stored.
        times: When each request came, in order, UTC.
        predictions: The output of the model for each row; None if it is not a list of numbers.
        about: What the file says about itself.
    """
    own = {
        TIME: pa.array(times, _TIMES),
        PREDICTION: pa.array(predictions, pa.list_(pa.float32())),
    }
    kept = {name: values for name, values in columns.items() if name not in own}
    table = pa.table(kept | own).replace_schema_metadata({_KEY: about.to_bytes()})
    stream = io.BytesIO()
    pq.write_table(table, stream, compression="zstd")
    return stream.getvalue()


def get(store: Store, address: S3Address) -> RequestsSample:
    """Return the content of a file in the store.

    Raises:
        DataError: It is not such a file, or is damaged.
        StepError: The store is unreachable, or rejects it.
    """
    return read(store.read(address, LARGEST), str(address))


def read(data: bytes, name: str) -> RequestsSample:
    """Return a file's content.

    Args:
        data: Its bytes.
        name: Its address or name.

    Raises:
        DataError: It is not such a file, or is damaged.
    """
    if f"-{_digest(data)}." not in name:
        raise _no_sample(name, "its bytes do not match the digest in its name")
    try:
        table = pq.read_table(io.BytesIO(data), use_threads=False).combine_chunks()
    except (pa.ArrowException, OSError) as error:
        raise _no_sample(name, f"{type(error).__name__}: {error!s:.300}") from error
    try:
        about = About.from_bytes((table.schema.metadata or {}).get(_KEY, b""))
    except InvalidDocumentError as error:
        raise _no_sample(name, str(error)) from error
    if TIME not in table.column_names or table.schema.field(TIME).type != _TIMES:
        raise _no_sample(name, f"no column {TIME} of the type {_TIMES}")
    if not 0 < table.num_rows <= about.rows:
        raise _no_sample(name, f"{table.num_rows} of {about.rows} rows")
    names = [name for name in table.column_names if name not in (TIME, PREDICTION)]
    return RequestsSample(
        about, {name: table[name].chunk(0) for name in names}, table[TIME].chunk(0)
    )


def _no_sample(name: str, received: str) -> DataError:
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
