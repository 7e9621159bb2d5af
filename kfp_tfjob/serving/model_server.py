"""kserve's server, listening where it is told: kserve has no option for the address."""

# pyright: reportMissingImports=false
from __future__ import annotations

import socket
from functools import partial
from typing import Any

from kserve import ModelServer


class Server(ModelServer):
    """kserve's server, listening where it is told.

    Args:
        listener: From `listen`.
        more: Of kserve's server.
    """

    def __init__(self, listener: socket.socket, **more: Any) -> None:
        super().__init__(http_port=listener.getsockname()[1], enable_grpc=False, **more)
        self._listener = listener

    def setup_event_loop(self) -> None:
        """Replace where the server listens: kserve has made it, and starts it next."""
        http = self._rest_server._server
        http.serve = partial(http.serve, sockets=[self._listener])
        super().setup_event_loop()
