"""PUT over connections that are kept."""

import time
from contextlib import suppress

import boto3
import pytest
from botocore.exceptions import ClientError

from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.body import Body
from kfp_tfjob.storage.fast_put import FastPut
from tests.http_server import Handler, serving


class RefusesUnread(Handler):
    """Refuses without reading the body, which is then the next request of the connection."""

    def do_PUT(self) -> None:
        if self.path.endswith("inner"):
            time.sleep(0.5)
            with suppress(ConnectionError):  # who was refused has hung up
                self.answer(b"")
        else:
            self.answer(b"<Error><Code>SlowDown</Code></Error>", 503)


def test_a_reply_to_the_body_of_a_refused_request_is_not_that_to_the_next_one() -> None:
    body = b"PUT /b/inner HTTP/1.1\r\nContent-Length: 0\r\n\r\n"
    keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b", "region_name": "x"}
    with serving(RefusesUnread) as server:
        put = FastPut(boto3.client("s3", endpoint_url=server.url, **keys))
        for key in ("first", "second"):
            with pytest.raises(ClientError, match="SlowDown"):
                put.put(S3Address("b", key), Body(body, len(body)), {})
