"""What the tables of faults run in."""

import pytest

from storage.credentials import SecretVolume
from storage.store import Store
from tests.faults.proxy import FaultProxy
from tests.faults.versitygw import Versitygw, executable
from tests.faults.world import World


@pytest.fixture(scope="session")
def versitygw(tmp_path_factory: pytest.TempPathFactory):
    program = executable()
    if not program:
        pytest.skip("there is no Go to build versitygw with")
    server = Versitygw(program, tmp_path_factory.mktemp("versitygw"))
    Store(secret=SecretVolume(server.secret)).make_bucket("test")
    yield server
    server.stop()


@pytest.fixture
def world(request, tmp_path, base, monkeypatch):
    server, way = request.param
    server = request.getfixturevalue(server)
    secret = {path.name: path.read_text() for path in server.secret.iterdir()}
    with FaultProxy(server.endpoint, secret) as proxy:
        truth = Store(secret=SecretVolume(server.secret))
        if way == "proxied":
            for name in ("no_proxy", "NO_PROXY", "HTTP_PROXY"):
                monkeypatch.delenv(name, raising=False)
            monkeypatch.setenv("http_proxy", proxy.endpoint)
        endpoint = proxy.endpoint if way == "direct" else server.endpoint
        folder = tmp_path / "folder"
        folder.mkdir()
        yield World(proxy, truth, server.secret, endpoint, base, folder)
