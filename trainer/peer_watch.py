"""Detects the death of a process through a connection between each worker and the chief.

If other processes wait in a sum, TensorFlow detects a killed process only after many seconds. The
kernel closes the connections of a killed process at once, so each worker has one to the chief. It
carries only keepalives, and a farewell from a process that ends with its own error or result. If it
closes without a farewell, the other process restarts.

The port changes with every start and requires a token. A restarted worker lets TensorFlow connect
only once the chief listens, because gRPC waits a second after a refused connection. If a network
policy blocks the connection, the log says so, and only TensorFlow's own detection remains.
"""

from __future__ import annotations

import hmac
import logging
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from kfp_tfjob.trainer.exits import PeerLostError, write_termination_message
from kfp_tfjob.trainer.replicas import Replicas

log = logging.getLogger(__name__)
_TOKEN, _PORT, _NAME = 16, 2, 32  # bytes
_GREETING_SECONDS = 60.0  # a process that builds its model may answer late
_QUIET_SECONDS = 30.0  # networks close idle connections
_ALIVE, _FAREWELL = b".", b"!"


class PeerMonitor:
    """Ends this process when a process that it depends on dies.

    Args:
        name: Name of this replica.
    """

    def __init__(self, name: str) -> None:
        self._name = name.encode()[:_NAME].ljust(_NAME)
        self._lock = threading.Lock()
        self._peers: list[socket.socket] = []
        self._over = False

    def start(self, replicas: Replicas, chief: tuple[str, int]) -> None:
        """Start to watch; every process must call this.

        If the network does not let the workers connect, only TensorFlow detects lost peers.

        Args:
            replicas: The replicas of the job.
            chief: Host and port of the chief in TF_CONFIG; only the host counts.
        """
        if replicas.processes == 1:
            return
        if not replicas.chief:
            told = replicas.share(b"")
            token, port = told[:_TOKEN], int.from_bytes(told[_TOKEN:], "big")
            self._in_background(self._join, (chief[0], port), token)
            return
        dual = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if dual else socket.AF_INET
        server = socket.create_server(("", 0), family=family, dualstack_ipv6=dual)
        # Other programs that find the port must not count as replicas.
        token = secrets.token_bytes(_TOKEN)
        replicas.share(token + server.getsockname()[1].to_bytes(_PORT, "big"))
        self._in_background(self._accept, server, token)

    def end(self, farewell: bool = True) -> None:
        """Stop watching.

        Args:
            farewell: Whether the others continue without this process.
        """
        with self._lock:
            self._over = True
            for peer in self._peers if farewell else ():
                with suppress(OSError):
                    peer.sendall(_FAREWELL)

    def _in_background(self, function: Callable[..., None], *arguments: object) -> None:
        threading.Thread(target=function, args=arguments, daemon=True).start()

    def _accept(self, server: socket.socket, token: bytes) -> None:
        """Accept the connections of the workers."""
        while True:
            with suppress(ConnectionError):
                peer, _ = server.accept()
                self._in_background(self._greet, peer, token)

    def _greet(self, peer: socket.socket, token: bytes) -> None:
        """Monitor the process at the other end if it knows the token."""
        try:
            said = _read(peer, _TOKEN + _NAME)
        except OSError:
            said = b""
        if not hmac.compare_digest(said[:_TOKEN], token):
            peer.close()
            return
        with self._lock:
            if self._over:
                peer.close()
                return
            self._peers.append(peer)
            with suppress(OSError):
                peer.sendall(self._name)
        self._watch(peer, said[_TOKEN:])

    def _join(self, address: tuple[str, int], token: bytes) -> None:
        """Connect to the chief, and watch it after it accepts this worker."""
        try:
            peer = socket.create_connection(address, _GREETING_SECONDS)
            with self._lock:
                if self._over:
                    return
                # It stays open even without an answer: closing it would signal a death.
                self._peers.append(peer)
                peer.sendall(token + self._name)
            chief = _read(peer, _NAME)
        except OSError as error:
            log.warning("no connection to the chief, so losing it is detected later: %s", error)
            return
        self._watch(peer, chief)

    def _watch(self, peer: socket.socket, name: bytes) -> None:
        """Return at the farewell of the other process; if it dies, end this process too."""
        peer.settimeout(_QUIET_SECONDS)
        said = _ALIVE
        while said:
            try:
                said = peer.recv(64)
            except TimeoutError:
                with suppress(OSError):
                    peer.sendall(_ALIVE)
            except OSError:
                said = b""
            if _FAREWELL in said:
                return
        with self._lock:  # held to the end, so that no other thread ends this process meanwhile
            if self._over:
                return
            error = PeerLostError(
                f"another replica was lost ({name.decode().strip()}: its process has ended)"
            )
            log.error("%s", error)
            write_termination_message(str(error))
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(error.code)


def _read(peer: socket.socket, size: int) -> bytes:
    """Return the first `size` bytes that arrive.

    Raises:
        OSError: They do not arrive.
    """
    data, deadline = b"", time.monotonic() + _GREETING_SECONDS
    while len(data) < size:
        peer.settimeout(max(deadline - time.monotonic(), 0.001))
        more = peer.recv(size - len(data))
        if not more:
            raise ConnectionResetError("the connection was closed")
        data += more
    return data
