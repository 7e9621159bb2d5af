"""The example of a Dask cluster for data_options.dask, without a cluster."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client

from kfp_tfjob.options.data import DataOptions
from kfp_tfjob.options.images import PLACEHOLDER, tools_in
from kfp_tfjob.options.parse import parse
from kfp_tfjob.storage.credentials import MOUNT
from kfp_tfjob.storage.errors import ConfigurationError


def unknown(value: Any, model: str, where: str = "") -> list[str]:
    """Return the fields that the models of the client do not have."""
    if model.startswith("list["):
        return [bad for item in value for bad in unknown(item, model[5:-1], where)]
    if not model.startswith("V1"):
        return []
    kind = getattr(client, model)
    names = {name: field for field, name in kind.attribute_map.items()}
    bad = [f"{where}.{key}" for key in value if key not in names]
    for key, item in value.items():
        if key in names:
            bad += unknown(item, kind.openapi_types[names[key]], f"{where}.{key}")
    return bad


def test_its_pods_have_the_tools_image_the_keys_of_the_store_and_tls(repository: Path) -> None:
    text = (repository / "deploy/optional/dask/dask-cluster.yaml").read_text()
    found = yaml.safe_load(text)
    assert unknown(found["spec"]["scheduler"]["service"], "V1ServiceSpec") == []
    address = f"tls://{found['metadata']['name']}-scheduler:8786"
    assert parse(DataOptions, "data_options", {"dask": address}).dask == address
    for role in ("scheduler", "worker"):
        pod = found["spec"][role]["spec"]
        assert unknown(pod, "V1PodSpec") == []
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
