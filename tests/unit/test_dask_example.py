"""The example of a Dask cluster for data_options.dask, without a cluster."""

from pathlib import Path

import pytest
import yaml
from kubernetes.client import ApiClient

from kfp_tfjob.cluster.create_job import lost_fields
from kfp_tfjob.options.data import DataOptions
from kfp_tfjob.options.images import PLACEHOLDER, tools_in
from kfp_tfjob.options.parse import parse
from kfp_tfjob.storage.credentials import MOUNT
from kfp_tfjob.storage.errors import ConfigurationError


def test_its_pods_have_the_tools_image_the_keys_of_the_store_and_tls(repository: Path) -> None:
    text = (repository / "deploy/optional/dask/dask-cluster.yaml").read_text()
    found = yaml.safe_load(text)
    service = found["spec"]["scheduler"]["service"]
    assert not list(lost_fields(ApiClient(), service, "V1ServiceSpec"))
    address = f"tls://{found['metadata']['name']}-scheduler:8786"
    assert parse(DataOptions, "data_options", {"dask": address}).dask == address
    for role in ("scheduler", "worker"):
        pod = found["spec"][role]["spec"]
        assert not list(lost_fields(ApiClient(), pod, "V1PodSpec"))
        (container,) = pod["containers"]
        assert container["image"] == tools_in(PLACEHOLDER)
        variables = {item["name"]: item["value"] for item in container["env"]}
        assert variables["DASK_SCHEDULER_ADDRESS"] == address
        assert str(MOUNT) in {item["mountPath"] for item in container["volumeMounts"]}


@pytest.mark.parametrize("address", ["scheduler:8786", "tcp://scheduler", "http://scheduler:8787"])
def test_what_is_no_address_of_a_scheduler_is_refused(address: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        parse(DataOptions, "data_options", {"dask": address})
    assert [problem.path for problem in raised.value.problems] == ["data_options.dask"]
