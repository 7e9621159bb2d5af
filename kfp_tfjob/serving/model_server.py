"""kserve's server with a given listening socket; kserve itself does not offer the address.

Called by `server.py`.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import socket
from functools import partial
from typing import Any

from kserve import ModelServer

_MOST_HEADERS = 65_536  # bytes of the request line and headers, which are kept in memory


class Server(ModelServer):
    """kserve's server with a given listening socket.

    Args:
        listener: The bound socket.
        options: Arguments of kserve's server.
    """

    def __init__(self, listener: socket.socket, **options: Any) -> None:
        super().__init__(http_port=listener.getsockname()[1], enable_grpc=False, **options)
        self._listener = listener

    def setup_event_loop(self) -> None:
        """Set the listening socket; kserve has just made its HTTP server and starts it next."""
        assert self._rest_server is not None
        http = self._rest_server._server
        http.serve = partial(http.serve, sockets=[self._listener])
        # Only h11 limits the bytes of headers.
        http.config.http, http.config.h11_max_incomplete_event_size = "h11", _MOST_HEADERS
        super().setup_event_loop()
