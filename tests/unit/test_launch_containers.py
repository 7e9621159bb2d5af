"""What the local back end makes of a manifest."""

from pathlib import Path

import pytest

from kfp_tfjob.cluster.local.container import PodInfo, environment, expand, place


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
    places = {"/a/x": "/1/x", "/a/b/x": "/2/x", "/a": "/1", "/ab": "/ab", "--out=/a": "--out=/a"}
    assert {path: place(path, mounts) for path in places} == places


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
