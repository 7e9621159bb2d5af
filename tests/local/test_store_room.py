"""SeaweedFS as Kubeflow Pipelines ships it has no room for a third bucket; `make test-stores`."""

from pathlib import Path

import pytest

from kfp_tfjob.checks.finding import Status
from kfp_tfjob.common.errors import NoRoomError
from kfp_tfjob.pipelines.doctor import check_output_store
from kfp_tfjob.storage.credentials import MOUNT_VARIABLE
from tests.faults import seaweedfs
from tests.faults.seaweedfs import SeaweedFS
from tests.stores import known


@pytest.mark.slow
@pytest.mark.skipif(not known.is_seaweedfs(), reason="only SeaweedFS has volumes")
def test_a_third_bucket_needs_more_volumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """doctor finds that out, and both of its remedies work."""
    version = known.current().version
    server = SeaweedFS(version, tmp_path / "server")
    monkeypatch.setenv(MOUNT_VARIABLE, str(server.secret))

    def doctor(output_uri: str) -> Status:
        values = {"output_uri": output_uri, "storage_endpoint": "", "storage_region": ""}
        (finding,) = check_output_store(values)
        return finding.status

    server.start("mlpipeline", volumes=seaweedfs.AS_SHIPPED)
    try:
        full = ""
        for bucket in ("second", "third"):
            server.store().make_bucket(bucket)
            try:
                assert doctor(f"s3://{bucket}/kfp-tfjob") == Status.OK
            except NoRoomError as error:
                assert "-volume.max" in error.as_problems[0].fix
                assert f"SeaweedFS 8000GB {version}" in str(error)
                full = bucket
        assert full, "there is room for three buckets"
        assert doctor("s3://mlpipeline/kfp-tfjob") == Status.OK
        server.stop()
        server.start("mlpipeline", volumes=100)
        assert doctor(f"s3://{full}/kfp-tfjob") == Status.OK
    finally:
        server.stop()
