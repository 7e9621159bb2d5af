"""doctor's check of the store, on a real one."""

from __future__ import annotations

import pytest

from kfp_tfjob.pipelines.doctor import check_own_store
from kfp_tfjob.pipelines.local.s3_server import Server


@pytest.fixture(autouse=True)
def environment(s3: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The credentials and the address of the store, as a person sets them."""
    for path in s3.secret.iterdir():
        monkeypatch.setenv(path.name, path.read_text())


def test_this_machine_has_an_address_of_its_own_for_the_store() -> None:
    """The parameter is the address in the cluster, which this machine cannot reach."""
    inside = "http://127.0.0.1:1"
    values = {"output_uri": "s3://test/doctor", "storage_endpoint": inside, "storage_region": ""}
    [found] = check_own_store(values)
    assert found.status == "ok", found
    assert "s3://test/doctor" in found.what


def test_a_store_that_only_pods_reach_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    inside = "http://127.0.0.1:1"
    values = {"output_uri": "s3://test/doctor", "storage_endpoint": inside, "storage_region": ""}
    found = check_own_store(values)
    assert {finding.status for finding in found} == {"unknown"}, found
