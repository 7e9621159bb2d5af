"""doctor's check of the store, on a real one."""

import pytest

from kfp_tfjob.pipelines.doctor import check_output_store


@pytest.mark.usefixtures("ci_job")  # which has keys and the address of the store
@pytest.mark.parametrize(("reached", "status"), [(True, "ok"), (False, "unknown")])
def test_this_machine_has_an_address_of_its_own_for_the_store(
    monkeypatch: pytest.MonkeyPatch, reached: bool, status: str
) -> None:
    """The parameter is the address in the cluster, which this machine cannot reach."""
    if not reached:
        monkeypatch.delenv("AWS_ENDPOINT_URL")
    values = {"output_uri": "s3://test/doctor", "storage_region": ""}
    found = check_output_store(values | {"storage_endpoint": "http://127.0.0.1:1"})
    assert {finding.status for finding in found} == {status}, found
    if reached:
        assert len(found) == 1 and "s3://test/doctor" in found[0].what
