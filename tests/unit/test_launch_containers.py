"""What the local back end makes of a manifest."""

from pathlib import Path

import pytest

from kfp_tfjob.cluster.local.container import PodInfo, environment, expand, place
from kfp_tfjob.components.launch_tfjob.launch import open_backend
from kfp_tfjob.jobs.spec import JobSpec
from kfp_tfjob.storage.errors import ConfigurationError
from tests.unit.launch_parameters import DEFAULTS


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("$(A)/x", "1/x"),
        ("$(A)$(B)", "1two"),
        ("$(NO)", "$(NO)"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$A ${A} $ $(", "$A ${A} $ $("),
        ("$$", "$"),
        ("$()", "$()"),
    ],
)
def test_references_are_expanded_as_kubernetes_does(text, expanded):
    assert expand(text, {"A": "1", "B": "two"}) == expanded


def test_only_whole_paths_are_placed():
    mounts = {"/a": Path("/1"), "/a/b": Path("/2")}
    assert place("/a/x", mounts) == "/1/x"
    assert place("/a/b/x", mounts) == "/2/x"
    assert place("/a", mounts) == "/1"
    assert place("/ab", mounts) == "/ab"
    assert place("--out=/a", mounts) == "--out=/a"


def test_the_environment_of_a_container(tmp_path, monkeypatch):
    others = {"TF_CONFIG", "DATA_DIR", "MAX_RESTARTS", "PYTHONSAFEPATH"}
    for name in others:
        monkeypatch.setenv(name, "of somebody else")
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys/id").write_text("secret\n")
    pod = PodInfo({"name": "p-0", "labels": {"a/b": "c"}}, tmp_path)

    def secret(key: str, optional: bool) -> dict:
        return {"secretKeyRef": {"name": "keys", "key": key, "optional": optional}}

    env = [
        {"name": "DIR", "value": "/mnt/x"},
        {"name": "FILE", "value": "$(DIR)/f"},
        {"name": "PRICE", "value": "5$$(DIR)"},
        {"name": "ID", "valueFrom": secret("id", False)},
        {"name": "NONE", "valueFrom": secret("none", True)},
        {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "LABEL", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['a/b']"}}},
    ]
    found = environment({"env": env}, pod, {"/mnt": tmp_path / "v"}, {"MORE": "1"})
    assert found["FILE"] == f"{tmp_path}/v/x/f"
    assert (found["PRICE"], found["ID"], found["POD"], found["LABEL"]) == (
        "5$(DIR)",
        "secret",
        "p-0",
        "c",
    )
    assert "NONE" not in found and not others & set(found) and found["MORE"] == "1"
    with pytest.raises(LookupError, match="key none"):
        environment({"env": [{"name": "X", "valueFrom": secret("none", False)}]}, pod, {}, {})


def test_the_back_end_is_chosen_by_the_environment(monkeypatch, tmp_path):
    spec = JobSpec.parse(**DEFAULTS)
    monkeypatch.setenv("KUBECONFIG", "/nowhere")
    with pytest.raises(ConfigurationError, match="no cluster"):
        open_backend(spec)
    monkeypatch.setenv("KFP_TFJOB_BACKEND", "local")
    monkeypatch.setenv("KFP_TFJOB_WORK", str(tmp_path))
    monkeypatch.setenv("KFP_TFJOB_SECRETS", str(tmp_path))
    with open_backend(spec) as backend:
        assert backend.get("none") is None and backend.pods("none") == []
        assert list(backend.logs("none")) == []
        backend.delete("none")
