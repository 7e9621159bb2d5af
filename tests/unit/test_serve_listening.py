"""The socket of the server: its address, and the options that its connections inherit."""

import socket
from unittest.mock import patch

import pytest

from kfp_tfjob.common.errors import ConfigurationError
from kfp_tfjob.serving import listening
from kfp_tfjob.serving.listening import default_host, listen
from tests.problems import problem_of


def test_only_a_pod_listens_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert default_host() == "127.0.0.1"
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    assert default_host() == "0.0.0.0"
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00:10:96::1")  # a cluster with IPv6 only
    assert default_host() == "::"


def test_a_client_that_reads_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "IDLE", 1)
    monkeypatch.setattr(listening, "_PROBES", 1)
    monkeypatch.setattr(listening, "_BETWEEN", 1)
    with listen("127.0.0.1", 0) as server:
        server.listen()
        with socket.create_connection(server.getsockname()), server.accept()[0] as accepted:
            with pytest.raises(TimeoutError):
                while True:
                    accepted.sendall(bytes(1_000_000))


def test_an_address_that_is_taken_or_foreign_is_refused() -> None:
    with listen("127.0.0.1", 0) as first:
        first.listen()
        port = first.getsockname()[1]
        for host in ("127.0.0.1", "192.0.2.7"):
            problem = problem_of(listen, host, port)
            assert problem.path == "--port"
            assert host in str(problem.received) and str(port) in str(problem.received)
    with patch("socket.getaddrinfo", side_effect=socket.gaierror(-2, "unknown")):
        with pytest.raises(ConfigurationError):
            listen("nowhere.invalid", 0)
