"""The file of a sample of requests: what is written can be read, and nothing else."""

import io
import json
from datetime import UTC, datetime
from hashlib import sha256

import pyarrow as pa
import pyarrow.parquet
import pytest

from kfp_tfjob.common.errors import DataError
from kfp_tfjob.serving.requests_sample import About, RequestsSample, read, to_parquet
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import Layout

ABOUT = About("pets", 2, 3, "d" * 64, "2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z", 9, ("id",))
NOON = datetime(2026, 1, 1, 12, 3, 4, tzinfo=UTC)


def opened(data: bytes) -> RequestsSample:
    """Read a file with the name that its content asks for."""
    return read(data, f"120304-{sha256(data).hexdigest()[:32]}.parquet")


def file(**columns: pa.Array) -> bytes:
    given = {"weight": pa.array([1.5, None]), "name": pa.array(["Åsa", None]), **columns}
    return to_parquet(given, [NOON, NOON], [[0.25, 0.75], None], ABOUT)


def test_what_is_written_is_read() -> None:
    found = opened(file(_time=pa.array([1, 2])))
    assert found.about == ABOUT and found.rows == 2
    assert {name: column.to_pylist() for name, column in found.columns.items()} == {
        "weight": [1.5, None],
        "name": ["Åsa", None],
    }
    assert found.times.to_pylist() == [NOON, NOON]


def test_where_it_is() -> None:
    place = Layout(S3Address("b", "out")).model("pets")
    address = place.request_sample(2, NOON, "4f")
    assert str(address) == "s3://b/out/models/pets/requests/2/2026-01-01/120304-4f.parquet"


def changed(**about) -> bytes:
    table = pa.parquet.read_table(io.BytesIO(file()))
    body = json.loads(table.schema.metadata[b"kfp-tfjob"]) | about
    stream = io.BytesIO()
    pa.parquet.write_table(
        table.replace_schema_metadata({b"kfp-tfjob": json.dumps(body).encode()}), stream
    )
    return stream.getvalue()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"PAR1",
        file()[:-1],
        file()[4:],
        changed(format="kfp-tfjob/requests/2"),
        changed(rows=1),
        changed(rows="many"),
        changed(left_out=3),
    ],
)
def test_other_files_are_refused(data: bytes) -> None:
    with pytest.raises(DataError, match="sample"):
        opened(data)


def test_every_damaged_byte_is_found() -> None:
    whole = file()
    name = f"120304-{sha256(whole).hexdigest()[:32]}.parquet"
    assert read(whole, name).rows == 2
    for at in range(len(whole)):
        data = bytearray(whole)
        data[at] ^= 1
        with pytest.raises(DataError, match="digest"):
            read(bytes(data), name)
