"""The commands of `kfp-tfjob install` that undo what it did, and nothing that was there before."""

from kfp_tfjob.cluster.applying import Change, to_remove
from kfp_tfjob.cluster.manifests import OPTIONAL, objects, secret


def test_only_what_was_created_is_removed():
    wanted = [*objects("team", "pipeline-runner", OPTIONAL), secret("team", "s", {"A": "b"})]
    of_restricted = "pod-security.kubernetes.io/enforce"
    changes = [
        Change(it, "change", labels=[of_restricted, "x"])
        if it["kind"] == "Namespace"
        else Change(it, "keep" if it["kind"] in ("Role", "RoleBinding") else "create")
        for it in wanted
    ]
    delete, of_cluster, labels = to_remove(changes)
    assert delete.startswith("kubectl delete -n team networkpolicy/kfp-tfjob-replicas")
    assert "role" not in delete and "secret" not in delete
    assert of_cluster.startswith("kubectl delete clusterrolebinding/")
    assert labels == f"kubectl label namespace/team {of_restricted}- x-"
    assert to_remove([Change(it, "keep") for it in wanted]) == []
