"""kserve's server, listening where it is told: kserve has no option for the address."""

# pyright: reportMissingImports=false
from __future__ import annotations

import socket
from functools import partial
from typing import Any

from grpc import aio
from kserve import ModelServer
from kserve.model_server import args
from kserve.protocol.grpc import grpc_predict_v2_pb2_grpc as v2
from kserve.protocol.grpc.interceptors import ExceptionToStatusInterceptor, LoggingInterceptor
from kserve.protocol.grpc.server import GRPCServer
from kserve.protocol.grpc.servicer import InferenceServicer

from kfp_tfjob.serving.connection import MOST_BYTES, Connection
from kfp_tfjob.serving.listening import IDLE


class Server(ModelServer):
    """kserve's server, listening where it is told.

    Args:
        listener: For HTTP, from `listen`.
        grpc_address: Such as `127.0.0.1:8081`; empty for no gRPC.
        more: Of kserve's server.
    """

    def __init__(self, listener: socket.socket, grpc_address: str, **more: Any) -> None:
        super().__init__(http_port=listener.getsockname()[1], enable_grpc=False, **more)
        self._listener, self._grpc_address = listener, grpc_address

    def setup_event_loop(self) -> None:
        """Replace where the servers listen: kserve has made them, and starts them next."""
        http = self._rest_server._server
        http.serve = partial(http.serve, sockets=[self._listener])
        http.config.http, http.config.h11_max_incomplete_event_size = Connection, MOST_BYTES
        if self._grpc_address:
            self._grpc_server = _GRPCServer(
                self._grpc_address,
                self.dataplane,
                self.model_repository_extension,
                vars(args),
                self.grace_period,
            )
            self.servers.append(self._grpc_server.start(self.max_threads))
        super().setup_event_loop()


class _GRPCServer(GRPCServer):
    """kserve's gRPC server on one address instead of a port of all interfaces."""

    async def start(self, max_workers: int) -> None:
        """Serve until it is stopped; `max_workers` is for calls that are no coroutines: none."""
        sizes = ("max_send_message_length", "max_receive_message_length")
        options = [(f"grpc.{name}", self._kwargs[f"grpc_{name}"]) for name in sizes]
        options += [("grpc.keepalive_time_ms", 1000 * IDLE)]
        options += [("grpc.keepalive_permit_without_calls", 1)]
        interceptors = (LoggingInterceptor(), ExceptionToStatusInterceptor())
        self._server = aio.server(interceptors=interceptors, options=options)
        servicer = InferenceServicer(self._data_plane, self._model_repository_extension)
        v2.add_GRPCInferenceServiceServicer_to_server(servicer, self._server)
        self._server.add_insecure_port(self._port)
        await self._server.start()
        await self._server.wait_for_termination()
